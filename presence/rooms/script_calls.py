"""Calls of the scripts of rooms, and their bounds.

What they do is in `presence/store/scripts/rooms/`: `prelude.lua` has the keys.

Tests: `tests/rooms/test_projector.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgpack

from presence.store.keys import Keys
from presence.store.script_runner import Call

# Above the longest pause of a projector: another one takes over only when it has died.
LEASE_MS: Final = 1500
MAX_EVENTS_PER_READ: Final = 500  # of a shard: a few ms of Redis' time
MAX_ITEMS_PER_CALL: Final = 1000  # changes of members: 5 ms of Redis' time; the last event may exceed it
PAGE_USERS: Final = 100  # records of a page of the comparison, below 1 ms of Redis' time
REBUILD_PAGE_USERS: Final = 500
MAX_RECORDS_PER_CALL: Final = 500
DEFAULT_MAX_ROOMS: Final = 1_000_000  # in Redis, of all shards; some 250 bytes each
DEFAULT_KEPT: Final = 1_000_000  # entries of a shard's stream of rooms, roughly

BEGIN: Final = b"begin"
RESET: Final = b"reset"
ANY_POSITION: Final = b"-"

ITEM: Final = 4  # values of a change of a member, see project.lua

# What items say, see project.lua
EVENTS: Final = "events"
RECORDS: Final = "records"
REMOVALS: Final = "removals"


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
    arguments = [projector, LEASE_MS, cursor, epoch, packed, finished, must_exist]
    bounds = [MAX_EVENTS_PER_READ, MAX_ITEMS_PER_CALL]
    return Call("rooms/read", names, [*arguments, *bounds, page, page_users])


def project_call(
    keys: Keys,
    place: int,
    source: int,
    *,
    position: bytes,
    to: bytes,
    groups: Sequence[Any] = (),
    kind: str = EVENTS,
    walk: bytes = b"",
    kept: int = DEFAULT_KEPT,
    has_member_events: bool = False,
    max_rooms: int = DEFAULT_MAX_ROOMS,
) -> Call:
    """Return a call of project.lua for the rooms of a shard.

    Args:
        groups: each room, followed by the number of values of its items, and these.
        kind: what these items say.
    """
    names = [keys.room_sources(place), keys.room_events(place), keys.room_sizes(place), keys.absent(place)]
    bounds = [kept, "all" if has_member_events else "", max(1, max_rooms // keys.shards)]
    packed = msgpack.packb(groups, use_bin_type=False) if groups else b""
    what = [walk, keys.room_channel, kind, packed]
    return Call("rooms/project", names, [source, position, to, keys.room_prefix(place), *bounds, *what])


def in_calls(items: Mapping[bytes, Sequence[bytes]]) -> Iterator[list[Any]]:
    """Yield items, given by room, as groups for a call each, whose items may be applied in any order."""
    groups: list[Any] = []
    size, most = 0, ITEM * MAX_ITEMS_PER_CALL
    for room, some in items.items():
        for first in range(0, len(some), most):
            part = some[first : first + most]
            if size + len(part) > most:
                yield groups
                groups, size = [], 0
            groups += (room, len(part), *part)
            size += len(part)
    if groups:
        yield groups


def records_call(keys: Keys, source: int, uids: Sequence[bytes]) -> Call:
    """Return a call of records.lua."""
    names = [keys.online(source), keys.events(source), keys.rooms_state(source), keys.absent(source)]
    return Call("rooms/records", names, [*uids])


def unpacked(answer: bytes) -> list[Any]:
    """Return the answer of a script; texts are bytes."""
    values: list[Any] = msgpack.unpackb(answer, raw=True, strict_map_key=False)
    return values
