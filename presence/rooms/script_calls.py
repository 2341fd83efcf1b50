"""Calls of the scripts of rooms, and their bounds.

What they do is in `presence/store/scripts/rooms/`: `prelude.lua` has the keys.

Tests: `tests/rooms/test_projector.py`.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgpack

from presence.store.keys import Keys
from presence.store.script_runner import Call

# Above the longest pause of a projector: another one takes over only when it has died.
LEASE_MS: Final = 1500
MAX_EVENTS_PER_READ: Final = 500  # of a shard: a few ms of Redis' time
MAX_ITEMS_PER_CALL: Final = (
    1000  # changes of members: 5 ms of Redis' time; those of the last event may exceed it
)
PAGE_USERS: Final = 100  # records of a page of the comparison, below 1 ms of Redis' time
REBUILD_PAGE_USERS: Final = 500
MAX_RECORDS_PER_CALL: Final = 500
DEFAULT_MAX_ROOMS: Final = 1_000_000  # in Redis, of all shards; some 250 bytes each
DEFAULT_KEPT: Final = 1_000_000  # entries of a shard's stream of rooms, roughly

BEGIN: Final = b"begin"
RESET: Final = b"reset"
ANY_POSITION: Final = b"-"

EVENT: Final = (
    7  # values of an event in an answer of read.lua: id, uid, at_ms, reason, letter, rooms, rooms left
)
ITEM: Final = 7  # values of a change of a member, for project.lua: op, room, uid, id, letter, at_ms, reason


def read_call(
    keys: Keys,
    source: int,
    projector: str,
    cursor: bytes,
    epoch: bytes,
    *,
    stored: Sequence[Any] = (),
    finished: bytes = b"",
    must_exist: bytes = b"",
    page: bytes = b"",
    page_users: int = PAGE_USERS,
) -> Call:
    """Return a call of read.lua for a source shard; the arguments are those of the script."""
    names = [keys.rooms_state(source), keys.events(source), keys.online(source), keys.shard_meta(source)]
    names += [keys.room_sources(source), keys.room_sizes(source), keys.absent(source)]
    packed = msgpack.packb(stored, use_bin_type=False) if stored else b""
    arguments = [projector, LEASE_MS, cursor, epoch, packed, finished, must_exist, MAX_EVENTS_PER_READ]
    return Call("rooms/read", names, [*arguments, page, page_users])


def project_call(
    keys: Keys,
    place: int,
    source: int,
    *,
    position: bytes,
    to: bytes,
    items: Sequence[bytes] = (),
    walk: bytes = b"",
    kept: int = DEFAULT_KEPT,
    tells_members: bool = False,
    max_rooms: int = DEFAULT_MAX_ROOMS,
) -> Call:
    """Return a call of project.lua for the rooms of a shard, with items one after the other."""
    names = [keys.room_sources(place), keys.room_events(place), keys.room_sizes(place), keys.absent(place)]
    bounds = [kept, "all" if tells_members else "", max(1, max_rooms // keys.shards)]
    packed = msgpack.packb(items, use_bin_type=False) if items else b""
    return Call(
        "rooms/project", names, [source, position, to, keys.room_prefix(place), *bounds, walk, packed]
    )


def records_call(keys: Keys, source: int, uids: Sequence[bytes]) -> Call:
    """Return a call of records.lua."""
    return Call("rooms/records", [keys.online(source), keys.events(source), keys.absent(source)], [*uids])


def unpacked(answer: bytes) -> list[Any]:
    """Return the answer of a script; texts are bytes."""
    values: list[Any] = msgpack.unpackb(answer, raw=True, strict_map_key=False)
    return values
