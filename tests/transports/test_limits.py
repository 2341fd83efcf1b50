"""Limits by address, user, rate and number: a client beyond one gets the reason; others are not affected."""

import math
import socket
import struct

import pytest
import trio

from presence import protocol
from presence.common.networks import network_of
from presence.core.admission import AdmissionLimits, PacketRate
from presence.core.ban_list import AddressBan, BanList
from presence.core.changes import Op
from presence.protocol import Code, Kind, Packet
from presence.transports.limits import Limits
from presence.transports.trio_transport import StreamTransport
from tests.auth.gates import WordAuthenticator
from tests.transports import proxies
from tests.transports.harness import PATIENCE_S, Harness, TransportKind, both, every_kind, serving

OTHER = "127.0.0.2"
RESET_WHEN_CLOSED = struct.pack("ii", 1, 0)
THREE_LOGINS = AdmissionLimits(address_login_rate=0.01, address_login_burst=3)


def log_in_and_reset(server: Harness, uid: str, *, header: bytes = b"", token: str | None = None) -> None:
    """Connect, send a login and reset the connection, all before the server has a turn."""
    with socket.create_connection(server.address) as client:
        client.sendall(header + protocol.encode(protocol.login(uid, token=token)))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_WHEN_CLOSED)


def assert_limited(answer: Packet | None, code: Code = Code.RATE_LIMITED, kind: Kind = Kind.ERROR) -> None:
    assert answer is not None
    assert (answer.kind, answer.payload["code"]) == (kind, code)
    assert answer.payload["retry_after"] >= 1


@both
async def test_connections_per_address_are_limited_independently(kind: TransportKind) -> None:
    async with serving(kind, admission=AdmissionLimits(address_connections=3)) as server:
        clients = [await server.logged_in(f"user-{number}") for number in range(3)]
        (refusal,) = await (await server.connect()).rest()
        assert_limited(refusal)
        other = await server.connect(source=OTHER)
        assert (await other.login("other")).kind == Kind.OK
        for client in clients:
            await client.beat()
        assert server.engine.statistics().refused == {"rate_limited": 1}


async def test_two_transports_of_a_process_share_its_limits() -> None:
    limits = AdmissionLimits(accept_rate=0.001, accept_burst=4)
    async with serving("epoll", admission=limits) as server, trio.open_nursery() as nursery:
        streams = StreamTransport(server.engine, server.limits, server.admission)
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(streams.run, [listener])
        addresses = [server.address, listener.socket.getsockname()]
        for number in range(4):
            server.address = addresses[number % 2]
            await server.logged_in(f"user-{number}")
        for server.address in addresses:
            (refusal,) = await (await server.connect()).rest()
            assert_limited(refusal, Code.BUSY)
        nursery.cancel_scope.cancel()


@every_kind
async def test_a_closed_connection_frees_its_place(kind: TransportKind) -> None:
    async with serving(kind, admission=AdmissionLimits(address_connections=2)) as server:
        for number in range(10):
            (await server.logged_in(f"user-{number}")).close()
            await server.remain(0)
        assert server.admission.statistics().address_connections_kept == 0


async def test_refused_and_silent_clients_do_not_keep_their_places() -> None:
    admission = AdmissionLimits(address_connections=1)
    async with serving("epoll", Limits(login_timeout=0.2), admission=admission) as server:

        async def all_free() -> None:
            await server.until(lambda: not server.admission.statistics().address_connections_kept)

        first = await server.logged_in()
        for _ in range(20):  # none of them closes, or reads
            await server.connect()
        await server.until(lambda: server.counted.accepted == 21)
        first.close()
        await all_free()
        silent = await server.dial()
        assert [each.payload["code"] for each in await silent.rest()] == [Code.LOGIN_TIMEOUT]
        silent.close()
        await all_free()
        await server.logged_in("bob")


@every_kind
@pytest.mark.parametrize(
    "limits",
    [
        AdmissionLimits(address_login_rate=0.01, address_login_burst=3),
        AdmissionLimits(uid_login_rate=0.01, uid_login_burst=3),
    ],
    ids=["address", "uid"],
)
async def test_logins_beyond_a_limit_get_a_retry_time(kind: TransportKind, limits: AdmissionLimits) -> None:
    async with serving(kind, admission=limits) as server:
        answers = [await (await server.connect()).login("ada", device=f"d{number}") for number in range(5)]
        assert [each.kind for each in answers] == [Kind.OK] * 3 + [Kind.ERROR] * 2
        for answer in answers[3:]:
            assert_limited(answer)
        other = await server.connect(source=OTHER)
        assert (await other.login("bob")).kind == Kind.OK


