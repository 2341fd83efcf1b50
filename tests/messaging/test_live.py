"""Messages between clients of two real servers on one Redis."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

import protocol
from loadtest.proxy import Proxy
from presence.client import RecipientDisconnected, connect
from presence.clock import Clock
from presence.embedded import EmbeddedRedis
from presence.server import Server
from presence.settings import Settings
from presence.store.client import Redis, open_client
from presence.store.keys import Keys
from protocol import Kind, Packet
from tests.transports.harness import Client

KEYS = Keys()
PATIENCE_S = 10.0


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - Redis rings no bell
            await trio.sleep(0.005)


class Pair:
    """Two servers, each with its way to Redis, and a client of Redis."""

    def __init__(self, urls: Sequence[str], client: Redis) -> None:
        self.redis = client
        self.servers = [Server(Settings(port=0, redis=url), url, 100, Clock()) for url in urls]
        self._clients: list[Client] = []

    def listeners(self, number: int) -> int:
        """How many have subscribed to the control channel of a server."""
        answer: Any = self.redis.pubsub_numsub(KEYS.control_channel(self.servers[number].node.relay.node))
        count: int = answer[0][1]
        return count

    def is_on_record(self, uid: str, device: str, number: int) -> bool:
        text: Any = self.redis.hget(KEYS.online(0), uid)
        sessions = json.loads(text)["sessions"] if text else {}
        present = sessions.get(device)
        return present is not None and present["node"] == self.servers[number].node.relay.node

    async def log_in(self, number: int, uid: str, device: str = "") -> Client:
        """Log in at a server; return once Redis knows."""
        client = await self.connect(number, uid, device)
        await until(lambda: self.is_on_record(uid, device, number))
        return client

    async def connect(self, number: int, uid: str, device: str = "") -> Client:
        """Log in at a server; Redis knows of it later."""
        client = Client(await trio.open_tcp_stream(*self.addresses[number]))
        self._clients.append(client)
        await client.login(uid, device or None)
        return client

    def counted(self, number: int) -> dict[str, Any]:
        messages: Any = self.servers[number].report()["messages"]
        return dict(messages)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            self.addresses = [await nursery.start(server.serve) for server in self.servers]
            await until(lambda: self.listeners(0) and self.listeners(1))
            try:
                yield
            finally:
                for client in self._clients:
                    client.close()
                nursery.cancel_scope.cancel()


@asynccontextmanager
async def serving(
    redis_server: EmbeddedRedis, first: str | None = None, second: str | None = None
) -> AsyncIterator[Pair]:
    """Run two servers; `first` and `second` are their ways to Redis."""
    with open_client(redis_server.url) as client:
        pair = Pair([first or redis_server.url, second or redis_server.url], client)
        async with pair.serving():
            yield pair


async def received(client: Client) -> Packet:
    with trio.fail_after(PATIENCE_S):
        packet = await client.receive()
    assert packet is not None
    return packet


async def outcome(client: Client) -> tuple[int | None, int | str]:
    """The answer that comes next: its id, and how many were handed the message or why none was."""
    answer = await received(client)
    assert answer.kind in (Kind.OK, Kind.ERROR), answer
    return answer.id, answer.payload["delivered"] if answer.kind == Kind.OK else answer.payload["reason"]


async def test_many_messages_arrive_once_and_in_order(redis_server: EmbeddedRedis) -> None:
    count = 400
    async with serving(redis_server) as pair:
        ann, bob = await pair.log_in(0, "ann"), await pair.log_in(1, "bob")
        for start in range(0, count, 100):
            some = range(start, start + 100)
            await ann.send(*(protocol.message("bob", n, id=n) for n in some))
            assert [await outcome(ann) for _ in some] == [(n, 1) for n in some]
        assert [(await received(bob)).payload["body"] for _ in range(count)] == list(range(count))
        assert pair.counted(0)["calls"] < count / 4


async def test_a_message_follows_who_moves(redis_server: EmbeddedRedis) -> None:
    async with serving(redis_server) as pair:
        ann, _ = await pair.log_in(0, "ann"), await pair.log_in(0, "bob")
        moved = await pair.log_in(1, "bob")
        await ann.send(protocol.message("bob", "hello", id=1))
        assert await outcome(ann) == (1, 1)
        assert (await received(moved)).payload["body"] == "hello"


async def test_who_has_just_moved_is_found_where_he_is(redis_server: EmbeddedRedis) -> None:
    async with serving(redis_server) as pair:
        await pair.log_in(1, "bob")
        await trio.sleep(0.05)
        ann = await pair.log_in(0, "ann")
        moved = await pair.connect(0, "bob")
        await ann.send(*(protocol.message("bob", n, id=n) for n in range(40)))
        assert [await outcome(ann) for _ in range(40)] == [(n, 1) for n in range(40)]
        assert [(await received(moved)).payload["body"] for _ in range(40)] == list(range(40))


async def test_a_recipient_within_its_grace_is_waited_for(redis_server: EmbeddedRedis) -> None:
    async with serving(redis_server) as pair:
        bob = await pair.log_in(0, "bob")
        async with connect(*pair.addresses[0], uid="ann") as ann:
            bob.close()
            await until(lambda: pair.servers[0].node.core.sessions.of("bob")[0].link is None)
            assert (await ann.query(["bob"]))["bob"].status == "online"
            with pytest.raises(RecipientDisconnected) as refused:
                await ann.send_message("bob", "now or never", retry=False)
            assert 0 < (refused.value.retry_after or 0) <= Settings().disconnect_grace + Settings().tick
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ann.send_message, "bob", "when you are back")
                await trio.sleep(0.2)
                back = await pair.connect(0, "bob")
                assert (await received(back)).payload["body"] == "when you are back"


async def test_with_redis_away_messages_are_refused_and_soon_go_on(redis_server: EmbeddedRedis) -> None:
    with Proxy(redis_server.url.removeprefix("unix://")) as proxy:
        async with serving(redis_server, proxy.url) as pair:
            ann, bob = await pair.log_in(0, "ann"), await pair.log_in(1, "bob")
            proxy.refuse()
            await ann.send(protocol.message("bob", "refused", id=1))
            began = trio.current_time()
            assert await outcome(ann) == (1, "busy")
            assert trio.current_time() - began < 2.0
            proxy.heal()
            answer: tuple[int | None, int | str] = (None, "busy")
            while answer[1] == "busy":
                await trio.sleep(0.01)
                await ann.send(protocol.message("bob", "taken", id=2))
                answer = await outcome(ann)
            assert answer == (2, 1)
            assert (await received(bob)).payload["body"] == "taken"


async def test_a_server_that_has_said_goodbye_is_sent_nothing_any_more(redis_server: EmbeddedRedis) -> None:
    async with serving(redis_server) as pair, trio.open_nursery() as nursery:
        ann, bob = await pair.log_in(0, "ann"), await pair.log_in(1, "bob")
        nursery.start_soon(pair.servers[1].stop)
        assert (await received(bob)).kind == Kind.GOODBYE
        await until(lambda: not pair.listeners(1))
        assert not pair.servers[1].stopped, "bob has not closed his connection yet"
        await ann.send(protocol.message("bob", "hello", id=1))
        assert await outcome(ann) == (1, "busy")
