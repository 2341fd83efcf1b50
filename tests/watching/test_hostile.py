"""A real server with a watching client, and a Redis with data that no server writes."""

import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from presence import protocol
from presence.common.clock import Clock
from presence.config.settings import Settings
from presence.protocol import Kind
from presence.server.server import Server
from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.redis_client import open_client
from tests.transports.harness import Client

KEYS = Keys()
PATIENCE_S = 30.0
LATER = "9999999999999-0"  # later than all entries of real servers, so it would be accepted
HINT = {"id": "1-0", "type": "offline", "uid": "bob", "at_ms": 1, "last_seen_ms": 1, "reason": "closed"}
HINTS = [
    b'{"a":' + b"[" * 200_000,
    *(json.dumps(HINT | {name: []}).encode() for name in HINT),
    *(json.dumps(HINT | {name: {}}).encode() for name in HINT),
    *(json.dumps(HINT | {name: 1e999}).encode() for name in HINT),
    json.dumps(HINT | {"reason": "\ud800"}).encode(),
    json.dumps(HINT | {"type": "online", "id": LATER, "reason": "\ud800", "since_ms": 2**70}).encode(),
]
SESSION = {"session": "s", "node": "n", "login_ms": 1}
RECORDS = [
    '{"id":' + "[" * 200_000,
    *(json.dumps({"id": "x", "since_ms": 1, "sessions": {"": SESSION | {name: []}}}) for name in SESSION),
    json.dumps({"id": "x", "since_ms": 1, "sessions": {"": SESSION | {"node": "\ud800"}}}),
    json.dumps({"id": "x", "since_ms": 1e999, "sessions": {"": SESSION}}),
    json.dumps({"id": "x", "since_ms": 2**70, "sessions": {"": SESSION | {"meta": '{"a":' + "[" * 10_000}}}),
]


async def answer(client: Client, id: int) -> protocol.Packet:
    """Return the answer to a request; skip pushes."""
    with trio.fail_after(PATIENCE_S):
        while (packet := await client.receive()) is not None:
            if packet.id == id:
                return packet
    raise AssertionError("the connection was closed")


@asynccontextmanager
async def ann(url: str) -> AsyncIterator[Client]:
    """A client logged in as ann."""
    server = Server(Settings(port=0, redis=url), url, 10, Clock())
    async with trio.open_nursery() as nursery:
        async with await trio.open_tcp_stream(*await nursery.start(server.serve)) as stream:
            client = Client(stream)
            await client.login("ann")
            yield client
        nursery.cancel_scope.cancel()


async def test_records_that_are_too_large_count_as_damaged(redis_server: EmbeddedRedis) -> None:
    large = "x" * 150_000  # two of them fit into no frame
    async with ann(redis_server.url) as client:
        with open_client(redis_server.url) as redis:
            for uid in ("bob", "cy"):
                record = {"id": large, "since_ms": 1, "sessions": {"": SESSION}}
                redis.hset(KEYS.online(0), uid, json.dumps(record))
        for request in (protocol.query(["bob", "cy"], id=2), protocol.watch(["bob", "cy"], id=3)):
            await client.send(request)
            states = (await answer(client, request.id or 0)).payload["presence"]
            assert {uid: state["status"] for uid, state in states.items()} == dict.fromkeys(
                ("bob", "cy"), "unknown"
            )
        with open_client(redis_server.url) as redis:
            hint = json.dumps(HINT | {"type": "online", "id": LATER, "since_ms": 2, "status": large})
            redis.publish(KEYS.user_channel("bob"), hint)
        with trio.fail_after(PATIENCE_S):
            packet = await client.receive()
        assert packet is not None
        assert packet.payload["status"] == "unknown"


async def test_hints_that_no_server_publishes_end_no_session(redis_server: EmbeddedRedis) -> None:
    last = "99999999999999-0"
    async with ann(redis_server.url) as client:
        await client.send(protocol.watch(["bob"], id=2))
        assert (await answer(client, 2)).kind == Kind.OK
        with open_client(redis_server.url) as redis:
            for hint in [*HINTS, json.dumps(HINT | {"id": last})]:
                assert redis.publish(KEYS.user_channel("bob"), hint) == 1
        with trio.fail_after(PATIENCE_S):
            while (packet := await client.receive()) is not None and packet.payload["id"] != last:
                pass
        assert packet is not None


@pytest.mark.parametrize("record", RECORDS, ids=range(len(RECORDS)))
async def test_records_that_no_server_writes_end_no_session(redis_server: EmbeddedRedis, record: str) -> None:
    async with ann(redis_server.url) as client:
        with open_client(redis_server.url) as redis:
            redis.hset(KEYS.online(0), "bob", record)
            redis.zadd(KEYS.seen(0), {"bob": float("inf")})
        for id, packet in ((2, protocol.query(["bob"], id=2)), (3, protocol.watch(["bob"], id=3))):
            await client.send(packet)
            assert (await answer(client, id)).kind == Kind.OK
        await client.beat()


async def test_a_stopped_server_leaves_no_connection_to_redis(redis_server: EmbeddedRedis) -> None:
    server = Server(Settings(port=0, redis=redis_server.url), redis_server.url, 10, Clock())
    async with trio.open_nursery() as nursery:
        async with await trio.open_tcp_stream(*await nursery.start(server.serve)) as stream:
            client = Client(stream)
            await client.login("ann")
            await client.send(protocol.query(["bob"], id=2))
            await answer(client, 2)
        nursery.cancel_scope.cancel()
    with open_client(redis_server.url) as redis, trio.fail_after(PATIENCE_S):
        while len(redis.client_list()) > 1:  # until Redis has read that they were closed
            gc.collect()  # connections that abandoned threads opened
            await trio.sleep(0.01)
