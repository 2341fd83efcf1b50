"""Turning the wheel of follow-ups: shard by shard, when something may be due there. It blocks.

All that matters is in `followups/turn.lua`: here is only decided when it is called. Any number of processes
may turn; one at a time does, for each shard, and the others look whether it still lives.
"""

import random
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from presence.common.backoff import backoff_s, jittered
from presence.common.errors import StoreError, StoreUnavailable
from presence.config.followup_rules import Rule
from presence.followups.keys import TOLD_MAX, packed_rules, turn_call
from presence.store.keys import Keys
from presence.store.script_runner import Scripting

LOOK_S: Final = 1.0  # between two turns of a shard that has nothing to do: so late is an event read at most
LOOK_LEAST_S: Final = 0.05  # where a rule wants its follow-ups sooner than after that
GATHER_S: Final = 0.02  # between two turns of a shard: those that are due meanwhile are told together
BUSY_SPREAD_S: Final = 0.3  # so that those who wait for one that died do not come all at once
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 2.0  # between two attempts while Redis is away
META_LOOK_S: Final = 1.0  # until the first server has stored how many shards there are


@dataclass(slots=True)
class SchedulerCounters:
    """What the turns of this process have done."""

    turns: int = 0  # calls that were answered
    busy: int = 0  # of these, how many found that another turns
    events: int = 0  # entries of the event streams that were read
    planned: int = 0
    cancelled: int = 0
    told: int = 0
    dropped: int = 0  # their user was found to be back, or to have been, when they were due
    refused: int = 0  # there was no room for them
    holes: int = 0  # how often events were missing
    failures: int = 0  # calls that failed

    def add(self, numbers: Iterable[int]) -> None:
        """Take note of an answer: the numbers of turn.lua, in its order."""
        for name, number in zip(_TOLD_BY_TURN, numbers, strict=True):
            setattr(self, name, getattr(self, name) + number)


_TOLD_BY_TURN: Final = ("events", "planned", "cancelled", "told", "dropped", "refused", "holes")


class FollowUpScheduler:
    """Calls turns when it is time. Used from one thread at a time.

    Args:
        url: as `presence.common.redis_url` takes it; nothing is sent yet.
        rules: what follows offline events. Whoever turns should have the same. None: those stand that the
            last one with rules brought; there are none before.
        shards: how many; None: what a server has stored.
        kept: entries that each stream of follow-ups is capped to, roughly.

    Attributes:
        tally: what was done so far.
        failure: of the last turn, if it failed somewhere.
    """

    def __init__(
        self,
        url: str,
        prefix: str = "presence",
        rules: Iterable[Rule] | None = None,
        *,
        shards: int | None = None,
        kept: int = TOLD_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scripting = Scripting(url)
        self._prefix = prefix
        self._shards = shards
        self._kept = kept
        self._clock = clock
        self._name = secrets.token_hex(8)
        known = None if rules is None else tuple(rules)
        self._rules = packed_rules(known)
        shortest_s = min((rule.after for rule in known or ()), default=LOOK_S)
        self._look_s = max(LOOK_LEAST_S, min(LOOK_S, shortest_s / 2))
        self._due: dict[int, float] = {}  # shards, and when to turn there next
        self._begun: set[int] = set()  # shards that are known to have had turns
        self._failed = 0  # in a row
        self.tally = SchedulerCounters()
        self.failure: Exception | None = None

    def turn(self) -> float:
        """Turn where it is time; return for how many seconds there is nothing to do.

        A call that fails is counted, kept in `failure` and made again later: nothing is lost by it.
        """
        self.failure = None
        try:
            shards = self._known_shards()
        except (StoreUnavailable, StoreError) as error:
            self._fail(error)
            return self._retry_s()
        if shards is None:
            return META_LOOK_S
        keys, now = Keys(self._prefix, shards), self._clock()
        wanted = [shard for shard in range(shards) if self._due.get(shard, now) <= now]
        calls = [
            turn_call(keys, shard, self._name, self._rules, has_begun=shard in self._begun, kept=self._kept)
            for shard in wanted
        ]
        answers = self._scripting.evaluate(calls) if calls else []
        for shard, answer in zip(wanted, answers, strict=True):
            self._due[shard] = self._clock() + self._take(shard, answer)
        self._failed = self._failed if self.failure else 0
        return max(0.0, min(self._due.values()) - self._clock())

    def close(self) -> None:
        """Close the connections; a call that waits in another thread fails."""
        self._scripting.close()

    def _known_shards(self) -> int | None:
        if self._shards is None:
            meta = Keys(self._prefix).meta
            (stored,) = self._scripting.commands(meta, [("HGET", meta, "shards")])
            if stored is not None and not stored.isdigit():
                raise StoreError(f"{meta}: {stored!r} is not a number of shards")
            self._shards = int(stored) if stored else None
        return self._shards

    def _take(self, shard: int, answer: Any) -> float:
        """Take note of an answer; return when the shard is to be turned again, in seconds."""
        if isinstance(answer, Exception):
            self._fail(answer)
            return self._retry_s()
        self.tally.turns += 1
        self._begun.add(shard)
        status, ms, *rest = msgpack.unpackb(answer)
        if status == "busy":
            self.tally.busy += 1
            return float(ms) / 1000 + random.uniform(0, BUSY_SPREAD_S)  # noqa: S311 - spreads load
        is_more, *numbers = rest
        self.tally.add(numbers)
        if is_more:
            return 0.0
        next_s = self._look_s if ms < 0 else min(self._look_s, ms / 1000)
        return max(GATHER_S, next_s)

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            self._failed += 1
        self.tally.failures += 1

    def _retry_s(self) -> float:
        return jittered(backoff_s(self._failed - 1, RETRY_FIRST_S, RETRY_MAX_S))


class SchedulerOutage:
    """Says once that turns fail, and once that they work again."""

    def __init__(self) -> None:
        self._told = ""

    def news(self, failure: Exception | None) -> str:
        """Return what is to be said after a turn; "" for nothing."""
        kind = "" if failure is None else type(failure).__name__
        if kind == self._told:
            return ""
        self._told = kind
        return "follow-ups waiting for Redis" if failure else "follow-ups resumed"
