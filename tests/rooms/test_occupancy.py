"""What servers read of rooms to show it to clients, with keys as the projector leaves them."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from presence.common.errors import StoreError, StoreUnavailable
from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import open_client
from presence.store.room_reads import StoredRooms
from presence.watching.room_views import RoomOccupancy
from tests.rooms.keys_by_hand import HandMadeRooms

INVISIBLE_READ = 1000  # of occupancy.lua

pytestmark = pytest.mark.parametrize("shards", [1, 4])


@pytest.fixture
def rooms(redis_server: EmbeddedRedis, shards: int) -> Iterator[HandMadeRooms]:
    with open_client(redis_server.url) as client:
        yield HandMadeRooms(client, shards)


@pytest.fixture
def stored(redis_server: EmbeddedRedis, rooms: HandMadeRooms) -> Iterator[StoredRooms]:
    with closing(StoredRooms(redis_server.url, rooms.keys)) as stored:
        yield stored


def everybody(*uids: str) -> RoomOccupancy:
    return RoomOccupancy(len(uids), frozenset(uids))


def test_members_who_are_not_invisible_count_and_are_listed(
    rooms: HandMadeRooms, stored: StoredRooms
) -> None:
    rooms.fill("lobby", {"ann": "-", "bob": "i", "cy": "a", "i": "b", "zoë": "d"})
    rooms.fill("hidden", {"bob": "i"})
    assert stored.read(["lobby", "hidden", "nobody"], 10) == {
        "lobby": everybody("ann", "cy", "i", "zoë"),
        "hidden": everybody(),
        "nobody": everybody(),
    }


def test_a_room_with_more_members_than_are_shown_has_a_count_only(
    rooms: HandMadeRooms, stored: StoredRooms
) -> None:
    rooms.fill("lobby", {"ann": "-", "bob": "-", "cy": "i", "dee": "i"})
    assert stored.read(["lobby"], 2) == {"lobby": everybody("ann", "bob")}
    assert stored.read(["lobby"], 1) == {"lobby": RoomOccupancy(2)}
    assert stored.read(["lobby", "nobody"], 0) == {"lobby": RoomOccupancy(2), "nobody": RoomOccupancy(0)}


def test_a_crowd_of_invisible_members_is_not_read(rooms: HandMadeRooms, stored: StoredRooms) -> None:
    rooms.fill("lobby", {"ann": "-"} | {f"u{n}": "i" for n in range(INVISIBLE_READ)})
    assert stored.read(["lobby"], 10) == {"lobby": everybody("ann")}
    rooms.fill("lobby", {"ann": "-"} | {f"u{n}": "i" for n in range(INVISIBLE_READ + 1)})
    assert stored.read(["lobby"], 10) == {"lobby": RoomOccupancy(1)}


def test_many_rooms_of_all_shards_are_read_together(rooms: HandMadeRooms, stored: StoredRooms) -> None:
    for number in range(100):
        rooms.fill(f"r{number}", {f"u{each}": "-" for each in range(number)})
    found = stored.read([f"r{number}" for number in range(100)], 200)
    assert {name: each.count for name, each in found.items() if isinstance(each, RoomOccupancy)} == {
        f"r{number}": number for number in range(100)
    }


def test_members_whose_names_are_damaged_are_not_listed(rooms: HandMadeRooms, stored: StoredRooms) -> None:
    rooms.client.hset(rooms.keys.room("lobby"), mapping={b"\xff": b"5-0 -", b"ann": b"5-1 -"})
    assert stored.read(["lobby"], 10) == {"lobby": RoomOccupancy(2)}


def test_the_shard_of_a_room_of_another_type_fails_and_no_other(
    rooms: HandMadeRooms, stored: StoredRooms, shards: int
) -> None:
    rooms.client.set(rooms.keys.room("broken"), "x")
    rooms.fill("lobby", {"ann": "-"})
    elsewhere = (
        next(name for n in range(99) if rooms.keys.shard(name := f"r{n}") != rooms.keys.shard("broken"))
        if shards > 1
        else "lobby"
    )
    found = stored.read(["broken", elsewhere], 10)
    assert isinstance(found["broken"], StoreError)
    assert isinstance(found[elsewhere], RoomOccupancy if shards > 1 else StoreError)


def test_a_server_that_is_away_fails_all(redis_server: EmbeddedRedis, rooms: HandMadeRooms) -> None:
    with closing(StoredRooms("redis://127.0.0.1:1", rooms.keys)) as away:
        assert isinstance(away.read(["lobby"], 10)["lobby"], StoreUnavailable)
