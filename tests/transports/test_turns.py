"""Many small packets in one read: nobody else waits for all of them, and none is lost."""

import os

import pytest
import trio

import protocol
from presence.admission import PacketRate
from presence.transports.epoll import EpollTransport
from presence.transports.limits import PACKETS_A_SLICE, READ_BYTES, Limits
from protocol import KEEPALIVE, Code, Packet
from tests.transports.harness import TransportKind, every_kind, serving

UNKNOWN = protocol.encode(Packet(9))
A_READ = READ_BYTES // len(UNKNOWN)


@every_kind
async def test_a_bystander_does_not_wait_for_what_others_send_in_heaps(kind: TransportKind) -> None:
    async with serving(kind, Limits(unsent_bytes=10_000_000)) as server:
        bystander = await server.connect()
        await bystander.login("bystander")
        flooders = [await server.connect() for _ in range(8)]
        for number, each in enumerate(flooders):
            await each.login(f"user-{number}")
        before = server.core.statistics().frames
        for each in flooders:
            await each.stream.send_all(UNKNOWN * A_READ)
        await bystander.send(protocol.keepalive(1))
        assert await bystander.receive()
        heaps = len(flooders) * A_READ
        assert server.core.statistics().frames - before < heaps / 2
        await server.until(lambda: server.core.statistics().frames - before == heaps)


@every_kind
async def test_packets_that_wait_are_handled_in_order_with_what_follows(
    kind: TransportKind,
) -> None:
    async with serving(kind) as server:
        client = await server.connect()
        await client.login("ada")
        ids = range(10 * PACKETS_A_SLICE + 1)
        data = b"".join(protocol.encode(protocol.keepalive(id)) for id in ids)
        await client.stream.send_all(data[:-3])
        await client.stream.send_all(data[-3:] + protocol.encode(protocol.logout(id=1000)))
        assert [each.id for each in await client.rest()] == [*ids, 1000]
        assert [change.code for change in server.ends()] == [Code.LOGOUT]


async def test_a_session_whose_packets_wait_is_not_ended_for_silence() -> None:
    async with serving("epoll") as server:
        client = await server.connect()
        await client.login("ada")
        session = server.session("ada")
        assert isinstance(server.transport, EpollTransport)
        assert isinstance(client.stream, trio.SocketStream)
        # Without a checkpoint, so that nothing else reads or handles them.
        os.write(client.stream.socket.fileno(), KEEPALIVE * (3 * PACKETS_A_SLICE))
        for _ in range(2):
            session.last_seen = 0.0
            assert server.transport.look(session.handle)
            assert session.last_seen > 0
            assert session.partial is not None, "more wait"
        await server.until(lambda: session.partial is None)


async def test_a_flood_ends_after_few_packets_more_than_are_allowed() -> None:
    burst = 5 * PACKETS_A_SLICE
    async with serving("epoll", packet_rate=PacketRate(10, burst)) as server:
        client = await server.connect()
        await client.login("ada")
        before = server.core.statistics()
        await client.stream.send_all(UNKNOWN * A_READ)
        *answers, goodbye = await client.rest()
        assert goodbye.payload["code"] == Code.RATE_LIMITED
        assert server.core.statistics().frames - before.frames <= burst + PACKETS_A_SLICE
        assert len(answers) <= burst + PACKETS_A_SLICE


@pytest.mark.parametrize("record", [64, 1])
async def test_a_packet_in_small_tls_records_is_found_before_its_session_ends(record: int) -> None:
    """All that has arrived counts, however much of it is the envelope of TLS."""
    async with serving("tls", window_s=60.0) as server:
        client = await server.connect()
        await client.login("ada")
        await client.beat()  # its set rests from now on: what follows lies unread
        session = server.session("ada")
        assert isinstance(server.transport, EpollTransport)
        packet = protocol.encode(protocol.message("bob", "x" * (16_000 if record > 1 else 900)))
        for start in range(0, len(packet), record):
            await client.stream.send_all(packet[start : start + record])
        session.last_seen = 0.0
        assert server.transport.look(session.handle)
        assert session.last_seen > 0
