"""Connections by way of proxies: the header comes first, and is required from them and from nobody else."""

import os
import ssl

import pytest
import structlog
import trio

import protocol
from presence.admission import AdmissionLimits
from presence.transports.epoll import EpollTransport
from presence.transports.limits import Limits
from presence.transports.statistics import TransportStatistics
from protocol import Code, Kind
from tests.transports.harness import PATIENCE_S, Client, Harness, TransportKind, serving
from tests.transports.proxies import LOCAL, PROXY, TCP4, UNIX, header, of_client

PROXIES = "127.0.0.1, 127.0.1.0/24"
STRANGER = "127.0.0.2"
CLIENT = "203.0.113.7"
plain_and_secured = pytest.mark.parametrize("kind", ["epoll", "tls"])


def figures(server: Harness) -> TransportStatistics:
    assert isinstance(server.transport, EpollTransport)
    return server.transport.statistics()


async def is_closed(client: Client) -> bool:
    """Return whether the server closes, and says nothing before; what it has not read makes that a reset."""
    with trio.fail_after(PATIENCE_S):
        try:
            return await client.tcp.receive_some(100) == b""
        except trio.BrokenResourceError:
            return True


def address(server: Harness, uid: str) -> str:
    session = server.session(uid)
    assert session.link is not None
    return session.link.address(session.handle)


@plain_and_secured
@pytest.mark.parametrize(
    ("head", "seen"),
    [
        (of_client(CLIENT), CLIENT),
        (of_client("2001:db8:1:2::7"), "2001:db8:1:2::/64"),
        (of_client("::ffff:203.0.113.7"), CLIENT),
        (of_client(CLIENT, tlvs=bytes(500)), CLIENT),
        (header(LOCAL, TCP4, bytes(12)), "127.0.0.1"),
        (header(PROXY, UNIX, bytes(216)), "127.0.0.1"),
    ],
)
async def test_the_address_of_a_client_is_what_the_proxy_says(
    kind: TransportKind, head: bytes, seen: str
) -> None:
    async with serving(kind, proxies=PROXIES) as server:
        client = await server.connect(header=head)
        assert (await client.login("ada")).kind == Kind.OK
        await client.beat()
        assert address(server, "ada") == seen
        assert (figures(server).proxied, figures(server).awaiting_proxy_headers) == (1, 0)


@plain_and_secured
async def test_a_header_may_come_a_byte_at_a_time(kind: TransportKind) -> None:
    async with serving(kind, proxies=PROXIES) as server:
        client = await server.dial()
        head = of_client(CLIENT)
        for position in range(len(head) - 1):
            await client.tcp.send_all(head[position : position + 1])
            await trio.sleep(0.001)
        await server.until(lambda: figures(server).awaiting_proxy_headers == 1)
        await client.tcp.send_all(head[-1:])
        await server.until(lambda: figures(server).proxied == 1)


async def test_a_header_and_a_login_in_one_segment_are_taken_apart() -> None:
    async with serving("epoll", proxies=PROXIES) as server:
        client = await server.dial()
        await client.tcp.send_all(of_client(CLIENT) + protocol.encode(protocol.login("ada")))
        answer = await client.receive()
        assert answer is not None
        assert answer.kind == Kind.OK


async def test_a_login_that_comes_with_the_rest_of_a_header_is_answered_at_once() -> None:
    async with serving("epoll", Limits(login_timeout=60.0), proxies=PROXIES) as server:
        client = await server.dial()
        await client.tcp.send_all(of_client(CLIENT)[:20])
        await server.until(lambda: figures(server).awaiting_proxy_headers == 1)
        await client.tcp.send_all(of_client(CLIENT)[20:] + protocol.encode(protocol.login("ada")))
        with trio.fail_after(PATIENCE_S):
            answer = await client.receive()
        assert answer is not None
        assert answer.kind == Kind.OK


async def test_a_header_and_a_greeting_of_tls_in_one_segment_are_taken_apart() -> None:
    async with serving("tls", proxies=PROXIES) as server:
        client = await server.dial()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        wire = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            wire.do_handshake()
        await client.tcp.send_all(of_client(CLIENT) + outgoing.read())
        with trio.fail_after(PATIENCE_S):
            answer = await client.tcp.receive_some(3)
        assert answer == b"\x16\x03\x03", "a handshake record: its hello"


