"""Messages while replies of Redis get lost, connections to it break, and recipients move between servers."""

import random
from collections import Counter, defaultdict
from itertools import product

import trio

import protocol
from loadtest.proxy import Proxy
from presence.embedded import EmbeddedRedis
from presence.store.scripting import digest
from protocol import Kind
from tests.messaging.test_live import Pair, serving, until
from tests.transports.harness import Client

SENDERS, RECIPIENTS = ["ann", "abe", "amy"], ["bob", "ben", "bea", "bix"]
MESSAGES = 120  # of each sender
FAULTS = 12
MOVES = 8


class Ledger:
    """What senders were told, and what recipients got, in order."""

    def __init__(self) -> None:
        self.outcomes: dict[tuple[str, int], str] = {}
        self.sent_to: dict[tuple[str, int], str] = {}
        self.received: dict[str, list[list[tuple[str, int]]]] = defaultdict(list)  # over each connection

    async def read(self, uid: str, client: Client) -> None:
        """Note all that comes on a connection, until it ends or is closed here."""
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
        to = chance.choice([*RECIPIENTS, "nobody"])
        ledger.sent_to[uid, number] = to
        await client.send(protocol.message(to, number, id=number))
        await trio.sleep(0.015 * chance.random())


async def move(ledger: Ledger, pair: Pair, chance: random.Random, nursery: trio.Nursery) -> None:
    """Let each recipient come in again at the other server now and then."""
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


async def test_nothing_is_delivered_twice_or_out_of_order_and_nobody_is_told_wrong(
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
            await trio.sleep(0.3)  # for what is on its way
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
