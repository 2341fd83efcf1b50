"""How far a consumer group has come in each stream, and whether it missed something on the way.

A group's place is kept in Redis, the id that was delivered last. Entries between it and the oldest that the
stream still has are missing. Whether Redis lost writes shows in what this consumer was given: Redis must
still have it, or entries older than all that is left; and the group must not have gone back behind it.
"""

from collections.abc import Iterable
from typing import Any

from presence.store.client import RedisError
from presence.store.shard_clients import ShardClients
from presence.subscriber.connection import Shards, log
from presence.subscriber.events import ZERO_ID, Entry, Gap, id_order, read_entry

_LAST_SEQUENCE = 2**64 - 1


class GroupCursor:
    """Where one group stands in all shards. All calls raise `RedisError`."""

    def __init__(self, shards: Shards, group: str, start: str | None) -> None:
        self._shards = shards
        self._group = group
        self._start = start
        self._seen: dict[int, str] = {}  # highest entry that this consumer was given
        self._emptied: dict[int, tuple[str, int]] = {}  # place at the end of an empty stream, entries so far
        self._told: dict[int, str] = {}  # place of the group up to which no gap is to be told

    def join(self, access: ShardClients, shard: int, *, is_late: bool) -> None:
        """Create the group in a shard, unless it is there; a shard that came late is read from its first."""
        self._create(access, shard, ZERO_ID if is_late else self._start)

    def saw(self, entries: Iterable[Entry]) -> None:
        """Remember what this consumer was given; ids rise within a shard."""
        for entry in entries:
            self._seen[entry.shard] = entry.id

    def seen(self, shard: int) -> str | None:
        """Return the highest entry of a shard that this consumer was given, as far as it knows."""
        return self._seen.get(shard)

    def check(self, access: ShardClients, shards: Iterable[int]) -> list[Gap]:
        """Return the gaps that the next read of some shards would cross, without reading."""
        return self._look(access, shards, None, 0)[0]

    def read(self, access: ShardClients, consumer: str, count: int) -> tuple[list[Gap], list[Entry]]:
        """Read new entries, at most `count` of each shard in reach, without waiting; gaps come first."""
        return self._look(access, access.reachable(self._shards.keys), consumer, count)

    def _look(
        self, access: ShardClients, shards: Iterable[int], consumer: str | None, count: int
    ) -> tuple[list[Gap], list[Entry]]:
        seen, told = dict(self._seen), dict(self._told)
        try:
            gaps, entries = self._look_at(access, shards, consumer, count)
        except BaseException:
            self._seen, self._told = seen, told  # what was found in some shards could not be told
            raise
        for gap in gaps:
            log.warning("events missing in shard %d after %s: %s", gap.shard, gap.id, gap.reason)
        return gaps, entries

    def _look_at(
        self, access: ShardClients, shards: Iterable[int], consumer: str | None, count: int
    ) -> tuple[list[Gap], list[Entry]]:
        keys = self._shards.keys

        def fill(pipe: Any, shard: int) -> None:
            key, seen = keys.events(shard), self._seen.get(shard, ZERO_ID)
            pipe.xinfo_groups(key)
            pipe.xrange(key, count=1)
            pipe.xrange(key, seen, seen)
            if consumer:
                pipe.xreadgroup(self._group, consumer, {key: ">"}, count=count)

        answers = access.ask(keys, shards, fill, is_atomic=True, raise_on_error=False)
        gaps: list[Gap] = []
        entries: list[Entry] = []
        for shard, answer in answers.items():
            groups, oldest, seen_entry, *read = map(unless_missing, answer)
            place = _place_of(self._group, groups)
            if gap := self._gap(access, shard, place, oldest and oldest[0][0].decode(), bool(seen_entry)):
                gaps.append(gap)
            entries += [read_entry(shard, raw) for _, found in (read and read[0]) or () for raw in found]
        return gaps, entries

    def _gap(
        self, access: ShardClients, shard: int, place: str | None, oldest: str | None, seen_is_there: bool
    ) -> Gap | None:
        seen = self._seen.get(shard)
        if place is None:
            self._create(access, shard, ZERO_ID)
            return self._lost(shard, seen or ZERO_ID)
        if seen:
            went_back = id_order(place) < id_order(seen)
            if went_back or (oldest and not seen_is_there and id_order(oldest) <= id_order(seen)):
                return self._lost(shard, seen)
        if not oldest:
            self._note_empty(access, shard, place)
            return None
        if id_order(oldest) <= id_order(_next_id(place)) or self._told.get(shard) == place:
            return None
        emptied_at, entries_then = self._emptied.get(shard, (ZERO_ID, 0))
        if place == emptied_at and not self._was_trimmed(access, shard, entries_then):
            return None
        self._told[shard] = place
        return Gap(shard, place, "trimmed")

    def _note_empty(self, access: ShardClients, shard: int, place: str) -> None:
        """Remember of a stream that is empty whether the group has come to its end."""
        if self._emptied.get(shard, ("", 0))[0] != place:
            info = self._info(access, shard)
            if info["last-generated-id"] == place.encode():
                self._emptied[shard] = (place, info.get("entries-added", 0))

    def _info(self, access: ShardClients, shard: int) -> Any:
        key = self._shards.keys.events(shard)
        return access.at(key).xinfo_stream(key)

    def _lost(self, shard: int, after: str) -> Gap:
        self._seen.pop(shard, None)
        return Gap(shard, after, "lost_writes")

    def _was_trimmed(self, access: ShardClients, shard: int, entries_then: int) -> bool:
        """Whether a stream that once had seen so many entries, and kept none, has lost any since.

        Servers before 7 do not count them.
        """
        info = self._info(access, shard)
        was_deleted = info.get("max-deleted-entry-id", b"") != ZERO_ID.encode()
        removed: int = info.get("entries-added", 0) - info["length"]
        return not was_deleted and removed > entries_then

    def _create(self, access: ShardClients, shard: int, start: str | None) -> None:
        key = self._shards.keys.events(shard)
        client = access.at(key)
        if start in {"0", ZERO_ID}:
            # Right before the oldest entry: what was trimmed before the group began is no gap of the group.
            oldest: Any = client.xrange(key, count=1)
            start = _id_before(oldest[0][0].decode()) if oldest else ZERO_ID
        elif start is not None:
            self._told[shard] = start if "-" in start else f"{start}-0"
        try:
            client.xgroup_create(key, self._group, start or "$", mkstream=True)
        except RedisError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise


def unless_missing(answer: Any) -> Any:
    """Return the answer, or None where the stream or the group is not there."""
    if isinstance(answer, RedisError):
        if str(answer).startswith(("NOGROUP", "no such key")):
            return None
        raise answer
    return answer


def _place_of(group: str, groups: Any) -> str | None:
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
