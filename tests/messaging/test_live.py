"""Messages between clients of two real servers on one Redis."""

import json
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import pytest
import trio

from presence import protocol
from presence.client import RecipientDisconnected, connect
from presence.common.clock import Clock
from presence.config.settings import Settings
from presence.protocol import Kind, Packet
from presence.server.server import Server
from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.redis_client import Redis, open_client
from presence.store.script_runner import digest
from tests.support.proxy import Proxy
from tests.support.waiting import until
from tests.transports.harness import Client

KEYS = Keys()
PATIENCE_S = 10.0
SENDERS, RECIPIENTS = ["ann", "abe", "amy"], ["bob", "ben", "bea", "bix"]
MESSAGES = 120  # of each sender
FAULTS = 12
MOVES = 8


class Pair:
    """Two servers, each with its own path to Redis, and a client of Redis."""

    def __init__(self, urls: Sequence[str], client: Redis) -> None:
        self.redis = client
        self.servers = [Server(Settings(port=0, redis=url), url, 100, Clock()) for url in urls]
        self._clients: list[Client] = []

    def listeners(self, number: int) -> int:
        """Return the number of subscribers of a server's control channel."""
        answer: Any = self.redis.pubsub_numsub(KEYS.control_channel(self.servers[number].node.relay.node))
        count: int = answer[0][1]
        return count

    def is_on_record(self, uid: str, device: str, number: int) -> bool:
        text: Any = self.redis.hget(KEYS.online(0), uid)
        sessions = json.loads(text)["sessions"] if text else {}
        present = sessions.get(device)
        return present is not None and present["node"] == self.servers[number].node.relay.node

    async def log_in(self, number: int, uid: str, device: str = "", *, confirms: bool = False) -> Client:
        """Log in on a server; return when Redis has the record."""
        client = await self.connect(number, uid, device, confirms=confirms)
        await until(lambda: self.is_on_record(uid, device, number))
        return client

    async def connect(self, number: int, uid: str, device: str = "", *, confirms: bool = False) -> Client:
        """Log in on a server; Redis has the record later."""
        client = Client(await trio.open_tcp_stream(*self.addresses[number]))
        self._clients.append(client)
        await client.login(uid, device or None, confirms=confirms or None)
        return client

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
    """Run two servers; `first` and `second` are the URLs of their Redis."""
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
    """Return the next answer: its id, and the number of deliveries or the reason of the refusal."""
    answer = await received(client)
    assert answer.kind in (Kind.OK, Kind.ERROR), answer
    return answer.id, answer.payload["delivered"] if answer.kind == Kind.OK else answer.payload["reason"]


async def confirm_next(client: Client) -> None:
    """Confirm the next message, as a client library does."""
    await client.send(protocol.confirmation([(await received(client)).payload["confirm"]]))


async def test_sessions_on_two_servers_confirm(redis_server: EmbeddedRedis) -> None:
    async with serving(redis_server) as pair, trio.open_nursery() as nursery:
        ann = await pair.log_in(0, "ann")
        for number in (0, 1):
            await pair.log_in(number, "bob", f"old{number}")
            nursery.start_soon(confirm_next, await pair.log_in(number, "bob", f"new{number}", confirms=True))
        await ann.send(protocol.message("bob", 1, id=1, confirm=PATIENCE_S))
        assert await received(ann) == protocol.ok(1, delivered=4, confirmed=4, by_app=2, unconfirmed=0)


async def test_a_client_that_is_silent_and_one_that_leaves_are_unconfirmed(
    redis_server: EmbeddedRedis,
) -> None:
    async with serving(redis_server) as pair:
        ann, _ = await pair.log_in(0, "ann"), await pair.log_in(1, "bob", "frozen", confirms=True)
        leaving = await pair.log_in(1, "cy", confirms=True)
        await ann.send(protocol.message("bob", 1, id=1, confirm=0.5))
        assert await received(ann) == protocol.ok(1, delivered=1, confirmed=0, by_app=0, unconfirmed=1)
        await ann.send(protocol.message("cy", 1, id=2, confirm=30))
        await received(leaving)
        leaving.close()
        assert await received(ann) == protocol.ok(2, delivered=1, confirmed=0, by_app=0, unconfirmed=1)


async def test_a_confirmation_right_before_the_logout_counts(redis_server: EmbeddedRedis) -> None:
    async with serving(redis_server) as pair:
        ann, bob = await pair.log_in(0, "ann"), await pair.log_in(0, "bob", confirms=True)
        await ann.send(protocol.message("bob", 1, id=1, confirm=PATIENCE_S))
        number = (await received(bob)).payload["confirm"]
        await bob.send(protocol.confirmation([number]), protocol.logout())
        assert await received(ann) == protocol.ok(1, delivered=1, confirmed=1, by_app=1, unconfirmed=0)


