"""TLS over streams, as systems without epoll have it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

import protocol
from presence.transports import tcp
from presence.transports.limits import Limits
from presence.transports.stream import StreamTransport
from presence.transports.tls import HANDSHAKES, TlsListening
from protocol import Code, Kind
from tests.cells import brief
from tests.transports import certificates
from tests.transports.harness import Harness, serving
from tests.transports.test_handshakes import client_hello, end_of


@asynccontextmanager
async def serving_tls(
    limits: Limits | None = None, *, handshakes: int = HANDSHAKES, idle_timeout: float = 30.0
) -> AsyncIterator[Harness]:
    """Serve TLS and nothing else."""
    async with serving("stream", limits, listen=False, idle_timeout=idle_timeout) as server:
        listeners = tcp.open_listeners("127.0.0.1", 0)
        tls = TlsListening(listeners, certificates.loaded(), handshakes)
        server.transport = StreamTransport(server.core, server.limits, server.admission, tls)
        server.address = listeners[0].getsockname()
        server.secured = True
        server.nursery.start_soon(server.transport.run, [])
        yield server


async def test_login_beats_and_logout_with_goodbyes_of_tls() -> None:
    async with serving_tls() as server:
        client = await server.connect()
        await client.login("ada")
        session = server.session("ada")
        assert session.link is not None
        assert session.link.address(session.handle) == "127.0.0.1"
        await client.beat()
        await client.send(protocol.logout(id=9))
        assert [brief(each) for each in await client.rest()] == [(Kind.OK, 9, None)]
        assert server.story() == [("login", "ada", "login"), ("end", "ada", "logout")]


async def test_the_silent_go_in_time() -> None:
    async with serving_tls(Limits(login_timeout=0.5)) as server:
        silent, begun = await server.dial(), await server.dial()
        await begun.tcp.send_all(client_hello()[:20])
        assert await end_of(silent) == b""
        assert await end_of(begun) == b""
        await server.until(lambda: server.transport.statistics().login_timeouts == 2)
        assert server.core.statistics().refused == {"login_timeout": 2}


async def test_beyond_their_number_handshakes_are_refused() -> None:
    async with serving_tls(handshakes=1) as server:
        unfinished = await server.dial()
        await unfinished.tcp.send_all(client_hello())
        assert await unfinished.tcp.receive_some(1) == b"\x16"
        with pytest.raises(trio.BrokenResourceError):
            await server.connect()
        unfinished.close()
        await trio.testing.wait_all_tasks_blocked(0.05)
        await (await server.connect()).login("ada")


async def test_a_refusal_is_read_although_input_was_in_flight() -> None:
    async with serving_tls() as server:
        for _ in range(20):
            client = await server.connect()
            await client.stream.send_all(protocol.KEEPALIVE + b"x" * 20_000)
            await client.stream.send_all(b"y" * 20_000)
            refusal = await client.receive()
            assert refusal is not None
            assert brief(refusal) == (Kind.ERROR, None, Code.NOT_LOGGED_IN)


async def test_stopping_closes_the_listeners_and_keeps_connections() -> None:
    async with serving_tls() as server:
        client = await server.connect()
        await client.login("ada")
        await server.transport.stop_accepting()
        await trio.testing.wait_all_tasks_blocked(0.01)
        with pytest.raises(ConnectionRefusedError):
            await server.dial()
        await client.beat()
