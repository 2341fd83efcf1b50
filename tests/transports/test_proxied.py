"""Connections through proxies: the header comes first, and is required from proxies only."""

import os
import socket
import struct

import pytest
import structlog
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from presence import protocol
from presence.core.admission import AdmissionLimits
from presence.protocol import Code, Kind
from presence.transports import proxy_protocol
from presence.transports.limits import Limits
from presence.transports.proxy_protocol import FIXED_BYTES, MAX_HEADER_BYTES, SIGNATURE, HeaderError, missing
from tests.transports.certificates import client_hello
from tests.transports.harness import PATIENCE_S, Client, Harness, TransportKind, serving
from tests.transports.proxies import LOCAL, PROXY, TCP4, TCP6, UNIX, header, of_client

PROXIES = "127.0.0.1, 127.0.1.0/24"
STRANGER = "127.0.0.2"
CLIENT = "203.0.113.7"
LOGIN = protocol.encode(protocol.login("ada"))
of_every_layer = pytest.mark.parametrize("kind", ["epoll", "tls", "ws", "wss"])
# Written out after section 2.2: from 203.0.113.7, port 51234, to 198.51.100.2, port 443.
WRITTEN_OUT = bytes.fromhex("0d0a0d0a000d0a515549540a 21 11 000c cb007107 c6336402 c822 01bb")


# Headers


def parsed(data: bytes) -> str | None:
    """Read a header as a connection does: only as many bytes as are missing."""
    received = bytearray()
    while wanted := missing(received):
        piece = data[len(received) : len(received) + wanted]
        if not piece:
            raise EOFError
        received += piece
    return proxy_protocol.client(received)


@pytest.mark.parametrize(
    ("data", "address"),
    [
        (WRITTEN_OUT, CLIENT),
        (of_client("192.0.2.1"), "192.0.2.1"),
        (of_client("2001:db8::7"), "2001:db8::7"),
        (of_client("192.0.2.1", tlvs=b"\x01\x00\x02h2\x04\x00\x01\0"), "192.0.2.1"),
        (of_client("192.0.2.1", tlvs=bytes(MAX_HEADER_BYTES - FIXED_BYTES - 12)), "192.0.2.1"),
        (header(LOCAL, 0x00, b""), None),
        (header(LOCAL, TCP4, b"\x7f\0\0\1" * 2 + b"\0" * 4), None),
        (header(LOCAL, 0xFF, b""), None),
        (header(PROXY, 0x00, b""), None),
        (header(PROXY, 0x00, b"\x04\x00\x01\0"), None),
        (header(PROXY, UNIX, b"/run/client".ljust(108, b"\0") + bytes(108)), None),
    ],
)
def test_a_header_names_the_client_or_leaves_it_to_the_kernel(data: bytes, address: str | None) -> None:
    assert parsed(data + b"what the client says") == address


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\2\x91\3",
        b"\x16\x03\x01",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
        b"\r\n\r\n\0\r\nQUIT\r",
        *(header(command, TCP4, bytes(12)) for command in (0x10, 0x22, 0x2F)),
        *(header(PROXY, kind, bytes(36)) for kind in (0x12, 0x22, 0x41)),
        *(header(PROXY, kind, bytes(size)) for kind, size in ((TCP4, 11), (TCP6, 35), (UNIX, 215))),
        header(PROXY, TCP4, bytes(MAX_HEADER_BYTES - FIXED_BYTES + 1)),
        header(PROXY, TCP4, bytes(65_535))[:FIXED_BYTES],  # before anything after it is read
    ],
)
def test_invalid_headers_are_refused(data: bytes) -> None:
    with pytest.raises(HeaderError):
        parsed(data)


@pytest.mark.parametrize("size", range(1, FIXED_BYTES))
def test_a_wrong_byte_is_noticed_as_soon_as_it_arrives(size: int) -> None:
    received = bytearray(WRITTEN_OUT[:size])
    assert missing(received) == FIXED_BYTES - size
    if size <= len(SIGNATURE):
        received[-1] ^= 1
        with pytest.raises(HeaderError):
            missing(received)


@given(st.binary(max_size=600) | st.binary(max_size=600).map(SIGNATURE.__add__))
@example(WRITTEN_OUT)
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    try:
        address = parsed(data)
    except (HeaderError, EOFError):
        return
    assert data.startswith(SIGNATURE)
    assert len(data) >= FIXED_BYTES + struct.unpack_from("!H", data, 14)[0]
    if address is not None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        assert data[16:].startswith(socket.inet_pton(family, address))


# Connections


def address(server: Harness) -> str:
    return server.transport.connected(server.session("ada").handle).address


@of_every_layer
@pytest.mark.parametrize(
    ("head", "seen"),
    [
        (of_client(CLIENT), CLIENT),
        (of_client("2001:db8:1:2::7"), "2001:db8:1:2::/64"),
        (of_client("::ffff:203.0.113.7"), CLIENT),
        (header(LOCAL, TCP4, bytes(12)), "127.0.0.1"),
        (header(PROXY, UNIX, bytes(216)), "127.0.0.1"),
    ],
)
async def test_the_address_of_a_client_is_the_one_in_the_header(
    kind: TransportKind, head: bytes, seen: str
) -> None:
    async with serving(kind, proxies=PROXIES) as server:
        client = await server.connect(header=head)
        assert (await client.login("ada")).kind == Kind.OK
        await client.beat()
        assert address(server) == seen
        assert (server.counted.proxied, server.counted.awaiting_proxy_headers) == (1, 0)


