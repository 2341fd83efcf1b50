"""A roster that the backend keeps, as clients see it: on a real server, over a lost connection too."""

import itertools
from collections.abc import Iterator

import anyio
import pytest

from loadtest.servers import PresenceServer
from presence.client import Client, ClientOptions, PresenceChanged, connect
from presence.rosters import PresenceRosters
from presence.store.embedded import EmbeddedRedis, embedded_redis
from tests.support.backends import on_both_backends
from tests.support.server_process import running_server

FLAGS = ("--idle-timeout", "5", "--disconnect-grace", "0")
DEADLINE_S = 20.0
RUNS = itertools.count()  # each with users of its own


@pytest.fixture(scope="module")
def redis() -> Iterator[EmbeddedRedis]:
    with embedded_redis() as redis:
        yield redis


@pytest.fixture(scope="module")
def server(redis: EmbeddedRedis) -> Iterator[PresenceServer]:
    with running_server("--redis", redis.url, *FLAGS) as server:
        yield server


async def change(client: Client) -> tuple[str, str, str]:
    push = await client.receive("presence")
    assert isinstance(push, PresenceChanged)
    return push.uid, push.state.status, push.reason


@on_both_backends()
async def test_who_is_listed_is_watched_and_who_is_not_any_more_is_not(
    server: PresenceServer, redis: EmbeddedRedis
) -> None:
    streams: list[anyio.abc.SocketStream] = []

    async def open_stream() -> anyio.abc.SocketStream:
        streams.append(await anyio.connect_tcp(*server.address))
        return streams[-1]

    number = next(RUNS)
    me, bob, eve, kim, zoe = (f"{name}-{number}" for name in ("ann", "bob", "eve", "kim", "zoe"))
    options = ClientOptions(open_stream=open_stream)
    with anyio.fail_after(DEADLINE_S), PresenceRosters(redis.url) as rosters:
        rosters.put(me, [bob])
        async with connect(*server.address, uid=me, options=options) as ann:
            assert list(await ann.watch_roster()) == [bob]
            await anyio.to_thread.run_sync(rosters.add, me, [eve])
            assert await change(ann) == (eve, "offline", "watched")
            async with connect(*server.address, uid=eve):
                assert await change(ann) == (eve, "online", "login")
            assert await change(ann) == (eve, "offline", "logout")
            await ann.watch([kim])
            await anyio.to_thread.run_sync(rosters.put, me, [eve, kim])
            assert await change(ann) == (bob, "removed", "removed")
            await streams[-1].aclose()
            await anyio.to_thread.run_sync(rosters.put, me, [zoe])
            changes = {await change(ann), await change(ann)}
            assert changes == {(eve, "removed", "removed"), (zoe, "offline", "watched")}
            assert ann.watched.keys() == {kim, zoe}
