"""Reading all streams without a group: each entry once, in order within a shard, from where one likes.

Where it stands is kept here and not in Redis. At every turn it looks for the last entry that it saw: a range
that begins *with* that entry must return it first. If it does not, entries were removed or lost, and a `Gap`
comes before what follows. The answer is one command's, so nothing can change between look and read.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from presence.store.client import RedisError
from presence.store.shard_clients import ShardClients
from presence.subscriber.connection import BLOCK_MS, PollInterval, RedisConnections, Shards, Source, log
from presence.subscriber.events import ZERO_ID, Entry, Gap, Item, id_order, read_entry

EVENTS_PER_READ = 500  # of each shard: a fraction of a second of a busy server


class Position(NamedTuple):
    """Where reading goes on: after this id, which was an entry if `was_seen`, else only a bound."""

    id: str
    was_seen: bool


class Follower(Source[Item]):
    """A source of items from all streams. It keeps its place over failed calls: call again.

    Args:
        after: entry id after which to begin in every shard, ``0`` for all that is kept; or the id of the
            last event that was seen, by shard (others begin at ``0``); None for new events only.
        per_read: how many entries of each shard are read at once; None: `EVENTS_PER_READ`.
    """

    def __init__(
        self,
        link: RedisConnections,
        prefix: str,
        after: str | Mapping[int, str] | None = None,
        *,
        per_read: int | None = None,
    ) -> None:
        super().__init__(link)
        self._per_read = per_read
        self._looks = PollInterval()
        self.shards = Shards(prefix)
        self._after = after
        self._positions: dict[int, Position] = {}
        self._buffer: deque[Item] = deque()

    @property
    def has_work(self) -> bool:
        """See `Source`."""
        return not self._buffer

    @property
    def positions(self) -> dict[int, str]:
        """The id up to which each shard was read."""
        return {shard: position.id for shard, position in self._positions.items()}

    def fetch(self) -> None:
        """See `Source`; there are none after about `BLOCK_MS`."""
        self._link.turn(self._fetch, self.shards)

    def _fetch(self, access: ShardClients) -> None:
        if not self._buffer:
            self._buffer.extend(self.read(access))
        if not self._buffer:
            self._buffer.extend(self._wait(access))

    def take(self) -> Item | None:
        """See `Source`."""
        return self._buffer.popleft() if self._buffer else None

    def read(self, access: ShardClients) -> list[Item]:
        """Return what there is now: gaps first, then entries merged by id. Returns without waiting."""
        self.add_shards(access)
        most = self._per_read or EVENTS_PER_READ

        def fill(pipe: Any, shard: int) -> None:
            last_id, was_seen = self._positions[shard]
            begin = last_id if was_seen else f"({last_id}"
            pipe.xrange(self.shards.keys.events(shard), begin, count=most + was_seen)

        answers = access.ask(self.shards.keys, access.reachable(self.shards.keys), fill)
        gaps: list[Gap] = []
        entries: list[Entry] = []
        moved: dict[int, Position] = {}
        for shard, (raw,) in answers.items():
            found = [read_entry(shard, each) for each in raw]
            gap, found, moved[shard] = self._after_position(access, shard, found)
            if gap:
                gaps.append(gap)
            if found:
                moved[shard] = Position(found[-1].id, was_seen=True)
                entries += found
        self._positions |= moved  # only now: if a call fails, nothing of this turn was read
        for gap in gaps:
            log.warning("events missing in shard %d after %s: %s", gap.shard, gap.id, gap.reason)
        entries.sort(key=lambda entry: (*id_order(entry.id), entry.shard))
        return [*gaps, *entries]

    def add_shards(self, access: ShardClients) -> None:
        """Take up shards that were not known yet."""
        new = self.shards.after(len(self._positions), access)
        if new and not self._positions and self._after is None:
            self.seek_ends(access, new)
        for shard in new:
            # Streams that were not there when reading began held nothing before it.
            self._positions.setdefault(shard, self._beginning(shard))

    def seek_ends(self, access: ShardClients, shards: range | None = None) -> None:
        """Go on after what is there now."""
        for shard, end in self.ends(access, shards).items():
            self._positions[shard] = Position(end, was_seen=end != ZERO_ID)

    def ends(self, access: ShardClients, shards: range | None = None) -> dict[int, str]:
        """Return the id of the newest entry of each shard; ``0-0`` where there is none."""
        shards = range(self.shards.keys.shards) if shards is None else shards
        # Concrete ids instead of "$", which would miss what is written between two reads.
        keys = self.shards.keys
        answers = access.ask(keys, shards, lambda pipe, shard: pipe.xrevrange(keys.events(shard), count=1))
        return {shard: newest[0][0].decode() if newest else ZERO_ID for shard, (newest,) in answers.items()}

    def drop(self) -> None:
        """Forget what was read and not taken."""
        self._buffer.clear()

    def _beginning(self, shard: int) -> Position:
        if isinstance(self._after, Mapping):
            seen = self._after.get(shard)
            return Position(seen or ZERO_ID, was_seen=seen not in {None, "0", ZERO_ID})
        return Position(self._after or ZERO_ID, was_seen=False)

    def _after_position(
        self, access: ShardClients, shard: int, found: list[Entry]
    ) -> tuple[Gap | None, list[Entry], Position]:
        """Return the gap before what was found, what is new of it, and the position if nothing is."""
        position = self._positions[shard]
        if not position.was_seen:
            return None, found, position
        if found and found[0].id == position.id:
            return None, found[1:], position
        return self._without_last_seen(access, shard, position)

    def _without_last_seen(
        self, access: ShardClients, shard: int, position: Position
    ) -> tuple[Gap | None, list[Entry], Position]:
        """Find out, in one transaction, why the last entry seen is not there; begin where it is sound."""
        key = self.shards.keys.events(shard)
        with access.at(key).pipeline(transaction=True) as pipe:
            pipe.xrange(key, position.id, count=EVENTS_PER_READ)
            pipe.xrange(key, count=1)
            pipe.xrevrange(key, count=1)
            pipe.xinfo_stream(key)
            raw, oldest, newest, info = pipe.execute(raise_on_error=False)
        for answer in (raw, oldest, newest):
            if isinstance(answer, RedisError):
                raise answer
        found = [read_entry(shard, each) for each in raw]
        if found:
            was_trimmed = id_order(oldest[0][0].decode()) > id_order(position.id)
            return Gap(shard, position.id, "trimmed" if was_trimmed else "lost_writes"), found, position
        last_id = _last_generated(info)
        begin = (
            Position(newest[0][0].decode(), was_seen=True) if newest else Position(last_id, was_seen=False)
        )
        if id_order(last_id) < id_order(position.id):
            return Gap(shard, position.id, "lost_writes"), [], begin
        if id_order(last_id) > id_order(position.id):
            return Gap(shard, position.id, "trimmed"), [], begin
        return None, [], begin  # trimmed to nothing, but nothing came after what was seen

    def _wait(self, access: ShardClients) -> list[Item]:
        """Wait until some stream goes on, for about `BLOCK_MS`; return what there is then."""
        keys = self.shards.keys
        if not access.is_cluster:
            places: dict[Any, Any] = {keys.events(shard): at.id for shard, at in self._positions.items()}
            came = access.at(keys.events(0)).xread(places, count=1, block=BLOCK_MS)
            return self.read(access) if came else []
        return self._looks.wait(BLOCK_MS / 1000, access, lambda: self.read(access))


def _last_generated(info: Any) -> str:
    if isinstance(info, Mapping):
        last_id: bytes = info["last-generated-id"]
        return last_id.decode()
    return ZERO_ID  # no such stream
