"""Reads all streams without a group: each entry once, in order within a shard, from any position.

Its position is kept in memory and not in Redis. Each read asks for a range that begins *with* the last entry
seen, which must come first. If it does not, entries were removed or lost, and a `Gap` precedes the next
entries. This is one command, so nothing can change between check and read.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from presence.store.keys import Keys
from presence.store.redis_client import RedisError
from presence.store.shard_clients import ShardClients
from presence.subscriber.events import ZERO_ID, Entry, Gap, Item, check_entry_id, id_order, read_entry
from presence.subscriber.redis_connections import BLOCK_MS, PollInterval, RedisConnections, Shards, log
from presence.subscriber.source import Source

EVENTS_PER_READ = 500  # of each shard: a fraction of a second of a busy server


class Position(NamedTuple):
    """Read on after this id: the last entry seen if `was_seen`, else only a bound."""

    id: str
    was_seen: bool


class Follower(Source[Item]):
    """A source of items from all streams. It keeps its position after a failed call: call again.

    Args:
        after: entry id after which to begin in every shard, ``0`` for all that is kept; or the id of the last
            event seen, by shard (others begin at ``0``); None for new events only.
        per_read: entries read per shard and call; None: `EVENTS_PER_READ`.
        kind: class of key names, if the streams are not those of events.

    Raises:
        TypeError, ValueError: a key of `after` is no number of a shard; see also `fetch`.
    """

    def __init__(
        self,
        connections: RedisConnections,
        prefix: str,
        after: str | Mapping[int, str] | None = None,
        *,
        per_read: int | None = None,
        kind: type[Keys] = Keys,
    ) -> None:
        super().__init__(connections)
        self._per_read = per_read
        self._poll_interval = PollInterval()
        self.shards = Shards(prefix, kind)
        if isinstance(after, Mapping):
            _check_keys(after)
        self._after = after
        self._positions: dict[int, Position] = {}
        self._buffer: deque[Item] = deque()

    @property
    def has_work(self) -> bool:
        return not self._buffer

    @property
    def positions(self) -> dict[int, str]:
        """The id up to which each shard was read."""
        return {shard: position.id for shard, position in self._positions.items()}

    def fetch(self) -> None:
        """Fetch; return after about `BLOCK_MS` without items."""
        self._connections.run_on_reachable(self._fetch, self.shards)

    def _fetch(self, clients: ShardClients) -> None:
        if not self._buffer:
            self._buffer.extend(self.read(clients))
        if not self._buffer:
            self._buffer.extend(self._wait(clients))

    def next(self) -> Item | None:
        return self._buffer.popleft() if self._buffer else None

    def read(self, clients: ShardClients) -> list[Item]:
        """Return present items without waiting: gaps first, then entries merged by id."""
        self.add_shards(clients)
        limit = self._per_read or EVENTS_PER_READ

        def fill(pipe: Any, shard: int) -> None:
            last_id, was_seen = self._positions[shard]
            begin = last_id if was_seen else f"({last_id}"
            pipe.xrange(self.shards.keys.events(shard), begin, count=limit + was_seen)

        answers = clients.ask(self.shards.keys, clients.reachable(self.shards.keys), fill)
        gaps: list[Gap] = []
        entries: list[Entry] = []
        moved: dict[int, Position] = {}
        for shard, (raw,) in answers.items():
            found = [read_entry(shard, each) for each in raw]
            gap, found, moved[shard] = self._after_position(clients, shard, found)
            if gap:
                gaps.append(gap)
            if found:
                moved[shard] = Position(found[-1].id, was_seen=True)
                entries += found
        self._positions |= moved  # only now: if a call fails, nothing was read
        for gap in gaps:
            log.warning("events missing in shard %d after %s: %s", gap.shard, gap.id, gap.reason)
            if gap.reason == "lost_writes":
                self.shards.note_lost_data()
        entries.sort(key=lambda entry: (*id_order(entry.id), entry.shard))
        return [*gaps, *entries]

    def add_shards(self, clients: ShardClients) -> None:
        """Begin to read shards that were not known yet."""
        new = self.shards.new_shards(len(self._positions), clients, self._connections.losses)
        self.shards.warn_if_missing(self.redis)
        if isinstance(self._after, Mapping) and self.shards.is_final:
            self._check_shards(self._after)
        if new and not self._positions and self._after is None:
            self.seek_ends(clients, new)
        for shard in new:
            # Streams that did not exist when reading began held nothing before it.
            self._positions.setdefault(shard, self._beginning(shard))

    def seek_ends(self, clients: ShardClients, shards: range | None = None) -> None:
        """Continue after the newest entries."""
        for shard, end in self.ends(clients, shards).items():
            self._positions[shard] = Position(end, was_seen=end != ZERO_ID)

    def ends(self, clients: ShardClients, shards: range | None = None) -> dict[int, str]:
        """Return the id of the newest entry of each shard; ``0-0`` if there is none."""
        # Concrete ids instead of "$", which would miss what is written between two reads.
        return newest_ids(clients, self.shards.keys, shards)

    def discard_buffer(self) -> None:
        self._buffer.clear()

    def _check_shards(self, after: Mapping[int, str]) -> None:
        shards = self.shards.keys.shards
        if beyond := sorted(shard for shard in after if shard >= shards):
            raise ValueError(f"after: no shard {beyond[0]}, the shards are 0 to {shards - 1}")

    def _beginning(self, shard: int) -> Position:
        if isinstance(self._after, Mapping):
            seen = self._after.get(shard)
            return Position(seen or ZERO_ID, was_seen=seen not in {None, "0", ZERO_ID})
        return Position(self._after or ZERO_ID, was_seen=False)

    def _after_position(
        self, clients: ShardClients, shard: int, found: list[Entry]
    ) -> tuple[Gap | None, list[Entry], Position]:
        """Return the gap before the entries found, the new ones, and the position if there are none."""
        position = self._positions[shard]
        if not position.was_seen:
            return None, found, position
        if found and found[0].id == position.id:
            return None, found[1:], position
        return self._without_last_seen(clients, shard, position)

    def _without_last_seen(
        self, clients: ShardClients, shard: int, position: Position
    ) -> tuple[Gap | None, list[Entry], Position]:
        """Determine, in one transaction, why the last entry seen is missing; continue after the gap."""
        key = self.shards.keys.events(shard)
        with clients.at(key).pipeline(transaction=True) as pipe:
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
        return None, [], begin  # trimmed to nothing, but the last entry seen was the newest

    def _wait(self, clients: ShardClients) -> list[Item]:
        """Wait for new entries for about `BLOCK_MS`; return the items."""
        keys = self.shards.keys
        if not clients.is_cluster:
            places: dict[Any, Any] = {keys.events(shard): at.id for shard, at in self._positions.items()}
            came = clients.at(keys.events(0)).xread(places, count=1, block=BLOCK_MS)
            return self.read(clients) if came else []
        return self._poll_interval.wait(BLOCK_MS / 1000, clients, lambda: self.read(clients))


def _check_keys(after: Mapping[int, str]) -> None:
    for shard in after:
        if not isinstance(shard, int):
            raise TypeError(f"after: its keys are numbers of shards, such as 0, not {shard!r}")
        if shard < 0:
            raise ValueError(f"after: no shard {shard}")
    for entry_id in after.values():
        check_entry_id(entry_id)


def newest_ids(
    clients: ShardClients, keys: Keys, shards: range | None = None, up_to: str = "+"
) -> dict[int, str]:
    """Return the id of each shard's newest entry at or before `up_to`; ``0-0`` if there is none."""
    shards = range(keys.shards) if shards is None else shards
    answers = clients.ask(
        keys, shards, lambda pipe, shard: pipe.xrevrange(keys.events(shard), max=up_to, count=1)
    )
    return {shard: newest[0][0].decode() if newest else ZERO_ID for shard, (newest,) in answers.items()}


def _last_generated(info: Any) -> str:
    if isinstance(info, Mapping):
        last_id: bytes = info["last-generated-id"]
        return last_id.decode()
    return ZERO_ID  # no such stream
