"""Clients that do not read: what waits for them is bounded in bytes and in time, on either transport."""

import pytest
import trio

import protocol
from presence.transports.epoll import EpollTransport
from presence.transports.limits import PROGRESS_BYTES, Limits
from protocol import Code, Packet
from tests.transports.harness import Harness, TransportKind, every_kind, serving


@every_kind
async def test_a_slow_reader_is_cut_off_at_the_byte_bound(kind: TransportKind) -> None:
    limits = Limits(unsent_bytes=8192, unsent_timeout=30.0)
    async with serving(kind, limits, send_buffer=4096) as server:
        client = await server.connect(receive_buffer=4096)
        await client.login("ada")

        async def ask_without_reading() -> None:
            while True:
                await client.send(*(Packet(9, number) for number in range(20)))
                assert queued(server) <= limits.unsent_bytes
                await trio.lowlevel.checkpoint()

        with pytest.raises(trio.BrokenResourceError), trio.fail_after(10):
            await ask_without_reading()
        assert server.transport.statistics().slow_readers == 1
        assert server.core.sessions.get("ada") is not None, "in its grace: it may come back"


def queued(server: Harness) -> int:
    """Return how many bytes wait for the one client."""
    session = server.registry.get("ada")
    if session is None or session.link is None:
        return 0
    if isinstance(server.transport, EpollTransport):
        waiting = server.transport._connections.unsent.get(session.handle, bytearray())
    else:
        waiting = session.handle.unsent
    return len(waiting)


@every_kind
async def test_a_slow_reader_is_cut_off_at_the_time_bound(kind: TransportKind) -> None:
    limits = Limits(unsent_bytes=1_000_000, unsent_timeout=0.3)
    async with serving(kind, limits, send_buffer=4096) as server:
        client = await server.connect(receive_buffer=4096)
        await client.login("ada")
        await client.send(*(Packet(9, number) for number in range(1000)))
        await server.until(lambda: queued(server))
        began = trio.current_time()
        await server.until(lambda: server.transport.statistics().slow_readers)
        took = trio.current_time() - began
        print(f"test_a_slow_reader_is_cut_off_at_the_time_bound[{kind}]: after {took:.2f} s of 0.3 s")
        assert took <= 0.3 + 5.0, "what a shared machine takes"


@every_kind
async def test_a_reader_that_goes_on_reading_is_left_all_the_time_it_takes(kind: TransportKind) -> None:
    limits = Limits(unsent_bytes=10_000_000, unsent_timeout=0.5)
    async with serving(kind, limits, send_buffer=4096) as server:
        client = await server.connect(receive_buffer=4096)
        await client.login("ada")
        await client.send(*(Packet(9, number) for number in range(4000)))
        await server.until(lambda: queued(server) > 4 * PROGRESS_BYTES)
        begun = trio.current_time()
        for number in range(4000):
            assert (await client.receive() or Packet(0)).id == number
            if number % 40 == 0:
                await trio.sleep(0.015)
        assert trio.current_time() - begun > 2 * limits.unsent_timeout
        assert server.transport.statistics().slow_readers == 0


async def test_a_slow_reader_that_catches_up_hears_the_farewell() -> None:
    async with serving("epoll", Limits(unsent_bytes=1_000_000), send_buffer=4096) as server:
        client = await server.connect(receive_buffer=4096)
        await client.login("ada")
        await client.send(*(Packet(9, number) for number in range(1000)))
        await server.until(lambda: server.core.statistics().frames >= 1000)
        assert isinstance(server.transport, EpollTransport)
        fd = server.session("ada").handle
        server.transport._connections.begin_parting(fd, protocol.encode(protocol.goodbye(Code.SERVER_DRAIN)))
        *answers, goodbye = await client.rest()  # the farewell's turn has not come when all else is read
        assert len(answers) == 1000
        assert goodbye.payload["code"] == Code.SERVER_DRAIN
