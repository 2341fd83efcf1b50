"""What a transport tells of a connection, for operators."""

import protocol
from presence.registry import Connected
from presence.transports.limits import Limits
from tests.transports.harness import TransportKind, every_kind, serving

NAMES = {"epoll": "plain", "tls": "tls", "stream": "stream"}


@every_kind
async def test_a_connection_is_told_of(kind: TransportKind) -> None:
    async with serving(kind) as server:
        client = await server.connect()
        await client.login("ada")
        handle = server.session("ada").handle
        told = Connected(NAMES[kind], "127.0.0.1", 0)
        await server.until(lambda: server.transport.connected(handle) == told)


@every_kind
async def test_what_waits_for_a_slow_reader_is_told(kind: TransportKind) -> None:
    async with serving(kind, Limits(unsent_bytes=1_000_000), send_buffer=4096) as server:
        client = await server.connect(receive_buffer=4096)
        await client.login("ada")
        session = server.session("ada")
        packet = protocol.encode(protocol.deliver("bob", "x" * 1000, 5))
        for _ in range(500):
            server.transport.send(session.handle, packet)
        waiting = server.transport.connected(session.handle).unsent_bytes
        assert 0 < waiting <= 501 * len(packet), "the login's answer may be among it"


async def test_the_address_is_the_one_that_a_proxy_tells() -> None:
    async with serving("epoll", proxies="127.0.0.0/8") as server:
        header = b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes([192, 0, 2, 9, 10, 0, 0, 1, 0, 80, 1, 187])
        client = await server.connect(header=header)
        await client.login("ada")
        handle = server.session("ada").handle
        assert server.transport.connected(handle).address == "192.0.2.9"


async def test_a_stream_that_is_no_tcp_has_no_address() -> None:
    async with serving("stream", listen=False) as server:
        client = await server.connect_in_memory()
        await client.login("ada")
        assert server.transport.connected(server.session("ada").handle).address == ""
