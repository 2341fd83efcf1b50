"""The position of a consumer group in each stream, and the detection of gaps.

A group's cursor is kept in Redis: the id delivered last. Entries between it and the oldest entry left in the
stream are missing. Lost writes show in the last entry that this consumer was given: the stream must still
have it, or have been trimmed beyond it; and the group's cursor must not be before it.

Tests: `tests/subscriber/test_gaps.py`, `tests/subscriber/test_group.py`.
"""

from collections.abc import Iterable
from typing import Any

from presence.store.redis_client import RedisError
from presence.store.shard_clients import ShardClients
from presence.subscriber.events import ZERO_ID, Entry, Gap, id_order, read_entry
from presence.subscriber.pending_entries import FREE_IDLE_MS, HANDED_BACK
from presence.subscriber.redis_connections import BLOCK_MS, PollInterval, Shards, log, unless_missing

_LAST_SEQUENCE = 2**64 - 1


class GroupCursor:
    """The position of one group in all shards. All calls raise `RedisError`."""

    def __init__(self, shards: Shards, group: str, start: str | None) -> None:
        self._shards = shards
        self._group = group
        self._start = start
        self._seen: dict[int, str] = {}  # highest entry given to this consumer
        # By shard: the position at the end of an empty stream, and its entries so far.
        self._emptied: dict[int, tuple[str, int]] = {}
        self._reported: dict[int, str] = {}  # cursor up to which no gap is to be reported
        self._poll_interval = PollInterval()

    def join(self, clients: ShardClients, shard: int, *, is_late: bool) -> None:
        """Create the group in a shard unless it exists; a shard added later is read from its first entry."""
        self._create(clients, shard, ZERO_ID if is_late else self._start)

    def note_read(self, entries: Iterable[Entry]) -> None:
        """Remember entries given to this consumer; ids rise within a shard."""
        for entry in entries:
            self._seen[entry.shard] = entry.id

    def highest_read(self, shard: int) -> str | None:
        """Return the id of the highest entry of a shard known to be given to this consumer."""
        return self._seen.get(shard)

    def find_gaps(self, clients: ShardClients, shards: Iterable[int]) -> list[Gap]:
        """Return the gaps that the next read of some shards would cross, without reading."""
        return self._poll(clients, shards, None, 0)[0]

    def read(
        self, clients: ShardClients, consumer: str, count: int
    ) -> tuple[list[Gap], list[Entry], set[int]]:
        """Read new entries, at most `count` of each reachable shard, without waiting.

        Returns:
            Gaps before them; the entries; and the shards where entries are to be had that were handed back.
        """
        return self._poll(
            clients, self._shards.selected(clients.reachable(self._shards.keys)), consumer, count
        )

    def wait(self, clients: ShardClients, consumer: str, count: int) -> list[Entry]:
        """Wait for new entries, about `BLOCK_MS`; return those that came, at most `count` of each shard."""
        if not clients.is_cluster:
            return self._read_blocking(clients, consumer, count)
        return self._poll_interval.wait(
            BLOCK_MS / 1000, clients, lambda: self._read_each(clients, consumer, count)
        )

    def _read_blocking(self, clients: ShardClients, consumer: str, count: int) -> list[Entry]:
        keys = self._shards.keys
        joined = self._shards.selected(range(keys.shards))
        names = {keys.events(shard).encode(): shard for shard in joined}
        streams: dict[Any, Any] = dict.fromkeys(names, ">")
        client = clients.at(keys.events(joined[0]))
        try:
            answer: Any = client.xreadgroup(self._group, consumer, streams, count=count, block=BLOCK_MS)
        except RedisError as error:
            if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
                raise
            return []  # Redis was emptied; the next fetch detects it
        return [read_entry(names[name], raw) for name, found in answer or () for raw in found]

    def _read_each(self, clients: ShardClients, consumer: str, count: int) -> list[Entry]:
        keys = self._shards.keys

        def fill(pipe: Any, shard: int) -> None:
            pipe.xreadgroup(self._group, consumer, {keys.events(shard): ">"}, count=count)

        shards = self._shards.selected(clients.reachable(keys))
        answers = clients.ask(keys, shards, fill, raise_on_error=False)
        return [
            read_entry(shard, raw)
            for shard, (answer,) in answers.items()
            for _, found in unless_missing(answer) or ()  # a shard was emptied; the next fetch detects it
            for raw in found
        ]

    def _poll(
        self, clients: ShardClients, shards: Iterable[int], consumer: str | None, count: int
    ) -> tuple[list[Gap], list[Entry], set[int]]:
        seen, reported = dict(self._seen), dict(self._reported)
        try:
            gaps, entries, handed_back = self._poll_shards(clients, shards, consumer, count)
        except BaseException:
            self._seen, self._reported = seen, reported  # what was found could not be reported
            raise
        for gap in gaps:
            log.warning("events missing in shard %d after %s: %s", gap.shard, gap.id, gap.reason)
        return gaps, entries, handed_back

    def _poll_shards(
        self, clients: ShardClients, shards: Iterable[int], consumer: str | None, count: int
    ) -> tuple[list[Gap], list[Entry], set[int]]:
        keys = self._shards.keys

        def fill(pipe: Any, shard: int) -> None:
            key, seen = keys.events(shard), self._seen.get(shard, ZERO_ID)
            pipe.xinfo_groups(key)
            pipe.xrange(key, count=1)
            pipe.xrange(key, seen, seen)
            if consumer:
                pipe.xreadgroup(self._group, consumer, {key: ">"}, count=count)
                pipe.xpending_range(
                    key, self._group, "-", "+", 1, consumername=HANDED_BACK, idle=FREE_IDLE_MS
                )

        answers = clients.ask(keys, shards, fill, is_atomic=True, raise_on_error=False)
        gaps: list[Gap] = []
        entries: list[Entry] = []
        handed_back: set[int] = set()
        for shard, answer in answers.items():
            groups, oldest, seen_entry, *read = map(unless_missing, answer)
            position = _last_delivered_id(self._group, groups)
            if gap := self._gap(clients, shard, position, oldest and oldest[0][0].decode(), bool(seen_entry)):
                gaps.append(gap)
            entries += [read_entry(shard, raw) for _, found in (read and read[0]) or () for raw in found]
            if read and read[1]:
                handed_back.add(shard)
        return gaps, entries, handed_back

    def _gap(
        self, clients: ShardClients, shard: int, position: str | None, oldest: str | None, seen_is_there: bool
    ) -> Gap | None:
        seen = self._seen.get(shard)
        if position is None:
            self._create(clients, shard, ZERO_ID)
            return self._lost(shard, seen or ZERO_ID)
        if seen:
            went_back = id_order(position) < id_order(seen)
            if went_back or (oldest and not seen_is_there and id_order(oldest) <= id_order(seen)):
                return self._lost(shard, seen)
        if not oldest:
            self._note_empty(clients, shard, position)
            return None
        if id_order(oldest) <= id_order(_next_id(position)) or self._reported.get(shard) == position:
            return None
        emptied_at, entries_then = self._emptied.get(shard, (ZERO_ID, 0))
        if position == emptied_at and not self._was_trimmed(clients, shard, entries_then):
            return None
        self._reported[shard] = position
        return Gap(shard, position, "trimmed")

    def _note_empty(self, clients: ShardClients, shard: int, position: str) -> None:
        """Remember whether the group has read an empty stream to its end."""
        if self._emptied.get(shard, ("", 0))[0] != position:
            info = self._info(clients, shard)
            if info["last-generated-id"] == position.encode():
                self._emptied[shard] = (position, info.get("entries-added", 0))

    def _info(self, clients: ShardClients, shard: int) -> Any:
        key = self._shards.keys.events(shard)
        return clients.at(key).xinfo_stream(key)

    def _lost(self, shard: int, after: str) -> Gap:
        self._seen.pop(shard, None)
        self._shards.note_lost_data()
        return Gap(shard, after, "lost_writes")

    def _was_trimmed(self, clients: ShardClients, shard: int, entries_then: int) -> bool:
        """Whether a stream that was empty after `entries_then` entries has been trimmed since.

        Redis before 7 does not count entries.
        """
        info = self._info(clients, shard)
        was_deleted = info.get("max-deleted-entry-id", b"") != ZERO_ID.encode()
        removed: int = info.get("entries-added", 0) - info["length"]
        return not was_deleted and removed > entries_then

    def _create(self, clients: ShardClients, shard: int, start: str | None) -> None:
        key = self._shards.keys.events(shard)
        client = clients.at(key)
        if start in {"0", ZERO_ID}:
            # Right before the oldest entry: what was trimmed before the group began is no gap.
            oldest: Any = client.xrange(key, count=1)
            start = _id_before(oldest[0][0].decode()) if oldest else ZERO_ID
        elif start is not None:
            self._reported[shard] = start if "-" in start else f"{start}-0"
        try:
            client.xgroup_create(key, self._group, start or "$", mkstream=True)
        except RedisError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise


def _last_delivered_id(group: str, groups: Any) -> str | None:
    for each in groups or ():
        if each["name"] == group.encode():
            last_id: bytes = each["last-delivered-id"]
            return last_id.decode()
    return None


def _next_id(entry_id: str) -> str:
    milliseconds, number = id_order(entry_id)
    return f"{milliseconds}-{number + 1}" if number < _LAST_SEQUENCE else f"{milliseconds + 1}-0"


def _id_before(entry_id: str) -> str:
    milliseconds, number = id_order(entry_id)
    if number:
        return f"{milliseconds}-{number - 1}"
    return f"{milliseconds - 1}-{_LAST_SEQUENCE}" if milliseconds else ZERO_ID