@pytest.mark.parametrize(
    ("kind", "rest", "answer"),
    [("epoll", LOGIN, b"\0\0\0"), ("tls", client_hello(), b"\x16\x03\x03")],  # a handshake record: its hello
    ids=["a login", "a greeting of TLS"],
)
@pytest.mark.parametrize("sent_bytes", [0, 20, 27])
async def test_a_header_and_bytes_that_follow_it_are_separated(
    kind: TransportKind, rest: bytes, answer: bytes, sent_bytes: int
) -> None:
    async with serving(kind, Limits(login_timeout=60.0), proxies=PROXIES) as server:
        client = await server.dial()
        head = of_client(CLIENT)
        for byte in head[:sent_bytes]:
            await client.tcp.send_all(bytes([byte]))
            await trio.sleep(0.001)
        await server.until(lambda: server.counted.awaiting_proxy_headers == 1)
        await client.tcp.send_all(head[sent_bytes:] + rest)
        with trio.fail_after(PATIENCE_S):
            assert await client.tcp.receive_some(3) == answer


@of_every_layer
@pytest.mark.parametrize("garbage", [LOGIN, b"\x16\x03\x01", header(PROXY, TCP4, bytes(11))])
async def test_a_proxy_without_a_header_is_closed_and_logged(kind: TransportKind, garbage: bytes) -> None:
    async with serving(kind, proxies=PROXIES) as server:
        with structlog.testing.capture_logs() as logs:
            for _ in range(5):
                client = await server.dial(source="127.0.1.9")
                await client.tcp.send_all(garbage)
                assert await client.all_bytes() == b""
        assert [each["event"] for each in logs] == ["proxy header refused"], "one line a second"
        assert server.counted.proxy_headers_refused == 5
        assert server.counted.connections == server.counted.awaiting_proxy_headers == 0


@of_every_layer
@pytest.mark.parametrize("sent_bytes", [0, 1, 16, 27])
async def test_a_header_must_be_complete_within_the_login_timeout(
    kind: TransportKind, sent_bytes: int
) -> None:
    async with serving(kind, Limits(login_timeout=0.3), proxies=PROXIES) as server:
        client = await server.dial()
        await client.tcp.send_all(of_client(CLIENT)[:sent_bytes])
        assert await client.all_bytes() == b""
        assert (server.counted.login_timeouts, server.counted.proxy_headers_refused) == (1, 1)
        assert server.counted.connections == 0


async def test_a_header_does_not_extend_the_login_timeout() -> None:
    async with serving("epoll", proxies=PROXIES) as server:
        client = await server.dial()
        await server.until(lambda: server.counted.awaiting_proxy_headers == 1)
        due = server.epoll._connections.deadlines._wheel._slot_of
        before = dict(due)
        await trio.sleep(0.3)
        await client.tcp.send_all(of_client(CLIENT))
        await server.until(lambda: server.counted.proxied == 1)
        assert before == due
        assert len(due) == 1


async def test_a_client_that_is_no_proxy_cannot_send_a_header() -> None:
    async with serving("epoll", proxies=PROXIES) as server:
        client = await server.connect(source=STRANGER, header=of_client(CLIENT))
        (refusal,) = await client.rest()
        assert refusal.kind == Kind.ERROR
        assert refusal.payload["code"] in {Code.PROTOCOL_ERROR, Code.TOO_LARGE}
        await (await server.connect(source=STRANGER)).login("ada")
        assert address(server) == STRANGER
        assert server.counted.proxied == 0


async def test_clients_of_one_proxy_count_by_their_own_addresses() -> None:
    async with serving("epoll", proxies=PROXIES, admission=AdmissionLimits(address_connections=2)) as server:
        for number in (0, 1, 2, 3, 4, 1):
            client = await server.connect(header=of_client(f"203.0.113.{number}"))
            assert (await client.login(f"user-{number}")).kind == Kind.OK
        third = await server.connect(header=of_client("203.0.113.1"))
        (refusal,) = await third.rest()
        assert refusal.payload["code"] == Code.RATE_LIMITED


async def test_after_a_stall_a_delayed_header_and_login_are_read() -> None:
    async with serving("epoll", Limits(login_timeout=0.5), proxies=PROXIES) as server:
        client = await server.dial()
        await server.until(lambda: server.counted.awaiting_proxy_headers == 1)
        os.write(client.tcp.socket.fileno(), of_client(CLIENT) + LOGIN)
        (connection,) = server.epoll._connections.by_fd.values()
        server.epoll._timed_out(connection)  # before the class of waiting connections is polled
        assert (await client.take(1))[0].kind == Kind.OK
        assert address(server) == CLIENT


async def test_a_client_that_leaves_before_its_header_is_not_logged_and_leaves_nothing() -> None:
    async with serving("epoll", proxies=PROXIES) as server:
        with structlog.testing.capture_logs() as logs:
            for sent_bytes in (0, 20):
                for leave in (Client.close, Client.reset):
                    client = await server.dial()
                    await client.tcp.send_all(of_client(CLIENT)[:sent_bytes])
                    leave(client)
            await server.until(lambda: server.counted.closed == 4)
        assert logs == []
        assert server.counted.proxy_headers_refused == 0
        assert server.counted.awaiting_proxy_headers == server.counted.addresses_kept == 0
        assert (await (await server.connect(header=of_client(CLIENT))).login("ada")).kind == Kind.OK
