"""The stream of rooms: events in a group, and a snapshot with the events after it."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from presence.rooms import (
    Gap,
    Joined,
    Left,
    Occupied,
    RoomSnapshot,
    Vacated,
    follow_rooms_sync,
    subscribe_rooms,
    subscribe_rooms_sync,
)
from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import open_client
from presence.subscriber import blocking, follower, group_cursor, snapshot
from tests.rooms.keys_by_hand import AT_MS, HandMadeRooms


@pytest.fixture(autouse=True)
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (blocking, follower, group_cursor):
        monkeypatch.setattr(module, "BLOCK_MS", 50)


@pytest.fixture
def rooms(redis_server: EmbeddedRedis) -> Iterator[HandMadeRooms]:
    with open_client(redis_server.url) as client:
        yield HandMadeRooms(client)


def test_a_group_gets_each_event_of_rooms_once_with_its_fields(
    rooms: HandMadeRooms, redis_server: EmbeddedRedis
) -> None:
    first = rooms.tell("occupied", "lobby", "ann", 1)
    rooms.tell("joined", "lobby", "bob", 2)
    rooms.tell("unheard of", "lobby")
    rooms.tell("left", "lobby", "ann", 1)
    rooms.tell("vacated", "lobby", "bob", 0, reason="idle_timeout")
    with subscribe_rooms_sync(redis_server.url, group="g", after="0") as events:
        found = list(itertools.islice(events, 4))
        assert [type(each) for each in found] == [Occupied, Joined, Left, Vacated]
        shard = rooms.keys.shard("lobby")
        assert found[0] == Occupied(shard, first, "lobby", "ann", 1, 1, AT_MS, "login", "5-0", 1)
        assert isinstance(found[3], Vacated)
        assert (found[3].uid, found[3].count, found[3].reason) == ("bob", 0, "idle_timeout")
        events.ack(found[3])
    with subscribe_rooms_sync(redis_server.url, group="g") as events:
        assert events.poll() is None


def test_an_event_that_keeps_failing_is_a_dead_letter_of_rooms(
    rooms: HandMadeRooms, redis_server: EmbeddedRedis
) -> None:
    rooms.tell("occupied", "lobby")
    with subscribe_rooms_sync(redis_server.url, group="g", after="0") as events:
        events.term(next(events), "no such game")
        events.flush()
    letters: Any = rooms.client.xrange(rooms.keys.dead(rooms.keys.shard("lobby")))
    assert [letter[b"room"] for _, letter in letters] == [b"lobby"]


def test_lost_entries_are_a_gap(rooms: HandMadeRooms, redis_server: EmbeddedRedis) -> None:
    key = rooms.keys.events(rooms.keys.shard("lobby"))
    last = rooms.tell("occupied", "lobby")
    with subscribe_rooms_sync(redis_server.url, after="0") as events:
        next(events)
        rooms.tell("vacated", "lobby", count=0)
        rooms.client.xdel(key, last)
        assert isinstance(next(events), Gap)
        assert isinstance(next(events), Vacated)


async def test_the_async_subscription_gives_the_same_events(
    rooms: HandMadeRooms, redis_server: EmbeddedRedis
) -> None:
    rooms.tell("occupied", "lobby")
    with trio.fail_after(10):
        async with subscribe_rooms(redis_server.url, group="g", after="0") as events:
            assert isinstance(await anext(events), Occupied)


def test_a_snapshot_has_what_was_written_while_it_was_read(
    rooms: HandMadeRooms, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rooms change after their page was read, and before it."""
    rooms.fill("stays", {"ann": "-"})
    rooms.fill("grows", {"ann": "-"})
    rooms.tell("occupied", "goes")
    rooms.tell("occupied", "early", count=1)

    read = snapshot.pages
    shards_read = itertools.count(1)

    def changing(*arguments: Any) -> Iterator[Any]:
        number = next(shards_read)
        if number == 1:
            rooms.fill("early", {"ann": "-", "bob": "-", "eve": "-"})
            rooms.tell("occupied", "seen")
            rooms.fill("seen", {"ann": "-", "bob": "-"})
        yield from read(*arguments)
        if number == rooms.keys.shards:
            rooms.tell("vacated", "goes", count=0)
            rooms.tell("left", "last", count=0)
            rooms.tell("vacated", "last", count=0)
            rooms.tell("joined", "grows", "bob", 2)
            rooms.tell("occupied", "comes")

    monkeypatch.setattr("presence.rooms.stream.pages", changing)
    with follow_rooms_sync(redis_server.url) as events:
        first = next(events)
        assert isinstance(first, RoomSnapshot)
        assert first.counts == {"stays": 1, "grows": 2, "early": 3, "seen": 2, "comes": 1}
        rooms.tell("vacated", "comes", count=0)
        after = next(events)
        assert isinstance(after, Vacated)
        assert after.room == "comes"


def test_a_gap_is_followed_by_a_new_snapshot(rooms: HandMadeRooms, redis_server: EmbeddedRedis) -> None:
    last = rooms.tell("occupied", "lobby")
    with follow_rooms_sync(redis_server.url) as events:
        assert isinstance(next(events), RoomSnapshot)
        rooms.tell("vacated", "lobby", count=0)
        rooms.client.xdel(rooms.keys.events(rooms.keys.shard("lobby")), last)
        found = list(itertools.islice(events, 2))
    assert [type(each) for each in found] == [Gap, RoomSnapshot]
