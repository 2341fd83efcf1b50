"""The reader's view of rooms, with keys as the projector leaves them."""

from collections.abc import Iterator
from typing import Any

import pytest

from presence.reader import PresenceReader, Room
from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import open_client
from tests.rooms.keys_by_hand import AT_MS, HandMadeRooms

pytestmark = pytest.mark.parametrize("shards", [1, 4])


@pytest.fixture
def rooms(redis_server: EmbeddedRedis, shards: int) -> Iterator[HandMadeRooms]:
    with open_client(redis_server.url) as client:
        yield HandMadeRooms(client, shards)


@pytest.fixture
def reader(redis_server: EmbeddedRedis) -> Iterator[PresenceReader]:
    with PresenceReader(redis_server.url) as reader:
        yield reader


def test_a_room_has_the_numbers_of_its_members_and_since_when(
    rooms: HandMadeRooms, reader: PresenceReader
) -> None:
    rooms.fill("lobby", {"ann": "-", "bob": "i", "eve": "i"})
    rooms.fill("game:1", {"ann": "d"})
    assert reader.room("lobby") == Room("lobby", 3, 1, AT_MS, f"{AT_MS}-0")
    assert reader.room("game:1") == Room("game:1", 1, 1, AT_MS, f"{AT_MS}-0")
    assert reader.room("nobody") == Room("nobody", 0, 0, None, None)


def test_the_largest_rooms_of_all_shards_come_first(rooms: HandMadeRooms, reader: PresenceReader) -> None:
    for size in range(1, 31):
        rooms.fill(f"r{size}", {f"u{n}": "-" for n in range(size)})
    assert reader.rooms(largest=3) == {"r30": 30, "r29": 29, "r28": 28}
    assert list(reader.rooms()) == [f"r{size}" for size in range(30, 0, -1)]
    for count in (0, 1001):
        with pytest.raises(ValueError, match="largest"):
            reader.rooms(largest=count)


def test_pages_have_each_room(rooms: HandMadeRooms, reader: PresenceReader) -> None:
    names = {f"room-{n}" for n in range(500)}
    for name in names:
        rooms.fill(name, {"ann": "-"})
    found: list[str] = []
    cursor = None
    while True:
        page = reader.room_page(cursor, size=100)
        found += page.rooms
        if (cursor := page.cursor) is None:
            break
    assert len(found) >= 500
    assert {*found} == names
    with pytest.raises(ValueError, match="cursor"):
        reader.room_page("9-0")


def test_pages_of_members_have_each_user_with_the_status(
    rooms: HandMadeRooms, reader: PresenceReader
) -> None:
    letters = {f"user-{n}": "-abdi"[n % 5] for n in range(1500)}
    rooms.fill("lobby", letters)
    found: dict[str, dict[str, Any]] = {}
    cursor = None
    while True:
        page = reader.members("lobby", cursor, size=100)
        assert len(page.members) <= 200
        found |= page.members
        if (cursor := page.cursor) is None:
            break
    assert found.keys() == letters.keys()
    assert found["user-1"] == {"status": "away", "invisible": False, "id": "5-1"}
    assert found["user-4"] == {"status": "online", "invisible": True, "id": "5-4"}
    assert reader.members("nobody").members == {}


def test_what_no_room_can_be_is_an_error(rooms: HandMadeRooms, reader: PresenceReader) -> None:
    for name in ("", "a b", "x" * 65):
        with pytest.raises(ValueError, match="not a valid name of a room"):
            reader.room(name)
    for cursor in ("x", "-1", "1-2"):
        with pytest.raises(ValueError, match="cursor"):
            reader.members("lobby", cursor)
    rooms.client.hset(rooms.keys.room("lobby"), "odd", "damaged")
    assert reader.members("lobby").members == {}