@every_kind
async def test_a_flooding_client_gets_the_reason_and_its_neighbour_stays(kind: TransportKind) -> None:
    async with serving(kind, packet_rate=PacketRate(rate=10, burst=100)) as server:
        neighbour, flooder = await server.logged_in("bob"), await server.logged_in()
        await flooder.stream.send_all(protocol.encode(protocol.keepalive(1)) * 500)
        *answers, goodbye = await flooder.rest()
        assert {each.kind for each in answers} <= {Kind.OK}
        assert_limited(goodbye, kind=Kind.GOODBYE)
        await neighbour.beat()
        assert server.engine.statistics().packet_floods == 1


@both
async def test_excess_connections_get_a_retry_time_and_are_bounded(kind: TransportKind) -> None:
    async with serving(kind, admission=AdmissionLimits(max_connections=1, max_refused_open=4)) as server:
        first = await server.logged_in()
        second = await server.connect()
        await second.send(protocol.login("bob"))
        (refusal,) = await second.rest()
        assert_limited(refusal, Code.BUSY)
        assert server.engine.statistics().refused == {"busy": 1}
        second.close()
        await server.remain(1)
        others = [socket.create_connection(server.address) for _ in range(40)]  # none of them closes
        await server.until(lambda: server.counted.connections == 5)
        open_at_once = 0
        with trio.move_on_after(0.3):
            while True:
                open_at_once = max(open_at_once, server.counted.connections)
                await trio.lowlevel.checkpoint()
        assert open_at_once == 5
        await first.beat()
        for other in others:
            other.close()
        await server.remain(1)


@pytest.mark.parametrize(
    ("kind", "what"),
    [("epoll", "accept"), ("stream", "accept"), ("epoll", "login"), ("stream", "login"), ("tls", "login")],
)
async def test_a_burst_beyond_the_limit_is_refused_with_spread_retry_times(
    kind: TransportKind, what: str
) -> None:
    bounds = (
        AdmissionLimits(accept_rate=2, accept_burst=20)
        if what == "accept"
        else AdmissionLimits(login_rate=2, login_burst=20)
    )
    async with serving(kind, admission=bounds) as server:
        clients = [await server.connect() for _ in range(60)]
        for number, client in enumerate(clients):
            await client.send(protocol.login(f"user-{number}"))
        answers = [await client.receive() for client in clients]
        granted = [each for each in answers if each is not None and each.kind == Kind.OK]
        refused = [each.payload for each in answers if each is not None and each.kind == Kind.ERROR]
        assert len(granted) + len(refused) == 60
        assert 20 <= len(granted) <= 35
        assert {each["code"] for each in refused} == {Code.BUSY}
        waits = sorted(each["retry_after"] for each in refused)
        assert waits[0] >= 1
        assert len(set(waits)) > 15
        assert 12 < waits[-1] < 60, "40 at 2 a second, spread over twice the time"
        assert server.engine.statistics().refused == {"busy": len(refused)}


@every_kind
async def test_keepalives_that_are_read_one_by_one_are_counted(kind: TransportKind) -> None:
    async with serving(kind, packet_rate=PacketRate(1, 5)) as server:
        client, neighbour = await server.logged_in("ada"), await server.logged_in("bob")
        for _ in range(6):
            await client.beat()
        (goodbye,) = await client.rest()
        assert_limited(goodbye, kind=Kind.GOODBYE)
        await neighbour.beat()


@pytest.mark.parametrize(
    ("kind", "header"),
    [("epoll", b""), ("stream", b""), ("epoll", proxies.header(proxies.LOCAL, 0, b""))],
    ids=["epoll", "stream", "health check of a proxy"],
)
async def test_a_client_that_resets_after_its_login_counts(kind: TransportKind, header: bytes) -> None:
    async with serving(kind, admission=THREE_LOGINS, proxies="127.0.0.1" if header else "") as server:
        for number in range(10):
            log_in_and_reset(server, f"user-{number}", header=header)
        other = await server.connect(source=OTHER, header=header)
        await other.send(protocol.login("other"))
        assert await other.receive() is not None
        assert len([each for each in server.changes if each.op is Op.LOGIN and each.uid != "other"]) <= 3


