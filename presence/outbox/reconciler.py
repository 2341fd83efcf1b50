"""Compares the sessions in a node's memory with its records in Redis, a few at a time.

Counters and generations detect that Redis lost data. The comparison detects the rest: keys that were deleted
by hand, within one walk over all sessions; and sessions that other nodes superseded without a notice, soon
after the inbox has overflowed.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import structlog

from presence.common.errors import StoreError, StoreUnavailable
from presence.common.runtime import Caller
from presence.core.changes import SessionName
from presence.core.profiles import PLAIN, Profile
from presence.outbox.outage_log import Failures
from presence.outbox.queue import Outbox
from presence.outbox.replies import Reply, ReplyStatus
from presence.outbox.shard_writer import ShardWriter
from presence.outbox.steps import Compare
from presence.outbox.store import Store

# Some 2 ms of Redis; a call compares fewer if their records are large.
MAX_SESSIONS_PER_TURN: Final = 512
MAX_URGENT_SESSIONS_PER_TURN: Final = 2048  # after missed notices: 100,000 sessions in some two minutes
COMPARE_INTERVAL_S: Final = 10.0  # 100,000 sessions take half an hour

_log = structlog.get_logger(__name__)


class LocalSessions(NamedTuple):
    """Access to the sessions in a node's memory."""

    registrable_sessions: Callable[[], Iterable[SessionName]]  # all sessions that should be on record
    shown_as: Callable[[SessionName], Profile | None]  # a session's profile; None: it has ended


class Reconciler:
    """Walks over all sessions again and again, and finds differences.

    A difference may be a change in flight. So it counts only if the next comparison confirms it.

    Args:
        local_sessions: see `LocalSessions`.
        shard_of: the shard of a uid.
    """

    def __init__(self, local_sessions: LocalSessions, shard_of: Callable[[str], int]) -> None:
        self._local_sessions = local_sessions
        self._shard_of = shard_of
        self._walk: Iterator[SessionName] = iter(())
        # By shard: where the next comparison continues among the sessions on record, the sessions that
        # differed once, and those of the walk whose shard was busy.
        self._cursors: dict[int, str] = {}
        self._suspects: dict[int, set[SessionName]] = {}
        self._unasked: dict[int, list[SessionName]] = {}
        self._urgent_walks = 0  # left to do, including the present one

    @property
    def is_urgent(self) -> bool:
        """Whether the walk runs at the urgent interval."""
        return self._urgent_walks > 0

    def run_soon(self) -> None:
        """Walk over all sessions soon, because notices were missed; an urgent walk is finished first."""
        if not self.is_urgent:
            self._walk = iter(self._local_sessions.registrable_sessions())
        self._urgent_walks = min(2, self._urgent_walks + 1)

    def next(self, writers: Iterable[ShardWriter]) -> list[Compare]:
        """Return the next comparisons, for the shards of `writers` only; the others' sessions are kept."""
        chosen = list(writers)
        if not chosen:
            return []
        size = MAX_URGENT_SESSIONS_PER_TURN if self.is_urgent else MAX_SESSIONS_PER_TURN
        room = size - sum(len(self._unasked.get(writer.shard, ())) for writer in chosen)
        found: dict[int, list[SessionName]] = defaultdict(list)
        for each in self._some(room) if room > 0 else ():
            found[self._shard_of(each.uid)].append(each)
        for shard, names in found.items():
            self._keep(shard, names)
        fields = size // len(chosen)
        steps = []
        for writer in chosen:
            asked = dict.fromkeys(
                [*self._suspects.get(writer.shard, ()), *self._unasked.pop(writer.shard, ())]
            )
            cursor = self._cursors.get(writer.shard, "0")
            shown = tuple(self._local_sessions.shown_as(each) or PLAIN for each in asked)
            steps.append(writer.compare_step(cursor, fields + 1, tuple(asked), shown))
        return steps

    def _some(self, size: int) -> list[SessionName]:
        some = list(islice(self._walk, size))
        if not some:
            self._walk = iter(self._local_sessions.registrable_sessions())
            if not self._unasked:
                self._urgent_walks = max(0, self._urgent_walks - 1)
        return some

    def _keep(self, shard: int, names: Iterable[SessionName]) -> None:
        """Keep sessions for the next comparison; beyond a bound they are left to the next walk."""
        self._unasked[shard] = [*self._unasked.get(shard, ()), *names][-MAX_URGENT_SESSIONS_PER_TURN:]

    def unanswered(self, steps: Iterable[Compare]) -> None:
        """Compare the same sessions again at the next turn, because the answers do not count."""
        for step in steps:
            self._keep(step.shard, step.sessions)

    def differences(self, step: Compare, reply: Reply) -> int:
        """Return how many sessions differ from their records for the second time."""
        self._cursors[step.shard] = reply.cursor
        end = len(step.sessions) - reply.uncompared
        compared, rest = step.sessions[:end], step.sessions[end:]
        if rest:
            self._keep(step.shard, rest)
        missing = {step.sessions[number] for number in reply.missing}
        differing = {each for each in compared if self._is_live(each) is (each in missing)}
        differing |= {each for each in reply.owned if not self._is_live(each)}
        confirmed = differing & self._suspects.get(step.shard, set()) & {*step.sessions}
        self._suspects[step.shard] = differing - confirmed
        return len(confirmed)

    def _is_live(self, each: SessionName) -> bool:
        return self._local_sessions.shown_as(each) is not None


