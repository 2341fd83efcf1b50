"""The scheduler of follow-ups: decides when the script runs in each shard. Calls block.

What a run does is in the script, `presence/store/scripts/followups/plan_and_deliver.lua`. Any number of
processes may run schedulers; one at a time is active per shard, and the others check whether it is alive.
"""

import random
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from presence.common.errors import StoreError
from presence.common.outage import EventLog, Outage
from presence.config.followup_rules import Rule
from presence.followups.script_calls import (
    STREAM_MAXLEN,
    packed_rules,
    recount_call,
    reindex_call,
    run_call,
)
from presence.store.keys import Keys
from presence.store.script_runner import Scripting
from presence.store.shard_job import RETRY_FIRST_S, RETRY_MAX_S, ShardJob

POLL_INTERVAL_S: Final = 1.0  # between two runs of an idle shard: an event is read at most this late
MIN_POLL_INTERVAL_S: Final = 0.05  # where a rule's delay is shorter than that
MIN_RUN_INTERVAL_S: Final = 0.02  # between two runs of a shard: follow-ups due meanwhile share a run
BUSY_JITTER_S: Final = 0.3  # spreads the schedulers that wait for one that died
REINDEX_INTERVAL_S: Final = 1.0  # between two calls of the walk over all follow-ups
_WAITING_EVENT: Final = "follow-ups waiting for Redis"


@dataclass(slots=True)
class SchedulerCounters:
    """Counters of the runs of this process.

    Outside, `delivered` is called ``fired`` (the metric) and ``done`` (stored in Redis), and `gaps` is stored
    as ``holes``.
    """

    runs: int = 0  # answered calls
    busy: int = 0  # of these, those that found another scheduler active
    events: int = 0  # entries read from the event streams
    planned: int = 0
    cancelled: int = 0
    delivered: int = 0
    dropped: int = 0  # when due, the user was or had been back
    refused: int = 0  # the limit was reached
    gaps: int = 0  # times that events were missing
    restored: int = 0  # follow-ups that nothing led to any more
    failures: int = 0  # failed calls

    def add(self, numbers: Iterable[int]) -> None:
        """Add the numbers of an answer of plan_and_deliver.lua, in its order."""
        for name, number in zip(_COUNTED_BY_SCRIPT, numbers, strict=True):
            setattr(self, name, getattr(self, name) + number)


_COUNTED_BY_SCRIPT: Final = ("events", "planned", "cancelled", "delivered", "dropped", "refused", "gaps")


class FollowUpScheduler(ShardJob):
    """Runs the script of each shard when it is due. Used from one thread at a time.

    Args:
        url: as `presence.common.redis_url` takes it; nothing is sent yet.
        rules: rules for offline events, the same in all schedulers. None: those last stored by a scheduler
            with rules; before that, none.
        shards: number of shards; None: as stored by a server.
        kept: cap of each stream of follow-ups, roughly.

    Attributes:
        counters: results so far.
    """

    def __init__(
        self,
        url: str,
        prefix: str = "presence",
        rules: Iterable[Rule] | None = None,
        *,
        shards: int | None = None,
        kept: int = STREAM_MAXLEN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters = SchedulerCounters()
        super().__init__(Scripting(url), prefix, shards, self.counters)
        self._kept = kept
        self._clock = clock
        self._name = secrets.token_hex(8)
        known_rules = None if rules is None else tuple(rules)
        self._rules = packed_rules(known_rules)
        shortest_s = min((rule.after for rule in known_rules or ()), default=POLL_INTERVAL_S)
        self._poll_interval_s = max(MIN_POLL_INTERVAL_S, min(POLL_INTERVAL_S, shortest_s / 2))
        self._due: dict[int, float] = {}  # by shard, the time of the next run
        self._started: set[int] = set()  # shards that are known to have had runs
        # The walk over all follow-ups: its shard, cursor, and next call; what it finds for recount.lua.
        self._walk_shard, self._walk_cursor, self._walk_at = 0, "0", 0.0
        self._missing_bytes, self._recounts = 0.0, 0

    def _run(self, shards: int) -> float:
        keys, now = Keys(self._prefix, shards), self._clock()
        due_shards = [shard for shard in range(shards) if self._due.get(shard, now) <= now]
        calls = [
            run_call(keys, shard, self._name, self._rules, has_begun=shard in self._started, kept=self._kept)
            for shard in due_shards
        ]
        answers = self._scripting.evaluate(calls) if calls else []
        for shard, answer in zip(due_shards, answers, strict=True):
            self._due[shard] = self._clock() + self._process_answer(shard, answer)
        if not self.failure:
            self._reindex(keys)
        return max(0.0, min(self._due.values()) - self._clock())

    def _reindex(self, keys: Keys) -> None:
        """Make the next call of the walk over all follow-ups, if it is due."""
        now = self._clock()
        if now < self._walk_at:
            return
        self._walk_at = now + REINDEX_INTERVAL_S
        (answer,) = self._scripting.evaluate([reindex_call(keys, self._walk_shard, self._walk_cursor)])
        if isinstance(answer, Exception):
            self._note_failure(answer)
            if isinstance(answer, StoreError):  # it must not keep the walk from the other shards
                self._walk_next_shard(keys)
            return
        cursor, restored, missing_bytes, recounts = msgpack.unpackb(answer)
        if self._walk_cursor == "0":
            self._missing_bytes, self._recounts = 0.0, recounts
        self._walk_cursor = cursor
        self._missing_bytes += missing_bytes
        self.counters.restored += restored
        if cursor == "0":
            self._recount(keys)
            self._walk_next_shard(keys)

    def _walk_next_shard(self, keys: Keys) -> None:
        self._walk_shard, self._walk_cursor = (self._walk_shard + 1) % keys.shards, "0"

    def _recount(self, keys: Keys) -> None:
        """Correct the counted memory of a shard after a walk."""
        if not (missing_bytes := round(self._missing_bytes)):
            return
        call = recount_call(keys, self._walk_shard, missing_bytes, self._recounts)
        (answer,) = self._scripting.evaluate([call])
        if isinstance(answer, Exception):
            self._note_failure(answer)

    def _process_answer(self, shard: int, answer: Any) -> float:
        """Process an answer; return the seconds until the next run of the shard."""
        if isinstance(answer, Exception):
            self._note_failure(answer)
            return self._retry_s()
        self.counters.runs += 1
        self._started.add(shard)
        status, ms, *rest = msgpack.unpackb(answer)
        if status == "busy":
            self.counters.busy += 1
            return float(ms) / 1000 + random.uniform(0, BUSY_JITTER_S)  # noqa: S311 - spreads load
        is_more, *numbers = rest
        self.counters.add(numbers)
        if is_more:
            return 0.0
        next_s = self._poll_interval_s if ms < 0 else min(self._poll_interval_s, ms / 1000)
        return max(MIN_RUN_INTERVAL_S, next_s)


def scheduler_outage(log: EventLog) -> Outage:
    """Return the log of a scheduler's failed runs."""
    return Outage(
        log,
        unreachable=_WAITING_EVENT,
        refused=_WAITING_EVENT,
        failed_otherwise="follow-up scheduler failed",
        recovered="follow-ups resumed",
        first_s=RETRY_FIRST_S,
        limit_s=RETRY_MAX_S,
    )