@plain_and_secured
@pytest.mark.parametrize(
    "garbage", [protocol.encode(protocol.login("ada")), b"\x16\x03\x01", header(PROXY, TCP4, bytes(11))]
)
async def test_a_proxy_without_a_header_is_closed_and_it_is_said_why(
    kind: TransportKind, garbage: bytes
) -> None:
    async with serving(kind, proxies=PROXIES) as server:
        with structlog.testing.capture_logs() as logs:
            for _ in range(5):
                client = await server.dial(source="127.0.1.9")
                await client.tcp.send_all(garbage)
                assert await is_closed(client)
        assert [each["event"] for each in logs] == ["proxy_header_refused"], "a line a second"
        assert figures(server).proxy_headers_refused == 5
        assert figures(server).connections == figures(server).awaiting_proxy_headers == 0


@plain_and_secured
@pytest.mark.parametrize("begun", [0, 1, 16, 27])
async def test_a_header_must_be_complete_in_the_time_for_the_login(kind: TransportKind, begun: int) -> None:
    async with serving(kind, Limits(login_timeout=0.3), proxies=PROXIES) as server:
        client = await server.dial()
        await client.tcp.send_all(of_client(CLIENT)[:begun])
        assert await is_closed(client)
        assert (figures(server).login_timeouts, figures(server).proxy_headers_refused) == (1, 1)
        assert figures(server).connections == 0


async def test_a_header_gives_no_more_time_for_the_login() -> None:
    async with serving("epoll", proxies=PROXIES) as server:
        assert isinstance(server.transport, EpollTransport)
        client = await server.dial()
        await server.until(lambda: figures(server).awaiting_proxy_headers == 1)
        due = server.transport._connections.deadlines._wheel._tick_of
        before = dict(due)
        await trio.sleep(0.3)
        await client.tcp.send_all(of_client(CLIENT))
        await server.until(lambda: figures(server).proxied == 1)
        assert before == due
        assert len(due) == 1


async def test_who_is_no_proxy_cannot_say_who_he_is() -> None:
    async with serving("epoll", proxies=PROXIES) as server:
        client = await server.connect(source=STRANGER, header=of_client(CLIENT))
        (refusal,) = await client.rest()
        assert refusal.kind == Kind.ERROR
        assert refusal.payload["code"] in {Code.PROTOCOL_ERROR, Code.TOO_LARGE}
        other = await server.connect(source=STRANGER)
        await other.login("ada")
        assert address(server, "ada") == STRANGER
        assert figures(server).proxied == 0


async def test_clients_of_one_proxy_count_by_their_own_addresses() -> None:
    async with serving("epoll", proxies=PROXIES, admission=AdmissionLimits(address_connections=2)) as server:
        for number in range(5):
            client = await server.connect(header=of_client(f"203.0.113.{number}"))
            assert (await client.login(f"user-{number}")).kind == Kind.OK
        second = await server.connect(header=of_client("203.0.113.1"))
        assert (await second.login("second")).kind == Kind.OK
        third = await server.connect(header=of_client("203.0.113.1"))
        (refusal,) = await third.rest()
        assert refusal.payload["code"] == Code.RATE_LIMITED


async def test_after_a_pause_of_ours_a_header_and_a_login_that_waited_are_read() -> None:
    async with serving("epoll", Limits(login_timeout=0.5), proxies=PROXIES) as server:
        assert isinstance(server.transport, EpollTransport)
        client = await server.dial()
        await server.until(lambda: figures(server).awaiting_proxy_headers == 1)
        os.write(client.tcp.socket.fileno(), of_client(CLIENT) + protocol.encode(protocol.login("ada")))
        fd = next(iter(server.transport._entrance.headers.awaited))
        server.transport._time_is_up(fd)  # before the set of those who wait is looked at
        answer = await client.receive()
        assert answer is not None
        assert answer.kind == Kind.OK
        assert address(server, "ada") == CLIENT


async def test_a_proxy_that_only_looks_whether_we_are_there_is_no_news() -> None:
    async with serving("epoll", proxies=PROXIES) as server:
        with structlog.testing.capture_logs() as logs:
            for leave in (Client.close, Client.reset):
                leave(await server.dial())
            await server.until(lambda: figures(server).closed == 2)
        assert logs == []
        assert figures(server).proxy_headers_refused == 0


async def test_who_leaves_before_his_header_leaves_nothing() -> None:
    async with serving("epoll", proxies=PROXIES) as server:
        for _ in range(20):
            client = await server.dial()
            await client.tcp.send_all(of_client(CLIENT)[:20])
            client.close()
        await server.until(lambda: figures(server).closed == 20)
        assert figures(server).awaiting_proxy_headers == figures(server).addresses_kept == 0
        assert (await (await server.connect(header=of_client(CLIENT))).login("ada")).kind == Kind.OK
