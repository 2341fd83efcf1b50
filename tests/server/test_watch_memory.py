"""A server whose memory for watches is used up serves everything else as before."""

from typing import Any

import trio

from presence import protocol
from presence.protocol import Code, Kind
from presence.server.server import Server
from presence.store.embedded import EmbeddedRedis
from presence.watching.watch_quota import USER_BYTES
from presence.watching.watch_service import OWN_WATCHES
from tests.server.test_server import served
from tests.support.waiting import until
from tests.transports.harness import Client

MEMORY_MB = 1
CROWD = 2 * MEMORY_MB * 1_000_000 // USER_BYTES  # twice as many as fit
PER_REQUEST = 200


async def logged_in(address: tuple[str, int], uid: str) -> Client:
    client = Client(await trio.open_tcp_stream(*address))
    assert (await client.login(uid)).kind == Kind.OK
    return client


def watching(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.report()["watching"]  # type: ignore[assignment]
    return found


async def ask(client: Client, packet: protocol.Packet) -> protocol.Packet:
    await client.send(packet)
    (answer,) = await client.take(1)
    return answer


async def test_plain_presence_is_unaffected_and_a_refused_client_succeeds_later(
    redis_server: EmbeddedRedis,
) -> None:
    async with served(redis_server, watch_memory=MEMORY_MB, max_watches=10_000) as (server, address):
        greedy = [await logged_in(address, f"greedy-{number}") for number in range(CROWD // PER_REQUEST)]
        codes = []
        for number, client in enumerate(greedy):
            uids = [f"user-{number}-{each}" for each in range(PER_REQUEST)]
            answer = await ask(client, protocol.watch(uids, id=1))
            codes.append(answer.payload.get("code"))
        assert codes[0] is None
        assert codes[-1] == Code.BUSY

        ann, bob = await logged_in(address, "ann"), await logged_in(address, "bob")
        friends = [f"friend-{number}" for number in range(2 * PER_REQUEST)]
        assert (await ask(ann, protocol.watch(friends[:OWN_WATCHES], id=2))).kind == Kind.OK
        refused = await ask(ann, protocol.watch(friends, id=3))
        assert (refused.payload["code"], refused.payload["retry_after"] > 5) == (Code.BUSY, True)
        await ann.beat()
        await bob.beat()
        assert (await ask(ann, protocol.message("bob", {"text": "hello"}, id=4))).kind == Kind.OK
        (message,) = await bob.take(1)
        assert message.kind == Kind.DELIVER

        for client in (bob, *greedy):
            await client.stream.aclose()
        await until(lambda: watching(server)["memory_bytes"] < MEMORY_MB * 500_000)
        assert (await ask(ann, protocol.watch(friends, id=5))).kind == Kind.OK
        await ann.stream.aclose()
