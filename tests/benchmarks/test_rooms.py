"""The benchmark `rooms`: what its load writes, its count of changes, and its judge of the stream."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from benchmarks.rooms.__main__ import parse
from benchmarks.rooms.costs import WAYS
from benchmarks.rooms.load import RoomLoad
from benchmarks.rooms.stream_judge import judge_stream
from loadtest.room_members import stored_members
from presence.rooms.projector import RoomProjector
from presence.store.embedded import EmbeddedRedis, embedded_redis
from presence.store.keys import Keys
from presence.store.redis_client import open_client


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with embedded_redis() as server:
        yield server


@pytest.fixture(params=[1, 3])
def load(server: EmbeddedRedis, request: pytest.FixtureRequest) -> Iterator[RoomLoad]:
    with open_client(server.url) as client:
        client.flushall()
    with closing(RoomLoad(server.url, Keys(shards=request.param))) as load:
        load.mark()
        yield load


def project(server: EmbeddedRedis, load: RoomLoad) -> Any:
    """Let a projector apply all; return its counters, and what is in Redis then."""
    now = [0.0]
    projector = RoomProjector(server.url, shards=load.keys.shards, clock=lambda: now[0])
    with closing(projector), open_client(server.url) as client:
        for _ in range(200):
            projector.run_once()
            now[0] += 0.2
            if load.is_caught_up(client):
                return projector.counters, stored_members(lambda _key: client, load.keys)
    raise AssertionError("the projector has not caught up")


def test_members_are_what_the_load_has_written(server: EmbeddedRedis, load: RoomLoad) -> None:
    for number in range(20):
        load.show(f"u{number}", ("lobby", f"game-{number % 3}"), "away" if number % 2 else "online")
    load.show("u3", ("lobby",), "invisible")
    load.end("u4")
    load.write(4)
    load.mark()
    _, members = project(server, load)
    assert members == load.expected()
    assert members["lobby"]["u3"] == "i"
    assert "u4" not in members["lobby"]


def test_an_event_is_a_change_for_each_of_its_rooms(server: EmbeddedRedis, load: RoomLoad) -> None:
    before = load.changes
    load.show("ann", ("a", "b"))
    load.show("ann", ("b", "c"))
    load.show("ann", ("b", "c"))
    load.end("ann")
    assert load.changes - before == 2 + 3 + 2


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_each_way_lets_users_move(way: Any) -> None:
    assert all(way.rooms_of(user, 0, 100) != way.rooms_of(user, 1, 100) for user in range(100))


def entry(type: str, room: str = "lobby", event: str = "1-0") -> dict[bytes, bytes]:
    fields = {"type": type, "room": room, "uid": "ann", "event_id": event}
    return {name.encode(): value.encode() for name, value in fields.items()}


def test_rooms_that_are_occupied_and_vacated_in_turn_are_right() -> None:
    entries = [entry("occupied"), entry("vacated", event="2-0"), entry("occupied", event="3-0")]
    verdict = judge_stream(entries, {b"lobby"})
    assert (verdict.entries, verdict.broken) == (3, [])


@pytest.mark.parametrize(
    "entries",
    [
        [entry("occupied"), entry("occupied", event="2-0")],
        [entry("vacated")],
        [entry("occupied"), entry("joined", event="2-0"), entry("joined", event="2-0")],
        [entry("occupied"), entry("vacated", event="2-0")],
        [entry("occupied", room="other")],
    ],
)
def test_others_are_wrong(entries: list[dict[bytes, bytes]]) -> None:
    assert judge_stream(entries, {b"lobby"}).broken


def test_a_part_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SystemExit):
        parse(["--parts", "costs,other"])