class ReconcilerTask:
    """Makes comparisons in the relay's task, one call at a time.

    Args:
        outbox: its pending changes explain differences.
        store: Redis.
        caller: makes the relay's calls.
        local_sessions: see `LocalSessions`.
        node: returns the node's present id.
        clock: monotonic seconds.

    Attributes:
        differences: sessions that differed from their records.
    """

    def __init__(
        self,
        outbox: Outbox,
        store: Store,
        caller: Caller,
        local_sessions: LocalSessions,
        *,
        node: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self._outbox = outbox
        self._store = store
        self._caller = caller
        self._node = node
        self._clock = clock
        self._reconciler = Reconciler(local_sessions, outbox.shard_of)
        self._compared_at = -math.inf
        self.differences = 0

    def run_soon(self) -> None:
        self._reconciler.run_soon()

    async def compare(
        self, reachable: Callable[[], Sequence[ShardWriter]], urgent_interval_s: float
    ) -> Failures:
        """Compare some sessions if a comparison is due; return refusals of Redis.

        Args:
            reachable: returns the writers of shards that answer now.
            urgent_interval_s: between two comparisons after notices were missed. It has to leave room for a
                probe between two comparisons of a session, because a difference may be a notice not yet read.
        """
        now = self._clock()
        if not self._is_due(reachable(), now, urgent_interval_s):
            return []
        self._compared_at = now
        try:
            await self._caller.call(self._store.check_meta)  # its key may be lost alone
        except StoreUnavailable:
            pass  # it may be on another server than the shards
        except StoreError as error:
            return [error]
        await self._compare_sessions(reachable())
        return []

    def _is_due(self, reachable: Sequence[ShardWriter], now: float, urgent_interval_s: float) -> bool:
        """Whether a comparison is due; an urgent one once a shard is idle, so that it means something."""
        is_urgent = self._reconciler.is_urgent and any(writer.is_comparable(now) for writer in reachable)
        interval_s = urgent_interval_s if is_urgent else COMPARE_INTERVAL_S
        return bool(reachable) and now - self._compared_at >= interval_s

    async def _compare_sessions(self, reachable: Sequence[ShardWriter]) -> None:
        """Compare some sessions with the records in idle shards; resync a shard on a difference."""
        now, node, offered = self._clock(), self._node(), self._outbox.total_offered
        steps = self._reconciler.next(writer for writer in reachable if writer.is_comparable(now))
        if not steps:
            return
        answers = await self._caller.call(lambda: self._store.apply(steps))
        if node != self._node() or offered != self._outbox.total_offered:
            self._reconciler.unanswered(steps)  # they have changed meanwhile
            return
        writers = {writer.shard: writer for writer in reachable}
        for step, answer in zip(steps, answers, strict=True):
            if not isinstance(answer, Reply) or answer.status is not ReplyStatus.OK:
                continue  # a batch or a probe will meet the same failure
            if differences := self._reconciler.differences(step, answer):
                _log.error("records out of sync, resyncing", shard=step.shard, sessions=differences)
                self.differences += differences
                writers[step.shard].request_resync()