async def test_the_address_of_a_client_that_resets_after_its_login_is_known() -> None:
    authenticator = WordAuthenticator()
    async with serving("epoll", authenticator=lambda clock: authenticator) as server:
        server.engine.records_addresses = True
        log_in_and_reset(server, "ada", token="ada:60")
        await server.until(lambda: server.changes)
        assert authenticator.addresses == ["127.0.0.1"]
        assert server.changes[0].profile.facts.address == "127.0.0.1"


async def test_a_connection_without_an_address_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems other than Linux accept a connection that was reset, and have no address for it."""
    accept = socket.socket._accept  # type: ignore[attr-defined] # typeshed has it on the base class only
    async with serving("epoll") as server:
        nameless = lambda listener: (accept(listener)[0], None)  # noqa: E731
        monkeypatch.setattr(socket.socket, "_accept", nameless)
        client = await server.dial()
        assert await client.all_bytes() == b""
        assert server.counted.accepted == 0


@pytest.mark.parametrize("kind", ["epoll", "stream", "tls"])
@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"POST"])
async def test_a_browser_on_the_tcp_port_is_told_where_it_is(kind: TransportKind, method: bytes) -> None:
    async with serving(kind) as server:
        client = await server.connect()
        await client.stream.send_all(method + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        with trio.fail_after(PATIENCE_S):
            while data := await client.stream.receive_some(4096):
                answer += data
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"WebSocket has a port of its own" in answer
        assert server.engine.statistics().refused == {"too_large": 1}


async def test_http_within_websocket_is_a_frame_that_is_too_large() -> None:
    async with serving("ws") as server:
        client = await server.connect()
        await client.stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
        assert [packet.payload["code"] for packet in await client.rest()] == [Code.TOO_LARGE]


# Banned addresses


def ban_address(server: Harness, network: str) -> None:
    server.engine.login_policy.bans = BanList(addresses=[AddressBan(network_of(network), math.inf, "spam")])


@both
async def test_a_connection_from_a_banned_address_is_refused_at_the_accept(kind: TransportKind) -> None:
    async with serving(kind, admission=AdmissionLimits(address_connections=5)) as server:
        ban_address(server, "127.0.0.0/31")
        (refusal,) = await (await server.connect()).rest()
        assert (refusal.kind, refusal.payload["code"], refusal.payload["message"]) == (
            *(Kind.ERROR, Code.BANNED),
            "spam",
        )
        other = await server.connect(source=OTHER)
        assert (await other.login("other")).kind == Kind.OK
        await server.remain(1)
        assert server.engine.statistics().refused == {"banned": 1}
        assert server.admission.statistics().address_connections_kept == 1


async def test_over_tls_a_banned_address_costs_no_handshake() -> None:
    async with serving("tls") as server:
        ban_address(server, "127.0.0.1")
        client = await server.dial()
        assert await client.all_bytes() == b""
        client.close()
        await server.remain(0)
        assert (server.counted.handshakes, server.counted.handshakes_failed) == (0, 0)
        assert server.engine.statistics().refused == {"banned": 1}


async def test_behind_a_proxy_the_address_of_the_client_is_banned_and_not_that_of_the_proxy() -> None:
    async with serving("epoll", proxies="127.0.0.0/8") as server:
        ban_address(server, "192.0.2.0/24")
        banned = await server.connect(header=proxies.of_client("192.0.2.7"))
        (refusal,) = await banned.rest()
        assert refusal.payload["code"] == Code.BANNED
        ban_address(server, "127.0.0.0/8")
        other = await server.connect(header=proxies.of_client("192.0.2.7"))
        assert (await other.login("other")).kind == Kind.OK


@pytest.mark.parametrize(("address", "is_banned"), [("2001:db8::5", True), ("2001:db8:0:1::5", False)])
async def test_a_ban_of_ipv6_is_of_whole_networks_of_64_bits(address: str, is_banned: bool) -> None:
    async with serving("epoll", proxies="127.0.0.0/8") as server:
        ban_address(server, "2001:db8::/64")
        client = await server.connect(header=proxies.of_client(address))
        await client.send(protocol.login("ann"))
        answer = await client.receive()
        assert answer is not None
        assert (answer.payload.get("code") == Code.BANNED) is is_banned


@both
async def test_a_client_whose_address_is_banned_after_the_accept_cannot_log_in(kind: TransportKind) -> None:
    async with serving(kind) as server:
        client = await server.connect()
        await server.remain(1)
        await trio.testing.wait_all_tasks_blocked(0.01)
        ban_address(server, "127.0.0.1")
        answer = await client.login("ann")
        assert (answer.kind, answer.payload["code"]) == (Kind.ERROR, Code.BANNED)