async def test_a_recipient_who_has_just_moved_is_found(redis_server: EmbeddedRedis) -> None:
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
            await until(lambda: pair.servers[0].node.engine.registry.sessions_of("bob")[0].transport is None)
            assert (await ann.query(["bob"]))["bob"].status == "online"
            with pytest.raises(RecipientDisconnected) as refused:
                await ann.send_message("bob", "now or never", retry=False)
            assert 0 < (refused.value.retry_after or 0) <= Settings().disconnect_grace + Settings().tick
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ann.send_message, "bob", "when you are back")
                await trio.sleep(0.2)
                back = await pair.connect(0, "bob")
                assert (await received(back)).payload["body"] == "when you are back"


async def test_a_server_that_has_sent_goodbyes_gets_no_more_messages(redis_server: EmbeddedRedis) -> None:
    async with serving(redis_server) as pair, trio.open_nursery() as nursery:
        ann, bob = await pair.log_in(0, "ann"), await pair.log_in(1, "bob")
        nursery.start_soon(pair.servers[1].stop)
        assert (await received(bob)).kind == Kind.GOODBYE
        await until(lambda: not pair.listeners(1))
        assert not pair.servers[1].stopped, "bob has not closed the connection yet"
        await ann.send(protocol.message("bob", "hello", id=1))
        assert await outcome(ann) == (1, "busy")


# While replies of Redis are lost, connections to it break, and recipients move


class Ledger:
    """The answers to senders, and the messages to recipients, in order."""

    def __init__(self) -> None:
        self.outcomes: dict[tuple[str, int], str] = {}
        self.sent_to: dict[tuple[str, int], str] = {}
        self.received: dict[str, list[list[tuple[str, int]]]] = defaultdict(list)  # over each connection

    async def read(self, uid: str, client: Client) -> None:
        """Record all packets of a connection, until it ends or is closed here."""
        received: list[tuple[str, int]] = []
        self.received[uid].append(received)
        while True:
            try:
                packet = await client.receive()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if packet is None:
                return
            if packet.kind == Kind.DELIVER:
                received.append((packet.payload["from"], packet.payload["body"]))
            elif packet.kind in (Kind.OK, Kind.ERROR):
                assert packet.id is not None
                key = (uid, packet.id)
                assert key not in self.outcomes, "answered twice"
                self.outcomes[key] = "handed" if packet.kind == Kind.OK else packet.payload["reason"]


async def send(ledger: Ledger, client: Client, uid: str, chance: random.Random) -> None:
    for number in range(1, MESSAGES + 1):
        to = chance.choice([*RECIPIENTS, "unknown"])
        ledger.sent_to[uid, number] = to
        await client.send(protocol.message(to, number, id=number))
        await trio.sleep(0.015 * chance.random())


async def move(ledger: Ledger, pair: Pair, chance: random.Random, nursery: trio.Nursery) -> None:
    """Log recipients in on the other server now and then."""
    for number in range(MOVES):
        uid = chance.choice(RECIPIENTS)
        for server in (number % 2, 1 - number % 2):
            client = await pair.connect(server, uid)
            nursery.start_soon(ledger.read, uid, client)
        await trio.sleep(0.1)


async def disturb(proxies: list[Proxy], chance: random.Random) -> None:
    for _ in range(FAULTS):
        await trio.sleep(0.15 * chance.random())
        if chance.random() < 0.7:
            chance.choice(proxies).drop_reply(1, containing=digest("deliver").encode())
        else:
            chance.choice(proxies).reset(0.5)


async def test_no_message_is_duplicated_or_out_of_order_and_no_answer_is_wrong(
    redis_server: EmbeddedRedis,
) -> None:
    ledger, chance = Ledger(), random.Random(8)
    path = redis_server.url.removeprefix("unix://")
    with Proxy(path) as first, Proxy(path) as second:
        async with serving(redis_server, first.url, second.url) as pair, trio.open_nursery() as nursery:
            for number, uid in enumerate(RECIPIENTS):
                nursery.start_soon(ledger.read, uid, await pair.log_in(number % 2, uid))
            async with trio.open_nursery() as senders:
                for number, uid in enumerate(SENDERS):
                    client = await pair.log_in(number % 2, uid)
                    nursery.start_soon(ledger.read, uid, client)
                    senders.start_soon(send, ledger, client, uid, chance)
                senders.start_soon(move, ledger, pair, chance, nursery)
                senders.start_soon(disturb, [first, second], chance)
            await until(lambda: len(ledger.outcomes) == len(SENDERS) * MESSAGES)
            await trio.sleep(0.3)  # for messages on their way
            dropped = first.injected.replies_dropped + second.injected.replies_dropped
            nursery.cancel_scope.cancel()
    print(Counter(ledger.outcomes.values()), "replies dropped:", dropped)
    assert dropped
    for uid, connections in ledger.received.items():
        received = [each for connection in connections for each in connection]
        assert len(set(received)) == len(received), "twice"
        for connection, sender in product(connections, SENDERS):
            numbers = [number for by, number in connection if by == sender]
            assert numbers == sorted(numbers), "out of order"
        assert all(ledger.sent_to[key] == uid for key in received)
        assert {ledger.outcomes[key] for key in received} <= {"handed", "server_error"}
    assert "recipient_offline" in ledger.outcomes.values()
    assert ledger.outcomes.keys() == ledger.sent_to.keys()
