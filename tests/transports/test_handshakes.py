"""Handshakes: what they cost who is silent, how many and how long, and what is told to whom none succeeds."""

import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import trio

import protocol
from presence.admission import AdmissionLimits
from presence.transports.connections import SHAKING
from presence.transports.epoll import EpollTransport
from presence.transports.limits import Limits
from presence.transports.statistics import TransportStatistics
from presence.transports.tls import Certificate
from protocol import Code, Kind
from tests.cells import brief
from tests.transports import certificates
from tests.transports.harness import PATIENCE_S, Client, Harness, serving
from tests.transports.test_watches import fill


def figures(server: Harness) -> TransportStatistics:
    statistics = server.transport.statistics()
    assert isinstance(statistics, TransportStatistics)
    return statistics


def client_hello() -> bytes:
    """Return what a client says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = certificates.client_context()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=certificates.HOST).do_handshake()
    return outgoing.read()


async def end_of(client: Client) -> bytes:
    """Return all that comes over TCP until its end."""
    data = b""
    with trio.fail_after(PATIENCE_S):
        while chunk := await client.tcp.receive_some(4096):
            data += chunk
    return data


async def shown(server: Harness) -> bytes:
    """Connect, log in, leave; return the certificate that was shown."""
    client = await server.connect()
    await client.login("someone")
    assert isinstance(client.stream, trio.SSLStream)
    der = client.stream.getpeercert(binary_form=True)
    assert isinstance(der, bytes)
    return der


async def test_the_silent_go_in_time_and_take_nobodys_place() -> None:
    async with serving("tls", Limits(login_timeout=1.0), handshakes=1) as server:
        silent = [await server.dial() for _ in range(20)]
        await server.until(lambda: figures(server).connections == 20)
        await (await server.connect()).login("ada")
        for client in silent:
            assert await end_of(client) == b""
        await server.until(lambda: figures(server).connections == 1)
        assert figures(server).login_timeouts == 20
        assert server.core.statistics().refused == {"login_timeout": 20}


async def test_a_byte_now_and_then_gains_no_time() -> None:
    limit = 1.0
    async with serving("tls", Limits(login_timeout=limit)) as server:
        client = await server.dial()
        began = trio.current_time()
        hello = client_hello()

        async def trickle() -> None:
            for number in range(len(hello)):
                await client.tcp.send_all(hello[number : number + 1])
                await trio.sleep(0.02)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trickle)
            await server.until(lambda: figures(server).handshakes_underway == 1)
            await server.until(lambda: figures(server).connections == 0)
            took = trio.current_time() - began
            nursery.cancel_scope.cancel()
        print(f"test_a_byte_now_and_then_gains_no_time: gone after {took:.2f} s of {limit} s")
        assert took >= limit
        assert figures(server).login_timeouts == 1
        assert figures(server).handshakes_underway == 0


async def test_a_handshake_in_many_pieces() -> None:
    async with serving("tls") as server:
        client = await server.dial()
        for byte in client_hello():
            await client.tcp.send_all(bytes([byte]))
            await trio.lowlevel.checkpoint()
        with trio.fail_after(PATIENCE_S):
            answer = await client.tcp.receive_some(4096)
        assert answer[:1] == b"\x16", "a handshake's record"


async def test_beyond_their_number_the_oldest_is_given_up() -> None:
    async with serving("tls", handshakes=2) as server:
        stalled = [await server.dial() for _ in range(2)]
        for number, client in enumerate(stalled, 1):
            await client.tcp.send_all(client_hello())
            await server.until(lambda wanted=number: figures(server).handshakes_underway == wanted)  # type: ignore[misc]
        await (await server.connect()).login("ada")
        assert figures(server).handshakes_refused == 1
        with suppress(trio.BrokenResourceError):
            await end_of(stalled[0])
        assert figures(server).handshakes_underway == 1, "the younger one's"
        assert figures(server).connections == 2


async def test_a_client_without_tls_is_told() -> None:
    async with serving("tls") as server:
        client = await server.dial()
        await client.send(protocol.login("ada"))
        (refusal,) = await client.rest()
        assert brief(refusal) == (Kind.ERROR, None, Code.PROTOCOL_ERROR)
        assert refusal.payload["message"] == "this port is for TLS"
        client.close()
        await server.until(lambda: figures(server).connections == 0)
        assert figures(server).handshakes_failed == 1
        assert figures(server).handshakes_underway == figures(server).tls_connections == 0


async def test_what_is_no_handshake_gets_an_alert() -> None:
    async with serving("tls") as server:
        client = await server.dial()
        await client.tcp.send_all(b"\x16\x03\x01\x00\x10" + b"\x02" * 16)
        assert (await end_of(client))[:1] == b"\x15", "an alert's record"
        client.close()
        await server.until(lambda: figures(server).connections == 0)
        assert figures(server).handshakes_failed == 1
        assert figures(server).handshakes_underway == 0


async def test_who_leaves_before_his_first_byte_or_in_the_middle_is_forgotten() -> None:
    async with serving("tls") as server:
        for data in (b"", client_hello()[:20], client_hello()):
            for reset in (False, True):
                client = await server.dial()
                await client.tcp.send_all(data)
                await server.until(lambda: figures(server).connections == 1)
                client.reset() if reset else client.close()
                await server.until(lambda: figures(server).connections == 0)
        assert figures(server).handshakes_failed == 6
        assert figures(server).handshakes_underway == figures(server).tls_connections == 0


async def test_a_connection_too_many_is_closed_without_a_word_that_tls_would_not_know() -> None:
    async with serving("tls", admission=AdmissionLimits(max_connections=1)) as server:
        first = await server.connect()
        await first.login("ada")
        second = await server.dial()
        await second.tcp.send_all(client_hello())
        assert await end_of(second) == b""
        second.close()
        await first.beat()
        assert server.core.statistics().refused == {"busy": 1}
        await server.until(lambda: figures(server).connections == 1)


async def test_a_connection_that_cannot_be_watched_is_dropped_and_others_follow() -> None:
    async with serving("tls") as server:
        full = fill(server, SHAKING)
        dropped = await server.dial()
        assert await end_of(dropped) == b""
        full.full = False
        await (await server.connect()).login("next")
        assert figures(server).connections == 1


async def test_a_reload_is_for_those_who_come_then_and_drops_nobody(tmp_path: Path) -> None:
    certificate = Certificate(*certificates.write(tmp_path, 1))
    async with serving("tls", certificate=certificate) as server:
        client = await server.connect()
        await client.login("ada")
        began = await server.dial()  # its handshake is yet to come
        before = await shown(server)
        certificates.write(tmp_path, 2)
        certificate.use(certificate.read())
        after = await shown(server)
        assert before != after
        await client.beat()
        stream = trio.SSLStream(began.tcp, certificates.client_context(), server_hostname=certificates.HOST)
        await stream.do_handshake()
        assert stream.getpeercert(binary_form=True) == after
        assert server.ends() == []


async def test_a_login_that_came_with_the_handshake_while_the_server_stood_still_counts() -> None:
    async with serving("tls", Limits(login_timeout=1.5)) as server:
        client = await server.dial()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = certificates.client_context()
        tls = context.wrap_bio(incoming, outgoing, server_hostname=certificates.HOST)
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        await client.tcp.send_all(outgoing.read())
        incoming.write(await client.tcp.receive_some(16_384))
        tls.do_handshake()
        tls.write(protocol.encode(protocol.login("ada")))
        transport = server.transport
        assert isinstance(transport, EpollTransport)
        (fd,) = transport._connections.wires
        sock = client.tcp.socket._sock  # type: ignore[attr-defined] # what trio wraps, and gives others a turn
        sock.send(outgoing.read())
        transport._time_is_up(fd)
        assert server.registry.get("ada") is not None
        assert figures(server).login_timeouts == 0


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda v: v.name)
async def test_both_versions_are_spoken(version: ssl.TLSVersion) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = version
    certificates.authority().configure_trust(context)
    async with serving("tls") as server:
        client = await server.dial()
        client.stream = trio.SSLStream(client.tcp, context, server_hostname=certificates.HOST)
        await client.login("ada")
        await client.beat()
        await client.send(protocol.logout(id=2))
        assert [brief(each) for each in await client.rest()] == [(Kind.OK, 2, None)]
