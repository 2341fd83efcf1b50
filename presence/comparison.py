"""What a node has in memory beside what Redis has of it, a little at a time: pure.

Counters and generations notice what a fault does to Redis. This notices the rest, in the end: keys that
somebody deleted, news of which there were too many for the inbox.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from presence.changes import SessionName
from presence.shard_writer import ShardWriter
from presence.store.batches import Compare, Reply

SESSIONS_A_TURN: Final = 512  # some 2 ms of Redis


class Memory(NamedTuple):
    """What a node has, to be asked at any time.

    Attributes:
        vouched: all sessions that ought to be on record.
        session_of: the live session's id of a uid and device; None if there is none.
    """

    vouched: Callable[[], Iterable[SessionName]]
    session_of: Callable[[str, str], str | None]


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

    def next(self, writers: Iterable[ShardWriter]) -> list[Compare]:
        """Return what to ask now; of shards that are not among `writers` nothing, until the next walk."""
        found: dict[int, list[SessionName]] = defaultdict(list)
        for each in self._some():
            found[self._shard_of(each.uid)].append(each)
        chosen = list(writers)
        fields = SESSIONS_A_TURN // len(chosen) if chosen else 0
        steps = []
        for writer in chosen:
            asked = dict.fromkeys([*self._suspects.get(writer.shard, ()), *found[writer.shard]])
            cursor = self._cursors.get(writer.shard, "0")
            steps.append(writer.compare(cursor, fields + 1, tuple(asked)))
        return steps

    def _some(self) -> list[SessionName]:
        some = list(islice(self._walk, SESSIONS_A_TURN))
        if not some:
            self._walk = iter(self._memory.vouched())
        return some

    def differences(self, step: Compare, reply: Reply) -> int:
        """Return how many sessions are on record or here, and not both, for the second time."""
        self._cursors[step.shard] = reply.cursor
        missing = {step.sessions[number] for number in reply.missing}
        differing = {each for each in step.sessions if self._is_here(each) is (each in missing)}
        differing |= {each for each in reply.owned if not self._is_here(each)}
        confirmed = differing & self._suspects.get(step.shard, set()) & {*step.sessions}
        self._suspects[step.shard] = differing - confirmed
        return len(confirmed)

    def _is_here(self, each: SessionName) -> bool:
        return self._memory.session_of(each.uid, each.device) == each.session
