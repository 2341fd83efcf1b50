"""Connections over TLS: which resume the session of the one before."""

import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from pathlib import Path

import anyio
import pytest
import trio
from anyio.abc import ByteStream
from anyio.streams.tls import TLSAttribute

from presence import protocol
from presence.client import ClientOptions, connect, tcp
from presence.client.tcp import TcpConnector
from presence.transports import sockets
from presence.transports.tls import Certificate
from tests.transports import certificates
from tests.transports.harness import Harness, serving


@pytest.fixture
async def server() -> AsyncIterator[Harness]:
    async with serving("tls") as harness:
        yield harness


@pytest.fixture
def listening() -> Iterator[tuple[socket.socket, int]]:
    """A socket that listens, and its port."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield listener, listener.getsockname()[1]


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def context(request: pytest.FixtureRequest) -> ssl.SSLContext:
    return client_context(request.param)


def client_context(version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = version
    certificates.authority().configure_trust(context)
    return context


def is_resumed(stream: ByteStream) -> bool | None:
    return stream.extra(TLSAttribute.ssl_object).session_reused


async def visit(connector: TcpConnector) -> bool | None:
    """Connect, log in and read the answer; return whether the session was resumed."""
    async with await connector.open() as stream:
        await stream.send(protocol.encode(protocol.login("ann")))
        await stream.receive()
        return is_resumed(stream)


async def test_a_session_is_resumed_each_time_the_client_returns(
    server: Harness, context: ssl.SSLContext
) -> None:
    connector = TcpConnector("localhost", server.address[1], context)
    assert [await visit(connector) for _ in range(3)] == [False, True, True]
    assert server.counted.handshakes_resumed == 2


async def test_another_client_with_the_same_context_begins_anew(
    server: Harness, context: ssl.SSLContext
) -> None:
    assert not await visit(TcpConnector("localhost", server.address[1], context))
    assert not await visit(TcpConnector("localhost", server.address[1], context))


async def test_other_connections_of_the_context_are_not_resumed(
    server: Harness, listening: tuple[socket.socket, int]
) -> None:
    connector = TcpConnector("localhost", server.address[1], context := client_context())
    await visit(connector)
    listener, connector._port = listening
    listener.close()
    with pytest.raises(OSError, match="All connection attempts failed"):
        await connector.open()
    stream = await anyio.connect_tcp(
        "localhost", server.address[1], tls=True, ssl_context=context, tls_standard_compatible=False
    )
    async with stream:
        assert not is_resumed(stream)


async def test_a_server_with_other_keys_is_connected_to_in_any_pieces(
    server: Harness, listening: tuple[socket.socket, int], tmp_path: Path
) -> None:
    connector = TcpConnector("localhost", server.address[1], client_context())
    await visit(connector)
    listener, connector._port = listening
    certificate = Certificate(*certificates.write(tmp_path))

    def serve() -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = certificate.context.wrap_bio(incoming, outgoing, server_side=True)
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with closing(connection), suppress(ConnectionError):  # the client leaves with unread bytes
            while data := connection.recv(65536):
                incoming.write(data)
                with suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                for byte in outgoing.read():
                    connection.send(bytes([byte]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, serve)
        async with await connector.open() as stream:
            assert not is_resumed(stream)


async def test_a_context_with_a_class_of_its_own_keeps_it(server: Harness) -> None:
    class Own(ssl.SSLObject):
        pass

    context = client_context()
    context.sslobject_class = Own
    connector = TcpConnector("localhost", server.address[1], context)
    assert [await visit(connector) for _ in range(2)] == [False, False]


async def test_the_certificate_is_verified_again_after_a_day(
    server: Harness, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    connector = TcpConnector("localhost", server.address[1], context)
    monkeypatch.setattr(tcp, "MAX_UNVERIFIED_S", 0.0)
    assert [await visit(connector) for _ in range(2)] == [False, False]


@pytest.mark.parametrize(
    ("answer", "resumes"),
    [(b"", True), (b"\x15\x03\x03\x00\x02\x02\x28", False)],
    ids=["lost", "handshake_failure"],
)
async def test_a_session_outlives_a_lost_attempt_but_no_refused_handshake(
    server: Harness, listening: tuple[socket.socket, int], answer: bytes, resumes: bool
) -> None:
    connector = TcpConnector("localhost", server.address[1], client_context())
    await visit(connector)

    listener, connector._port = listening

    def fail() -> None:
        connection, _ = listener.accept()
        with closing(connection):
            connection.recv(65536)
            connection.sendall(answer)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, fail)
        with pytest.raises((OSError, anyio.EndOfStream, anyio.BrokenResourceError)):
            await connector.open()
    connector._port = server.address[1]
    assert await visit(connector) is resumes


async def test_a_client_resumes_when_it_reconnects(server: Harness) -> None:
    options = ClientOptions(tls=client_context())
    async with connect("localhost", server.address[1], uid="ann", options=options) as client:
        (fd,) = server.epoll._connections.by_fd
        with sockets.borrowed(fd) as connection:
            connection.shutdown(socket.SHUT_RDWR)
        await server.until(lambda: server.counted.handshakes == 2)
        await client.wait_online()
    assert server.counted.handshakes_resumed == 1
