"""What a node has in memory beside what Redis has of it, a little at a time.

Counters and generations notice what a fault does to Redis. This notices the rest: in the end keys that
somebody deleted; soon, after more news than the inbox holds, sessions that others have taken over unheard.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from itertools import islice
from typing import Final, NamedTuple

import structlog

from presence.common.errors import StoreError, StoreUnavailable
from presence.common.runtime import ThreadCaller
from presence.core.changes import PLAIN, Profile, SessionName
from presence.outbox.outage_log import Failures
from presence.outbox.queue import Outbox
from presence.outbox.replies import Reply, ReplyStatus
from presence.outbox.shard_writer import ShardWriter
from presence.outbox.steps import Compare
from presence.outbox.store import Store

SESSIONS_A_TURN: Final = 512  # some 2 ms of Redis
HURRIED_SESSIONS: Final = 2048  # the same after news were missed: 100,000 sessions in some two minutes
COMPARE_INTERVAL_S: Final = 10.0  # 100,000 sessions are compared with the records in half an hour

_log = structlog.get_logger(__name__)


class LocalSessions(NamedTuple):
    """What a node has, to be asked at any time."""

    vouched: Callable[[], Iterable[SessionName]]  # all sessions that ought to be on record
    shown_as: Callable[[SessionName], Profile | None]  # how a session shows itself; None: it lives no more


@dataclass(eq=False, repr=False)
class Reconciler:
    """One walk over all sessions after the other.

    What differs once may be a change under way. So it is asked about again at the next turn, and counts if it
    differs then too.
    """

    memory: LocalSessions  # see `LocalSessions`
    shard_of: Callable[[str], int]  # the shard of a uid

    def __post_init__(self) -> None:
        self._walk: Iterator[SessionName] = iter(())
        self._cursors: dict[int, str] = {}
        self._suspects: dict[int, set[SessionName]] = {}
        self._unasked: dict[int, list[SessionName]] = {}  # of the walk, while their shards were busy
        self._hurried_walks = 0  # that are left, the present one included

    @property
    def is_hurried(self) -> bool:
        """Whether the walk is not to wait for its usual time."""
        return self._hurried_walks > 0

    def hurry(self) -> None:
        """Walk over all sessions soon: news were missed. A walk that hurries already is walked to its end."""
        if not self.is_hurried:
            self._walk = iter(self.memory.vouched())
        self._hurried_walks = min(2, self._hurried_walks + 1)

    def next(self, writers: Iterable[ShardWriter]) -> list[Compare]:
        """Return what to ask now; of shards that are not among `writers` nothing, until they are."""
        chosen = list(writers)
        if not chosen:
            return []
        size = HURRIED_SESSIONS if self.is_hurried else SESSIONS_A_TURN
        found: dict[int, list[SessionName]] = defaultdict(list)
        for each in self._some(size):
            found[self.shard_of(each.uid)].append(each)
        for shard, names in found.items():
            self._keep(shard, names)
        fields = size // len(chosen)
        steps = []
        for writer in chosen:
            asked = dict.fromkeys(
                [*self._suspects.get(writer.shard, ()), *self._unasked.pop(writer.shard, ())]
            )
            cursor = self._cursors.get(writer.shard, "0")
            shown = tuple(self.memory.shown_as(each) or PLAIN for each in asked)
            steps.append(writer.compare(cursor, fields + 1, tuple(asked), shown))
        return steps

    def _some(self, size: int) -> list[SessionName]:
        some = list(islice(self._walk, size))
        if not some:
            self._walk = iter(self.memory.vouched())
            if not self._unasked:
                self._hurried_walks = max(0, self._hurried_walks - 1)
        return some

    def _keep(self, shard: int, names: Iterable[SessionName]) -> None:
        """Keep a few to be asked about next; of a shard that is busy for long some wait for the next walk."""
        self._unasked[shard] = [*self._unasked.get(shard, ()), *names][-HURRIED_SESSIONS:]

    def unanswered(self, steps: Iterable[Compare]) -> None:
        """Ask again, at the next turn: what was answered does not count."""
        for step in steps:
            self._keep(step.shard, step.sessions)

    def differences(self, step: Compare, reply: Reply) -> int:
        """Return how many sessions are not on record as they are here, for the second time."""
        self._cursors[step.shard] = reply.cursor
        missing = {step.sessions[number] for number in reply.missing}
        differing = {each for each in step.sessions if self._is_here(each) is (each in missing)}
        differing |= {each for each in reply.owned if not self._is_here(each)}
        confirmed = differing & self._suspects.get(step.shard, set()) & {*step.sessions}
        self._suspects[step.shard] = differing - confirmed
        return len(confirmed)

    def _is_here(self, each: SessionName) -> bool:
        return self.memory.shown_as(each) is not None


@dataclass(eq=False, repr=False)
class ReconcilerTask:
    """Makes comparisons, one call at a time: the part of the relay's task that does.

    Attributes:
        differences: sessions that were not on record as they were here, or the other way round.
    """

    outbox: Outbox  # where changes wait that would make a difference
    store: Store  # Redis
    thread: ThreadCaller  # makes the relay's calls
    memory: InitVar[LocalSessions]  # what is compared with the records
    _: KW_ONLY
    node: Callable[[], str]  # the node's id now
    clock: Callable[[], float]  # monotonic seconds

    def __post_init__(self, memory: LocalSessions) -> None:
        self._comparison = Reconciler(memory, self.outbox.shard_of)
        self._compared_at = -math.inf
        self.differences = 0

    def hurry(self) -> None:
        """See `Reconciler.hurry`."""
        self._comparison.hurry()

    async def compare(self, reachable: Callable[[], Sequence[ShardWriter]], hurried_s: float) -> Failures:
        """Compare a little if it is time to; return what Redis refuses.

        Args:
            reachable: the writers of shards that answer now.
            hurried_s: between two comparisons after news were missed: a probe has to be between two looks at
                a session, since what differs may just not be told yet.
        """
        now = self.clock()
        if not self._is_time(reachable(), now, hurried_s):
            return []
        self._compared_at = now
        try:
            await self.thread.call(self.store.check_meta)  # it may be lost alone
        except StoreUnavailable:
            pass  # it may be on another server than what follows
        except StoreError as error:
            return [error]
        await self._compare_sessions(reachable())
        return []

    def _is_time(self, reachable: Sequence[ShardWriter], now: float, hurried_s: float) -> bool:
        """Whether a comparison is due; after news were missed as soon as it can tell anything."""
        is_hurried = self._comparison.is_hurried and any(writer.is_idle(now) for writer in reachable)
        interval_s = hurried_s if is_hurried else COMPARE_INTERVAL_S
        return bool(reachable) and now - self._compared_at >= interval_s

    async def _compare_sessions(self, reachable: Sequence[ShardWriter]) -> None:
        """Compare a few sessions with the records, where nothing is under way; resync where they differ."""
        now, node, offered = self.clock(), self.node(), self.outbox.offered
        steps = self._comparison.next(writer for writer in reachable if writer.is_idle(now))
        if not steps:
            return
        answers = await self.thread.call(lambda: self.store.apply(steps))
        if node != self.node() or offered != self.outbox.offered:
            self._comparison.unanswered(steps)  # they have changed meanwhile
            return
        writers = {writer.shard: writer for writer in reachable}
        for step, answer in zip(steps, answers, strict=True):
            if not isinstance(answer, Reply) or answer.status is not ReplyStatus.OK:
                continue  # whatever it is, a batch or a probe meets it too
            if differences := self._comparison.differences(step, answer):
                _log.error("records out of sync, resyncing", shard=step.shard, sessions=differences)
                self.differences += differences
                writers[step.shard].resync()
