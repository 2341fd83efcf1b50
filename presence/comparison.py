"""What a node has in memory beside what Redis has of it, a little at a time: pure.

Counters and generations notice what a fault does to Redis. This notices the rest: in the end keys that
somebody deleted; soon, after more news than the inbox holds, sessions that others have taken over unheard.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from presence.changes import PLAIN, Profile, SessionName
from presence.shard_writer import ShardWriter
from presence.store.batches import Compare
from presence.store.replies import Reply

SESSIONS_A_TURN: Final = 512  # some 2 ms of Redis
HURRIED_SESSIONS: Final = 2048  # the same after news were missed: 100,000 sessions in some two minutes


class Memory(NamedTuple):
    """What a node has, to be asked at any time.

    Attributes:
        vouched: all sessions that ought to be on record.
        shown_as: how a session shows itself; None: it lives no more.
    """

    vouched: Callable[[], Iterable[SessionName]]
    shown_as: Callable[[SessionName], Profile | None]


class Comparison:
    """One walk over all sessions after the other.

    What differs once may be a change under way. So it is asked about again at the next turn, and counts if it
    differs then too.

    Args:
        memory: see `Memory`.
        shard_of: the shard of a uid.
    """

    def __init__(self, memory: Memory, shard_of: Callable[[str], int]) -> None:
        self._memory = memory
        self._shard_of = shard_of
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
            self._walk = iter(self._memory.vouched())
        self._hurried_walks = min(2, self._hurried_walks + 1)

    def next(self, writers: Iterable[ShardWriter]) -> list[Compare]:
        """Return what to ask now; of shards that are not among `writers` nothing, until they are."""
        chosen = list(writers)
        if not chosen:
            return []
        size = HURRIED_SESSIONS if self.is_hurried else SESSIONS_A_TURN
        found: dict[int, list[SessionName]] = defaultdict(list)
        for each in self._some(size):
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
            shown = tuple(self._memory.shown_as(each) or PLAIN for each in asked)
            steps.append(writer.compare(cursor, fields + 1, tuple(asked), shown))
        return steps

    def _some(self, size: int) -> list[SessionName]:
        some = list(islice(self._walk, size))
        if not some:
            self._walk = iter(self._memory.vouched())
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
        return self._memory.shown_as(each) is not None
