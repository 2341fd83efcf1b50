"""Watched rooms, as clients see them: on a real server, over a lost connection and a renewed token, too."""

import itertools
import time
from collections.abc import Iterator
from typing import Any

import anyio
import jwt
import pytest

from loadtest.servers import PresenceServer
from presence.client import Client, ClientOptions, NotAllowed, RoomChanged, RoomState, Unsupported, connect
from presence.store.embedded import EmbeddedRedis, embedded_redis
from tests.support.backends import on_both_backends
from tests.support.credentials import AUDIENCE, SECRET, write_keys
from tests.support.server_process import running_server

FLAGS = ("--idle-timeout", "5", "--disconnect-grace", "0", "--max-listed-members", "2", "--rooms")
DEADLINE_S = 30.0
RUNS = itertools.count()  # each with rooms of its own


@pytest.fixture(scope="module")
def redis() -> Iterator[EmbeddedRedis]:
    with embedded_redis() as redis:
        yield redis


@pytest.fixture(scope="module")
def server(redis: EmbeddedRedis) -> Iterator[PresenceServer]:
    with running_server("--redis", redis.url, *FLAGS, "open") as server:
        yield server


@pytest.fixture(scope="module")
def claimed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PresenceServer]:
    keys = write_keys(tmp_path_factory.mktemp("keys") / "keys.json", {"a": SECRET})
    with running_server("--token-keys", str(keys), *FLAGS, "claimed") as server:
        yield server


@pytest.fixture(scope="module")
def without_rooms() -> Iterator[PresenceServer]:
    with running_server() as server:
        yield server


def state(count: int, *members: str) -> RoomState:
    return RoomState(count, frozenset(members))


async def until(client: Client, room: str, wanted: RoomState | None) -> RoomChanged:
    """Read changes until a room is so; between two changes others may be reported together."""
    async for change in client.room_changes():
        if isinstance(change, RoomChanged) and (change.room, change.state) == (room, wanted):
            return change
    raise AssertionError("unreachable")


@on_both_backends()
async def test_members_come_and_go_and_a_lost_connection_hides_nothing(server: PresenceServer) -> None:
    streams: list[anyio.abc.SocketStream] = []

    async def open_stream() -> anyio.abc.SocketStream:
        streams.append(await anyio.connect_tcp(*server.address))
        return streams[-1]

    lobby, hall = (f"{name}-{next(RUNS)}" for name in ("lobby", "hall"))
    options = ClientOptions(open_stream=open_stream)
    with anyio.fail_after(DEADLINE_S):
        async with connect(*server.address, uid="ann", options=options) as ann:
            assert await ann.watch_rooms([lobby, hall]) == {lobby: state(0), hall: state(0)}
            async with connect(*server.address, uid="bob", rooms=[lobby]) as bob:
                change = await until(ann, lobby, state(1, "bob"))
                assert change.joined == {"bob"}
                async with connect(*server.address, uid="eve", rooms=[lobby]):
                    await until(ann, lobby, state(2, "bob", "eve"))
                    async with connect(*server.address, uid="kim", rooms=[lobby]):
                        assert not (await until(ann, lobby, RoomState(3))).left, "too many to show"
                    await until(ann, lobby, state(2, "bob", "eve"))
                    await streams[-1].aclose()
                    await bob.update(rooms=[hall])
                await until(ann, hall, state(1, "bob"))
                if ann.watched_rooms[lobby].count:
                    await until(ann, lobby, state(0))
                await bob.update(status="invisible")
                assert (await until(ann, hall, state(0))).left == {"bob"}
            assert ann.watched_rooms == {lobby: state(0), hall: state(0)}
            assert await ann.query_rooms([lobby]) == {lobby: state(0)}
            await ann.unwatch_rooms([lobby])
            async with (
                connect(*server.address, uid="bob", rooms=[lobby]),
                connect(*server.address, uid="eve", rooms=[hall]),
            ):
                await until(ann, hall, state(1, "eve"))
            assert ann.watched_rooms.keys() == {hall}


def of(uid: str, **rooms: Any) -> str:
    claims = {"sub": uid, "aud": AUDIENCE, "exp": time.time() + 3600, "rooms": rooms}
    return jwt.encode(claims, SECRET, "HS256", headers={"kid": "a"})


@on_both_backends()
async def test_the_token_says_what_is_watched_and_a_renewed_one_says_it_anew(claimed: PresenceServer) -> None:
    lobby, hall = (f"{name}-{next(RUNS)}" for name in ("lobby", "hall"))
    with anyio.fail_after(DEADLINE_S):
        async with (
            connect(*claimed.address, token=of("bob", **{"in": [lobby]})) as bob,
            connect(*claimed.address, token=of("ann", watch=[lobby, "hall*"])) as ann,
        ):
            assert bob.joined == (lobby,)
            with pytest.raises(NotAllowed):
                await ann.watch_rooms([lobby, "other"])
            assert ann.watched_rooms == {}
            await ann.watch_rooms([lobby, hall])
            if ann.watched_rooms[lobby].count == 0:  # bob's login is not in Redis yet
                await until(ann, lobby, RoomState(1))
            await ann.update(token=of("ann", watch=["*"], members=True))
            await until(ann, lobby, state(1, "bob"))
            await ann.update(token=of("ann", watch=[hall], members=True))
            await until(ann, lobby, None)
            assert ann.watched_rooms == {hall: state(0)}


@on_both_backends()
async def test_a_server_without_rooms_says_so(without_rooms: PresenceServer) -> None:
    async with connect(*without_rooms.address, uid="ann") as ann:
        for call in (ann.watch_rooms, ann.query_rooms):
            with pytest.raises(Unsupported):
                await call(["lobby"])
        await ann.unwatch_rooms(["lobby"])
