"""The rooms in Redis, as readers and clients see them; `rooms/prelude.lua` has the form of their keys.

Tests: `tests/rooms/test_reader.py`, `tests/rooms/test_occupancy.py`.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgpack

from presence.common.errors import StoreError, StoreUnavailable
from presence.common.loop_calls import Pacer
from presence.store.keys import Keys
from presence.store.roster_table import uids_in
from presence.store.script_runner import Call, Scripting
from presence.store.shard_clients import ShardClients
from presence.watching.room_views import FoundRooms, RoomOccupancy

_OCCUPIED: Final = b" o"  # fields of a room that are no members: a uid has no space
_INVISIBLE: Final = b" i"
_MEMBER: Final = re.compile(rb"(\d{1,20}-\d{1,20}) (.)")
_STATUSES: Final = {b"-": "online", b"a": "away", b"b": "busy", b"d": "dnd", b"i": "online"}


class StoredRooms(Scripting):
    """The rooms in Redis as clients are shown them: see `presence.watching.room_watch_service.RoomReads`."""

    def __init__(self, url: str, keys: Keys) -> None:
        super().__init__(url)
        self._keys = keys

    def read(self, rooms: Sequence[str], most_members: int) -> FoundRooms:
        """Return each room, in one round trip to each server.

        A room of more than `most_members`, or of a thousand invisible ones, is without a list of them.
        """
        by_shard: dict[int, list[str]] = {}
        for room in rooms:
            by_shard.setdefault(self._keys.shard(room), []).append(room)
        calls = [occupancy_call(self._keys, shard, names, most_members) for shard, names in by_shard.items()]
        found: dict[str, RoomOccupancy | StoreUnavailable | StoreError] = {}
        pacer = Pacer()
        for names, answer in zip(by_shard.values(), self.evaluate(calls), strict=True):
            if isinstance(answer, StoreUnavailable | StoreError):
                found |= dict.fromkeys(names, answer)
                continue
            counts_and_uids = iter(msgpack.unpackb(answer, raw=True))
            for name, count, uids in zip(names, counts_and_uids, counts_and_uids, strict=True):
                pacer.note(len(uids or b""))
                members = None if uids is False else uids_in(uids)
                found[name] = RoomOccupancy(count, None if members is None else frozenset(members))
        return found


def occupancy_call(keys: Keys, shard: int, rooms: Sequence[str], most_members: int) -> Call:
    """Return a call of occupancy.lua for rooms of a shard."""
    names = [keys.room_sizes(shard), keys.room_events(shard), keys.absent(shard)]
    return Call("rooms/occupancy", names, [keys.room_prefix(shard), most_members, *rooms])


def read_largest(clients: ShardClients, keys: Keys, count: int) -> dict[str, int]:
    """Return the rooms with the most members, largest first, and the number of members of each."""

    def fill(pipe: Any, shard: int) -> None:
        pipe.execute_command("ZRANGE", keys.room_sizes(shard), 0, count - 1, "REV", "WITHSCORES")

    answers = clients.ask(keys, range(keys.shards), fill)
    rows = [row for (flat,) in answers.values() for row in zip(flat[::2], flat[1::2], strict=True)]
    rows.sort(key=lambda row: (-float(row[1]), row[0]))
    return _sizes(rows[:count])


def read_room_page(
    clients: ShardClients, keys: Keys, shard: int, position: int, size: int
) -> tuple[dict[str, int], int, int]:
    """Return some rooms of a shard with their sizes, and shard and position of the next page."""
    key = keys.room_sizes(shard)
    answer: Any = clients.at(key).zscan(key, position, count=size)
    position, rows = answer
    return _sizes(rows), shard if position else shard + 1, position


def read_room(clients: ShardClients, keys: Keys, room: str) -> tuple[int, int, str | None]:
    """Return the number of members, of these who are not invisible, and the id of the entry `occupied`."""
    key = keys.room(room)

    def fill(pipe: Any, _shard: int) -> None:
        pipe.hlen(key)
        pipe.hmget(key, [_OCCUPIED, _INVISIBLE])

    shard = keys.shard(room)
    fields, (occupied, invisible) = clients.ask(keys, [shard], fill, is_atomic=True)[shard]
    count = fields - (occupied is not None) - (invisible is not None)
    return count, count - int(invisible or 0), occupied and occupied.decode()


def read_public_counts(clients: ShardClients, keys: Keys, rooms: Iterable[str]) -> dict[str, int]:
    """Return the number of members of each room who are not invisible."""
    by_shard: dict[int, list[str]] = {}
    for room in rooms:
        by_shard.setdefault(keys.shard(room), []).append(room)

    def fill(pipe: Any, shard: int) -> None:
        for room in by_shard[shard]:
            pipe.hlen(keys.room(room))
            pipe.hmget(keys.room(room), [_OCCUPIED, _INVISIBLE])

    answers = clients.ask(keys, by_shard, fill)
    found: dict[str, int] = {}
    for shard, names in by_shard.items():
        pairs = iter(answers[shard])
        for room, fields, (occupied, invisible) in zip(names, pairs, pairs, strict=True):
            count = fields - (occupied is not None) - (invisible is not None) - int(invisible or 0)
            found[room] = max(0, count)
    return found


def read_members(
    clients: ShardClients, keys: Keys, room: str, position: int, size: int
) -> tuple[dict[str, dict[str, Any]], int]:
    """Return some members of a room, as of `member_of`, and the position of the next page; 0: none."""
    key = keys.room(room)
    answer: Any = clients.at(key).hscan(key, position, count=size)
    position, fields = answer
    members = {_text(uid): member for uid, value in fields.items() if (member := member_of(value))}
    return members, position


def read_memberships(
    clients: ShardClients, keys: Keys, uid: str, rooms: Iterable[str]
) -> dict[str, tuple[dict[str, Any] | None, str]]:
    """Return the user as a member of each room, None if the user is none, and the room's position.

    The position: the id of the last event of the user's shard that the room has; "" if it has none.
    """
    by_shard: dict[int, list[str]] = {}
    for room in rooms:
        by_shard.setdefault(keys.shard(room), []).append(room)

    def fill(pipe: Any, shard: int) -> None:
        for room in by_shard[shard]:
            pipe.hget(keys.room(room), uid)
        pipe.hget(keys.room_sources(shard), str(keys.shard(uid)))

    answers = clients.ask(keys, by_shard, fill)
    found: dict[str, tuple[dict[str, Any] | None, str]] = {}
    for shard, names in by_shard.items():
        *values, position = answers[shard]
        place = (position or b"").decode("utf-8", "replace").partition(" ")[0]
        found |= {room: (member_of(value), place) for room, value in zip(names, values, strict=True)}
    return found


def member_of(value: bytes | None) -> dict[str, Any] | None:
    """Return `status`, `invisible` and the `id` of the event that says so; None if the user is no member."""
    found = _MEMBER.fullmatch(value or b"")
    if found is None or found[2] not in _STATUSES:
        return None
    return {"status": _STATUSES[found[2]], "invisible": found[2] == b"i", "id": found[1].decode()}


def _sizes(rows: Any) -> dict[str, int]:
    return {_text(room): int(float(size)) for room, size in rows}


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
