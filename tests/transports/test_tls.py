"""TLS: limits of handshakes in number and time; records and frames; ends."""

import _ssl
import ctypes
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from presence import protocol
from presence.core.admission import AdmissionLimits
from presence.protocol import Code, Kind
from presence.transports.limits import Limits
from presence.transports.tls import Certificate
from presence.transports.tls_connection import RECORD_BYTES
from tests.support.state_table import brief
from tests.transports import certificates
from tests.transports.certificates import client_hello
from tests.transports.harness import PATIENCE_S, TransportKind, serving

# Handshakes


@pytest.mark.parametrize("kind", ["tls", "tls stream"])
async def test_silent_clients_time_out_and_free_their_places(kind: TransportKind) -> None:
    async with serving(kind, Limits(login_timeout=1.0), handshakes=1 if kind == "tls" else 100) as server:
        silent = [await server.dial() for _ in range(20)]
        await server.logged_in()
        for client in silent:
            assert await client.all_bytes() == b""
        await server.remain(1)
        await server.until(lambda: server.counted.login_timeouts == 20)
        assert server.engine.statistics().refused == {"login_timeout": 20}


async def test_trickled_bytes_do_not_extend_the_timeout() -> None:
    limit = 1.0
    async with serving("tls", Limits(login_timeout=limit)) as server, trio.open_nursery() as nursery:
        client = await server.dial()
        began = trio.current_time()
        hello = client_hello()

        async def trickle() -> None:
            for number in range(len(hello)):
                await client.tcp.send_all(hello[number : number + 1])
                await trio.sleep(0.02)

        nursery.start_soon(trickle)
        await server.until(lambda: server.counted.handshakes_underway == 1)
        await server.remain(0)
        took = trio.current_time() - began
        nursery.cancel_scope.cancel()
        assert took >= limit
        assert (server.counted.login_timeouts, server.counted.handshakes_underway) == (1, 0)


async def test_a_handshake_in_many_pieces() -> None:
    async with serving("tls") as server:
        client = await server.dial()
        for byte in client_hello():
            await client.tcp.send_all(bytes([byte]))
            await trio.lowlevel.checkpoint()
        with trio.fail_after(PATIENCE_S):
            answer = await client.tcp.receive_some(4096)
        assert answer[:1] == b"\x16", "a handshake record"


async def test_beyond_the_limit_the_oldest_handshake_is_given_up() -> None:
    async with serving("tls", handshakes=2) as server:
        stalled = [await server.dial() for _ in range(2)]
        for number, client in enumerate(stalled, 1):
            await client.tcp.send_all(client_hello())
            await server.until(lambda wanted=number: server.counted.handshakes_underway == wanted)  # type: ignore[misc]
        await server.logged_in()
        assert server.counted.handshakes_refused == 1
        await stalled[0].all_bytes()
        assert server.counted.handshakes_underway == 1, "the newer one's"
        assert server.counted.connections == 2


async def test_over_streams_handshakes_beyond_the_limit_are_refused() -> None:
    async with serving("tls stream", handshakes=1) as server:
        unfinished = await server.dial()
        await unfinished.tcp.send_all(client_hello())
        assert await unfinished.tcp.receive_some(1) == b"\x16"
        with pytest.raises(trio.BrokenResourceError):
            await server.connect()
        unfinished.close()
        await trio.testing.wait_all_tasks_blocked(0.05)
        await server.logged_in()


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (protocol.encode(protocol.login("ada")), b"this port is for TLS"),
        (b"\x16\x03\x01\x00\x10" + b"\x02" * 16, b"\x15"),  # an alert record
    ],
    ids=["no TLS", "no handshake"],
)
async def test_invalid_handshakes_get_an_alert(sent: bytes, answer: bytes) -> None:
    async with serving("tls") as server:
        client = await server.dial()
        await client.tcp.send_all(sent)
        assert answer in await client.all_bytes()
        client.close()
        await server.remain(0)
        assert server.counted.handshakes_failed == 1
        assert server.counted.handshakes_underway == server.counted.tls_connections == 0


async def test_an_excess_connection_is_closed_without_a_packet() -> None:
    async with serving("tls", admission=AdmissionLimits(max_connections=1)) as server:
        first = await server.logged_in()
        second = await server.dial()
        await second.tcp.send_all(client_hello())
        assert await second.all_bytes() == b""
        second.close()
        await first.beat()
        assert server.engine.statistics().refused == {"busy": 1}
        await server.remain(1)


async def test_a_login_that_arrived_with_the_handshake_during_a_stall_counts() -> None:
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
        (connection,) = server.epoll._connections.by_fd.values()
        sock = client.tcp.socket._sock  # type: ignore[attr-defined] # trio's wrapper would yield to other tasks
        sock.send(outgoing.read())
        server.epoll._timed_out(connection)
        assert server.registry.get("ada") is not None
        assert server.counted.login_timeouts == 0


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda v: v.name)
async def test_both_tls_versions_are_supported(version: ssl.TLSVersion) -> None:
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


@pytest.mark.parametrize("kind", ["tls", "tls stream", "wss"])
async def test_a_returning_client_resumes_its_session_after_a_new_certificate(
    kind: TransportKind, tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    certificates.authority().configure_trust(context)
    certificate = Certificate(*certificates.write(tmp_path))

    def shown(session: ssl.SSLSession | None) -> tuple[bytes | None, bool | None, ssl.SSLSession | None]:
        """Return the certificate, whether the session was resumed, and the next session."""
        tcp = socket.create_connection(server.address, PATIENCE_S)
        with context.wrap_socket(tcp, server_hostname=certificates.HOST, session=session) as tls:
            tls.sendall(b"\xff\xff\xff\xff")  # an invalid frame, which is answered
            tls.recv(1)
            return tls.getpeercert(binary_form=True), tls.session_reused, tls.session

    async with serving(kind, certificate=certificate) as server:
        first, is_resumed, session = await trio.to_thread.run_sync(shown, None)
        assert not is_resumed
        certificates.write(tmp_path, number=1)
        certificate.use(certificate.read())
        assert (await trio.to_thread.run_sync(shown, session))[1]
        second, is_resumed, _ = await trio.to_thread.run_sync(shown, None)
        assert not is_resumed
        assert second != first
        assert (server.counted.handshakes, server.counted.handshakes_resumed) == (3, 1)


# Records and frames


async def test_a_record_of_maximum_size_holds_many_packets() -> None:
    size = len(protocol.encode(protocol.keepalive(70_000)))
    packets = [protocol.keepalive(70_000 + number) for number in range(RECORD_BYTES // size)]
    async with serving("tls", window_s=60.0) as server:
        client = await server.logged_in()
        await client.send(*packets)
        assert [each.id for each in await client.take(len(packets))] == [each.id for each in packets]


async def test_a_packet_over_several_records_is_one() -> None:
    async with serving("tls") as server:
        client = await server.logged_in()
        data = protocol.encode(protocol.message("bob", b"x" * 16_000, id=1))
        for begin in range(0, len(data), 1000):
            await client.stream.send_all(data[begin : begin + 1000])
        assert brief((await client.take(1))[0]) == (Kind.ERROR, 1, Code.UNSUPPORTED)


async def test_a_corrupted_record_ends_the_connection_with_a_grace_period() -> None:
    async with serving("tls") as server:
        client = await server.logged_in()
        await client.tcp.send_all(b"\x17\x03\x03\x00\x20" + bytes(32))
        await server.remain(0)
        assert server.session("ada").transport is None
        assert server.ends() == []


def _renew_keys(
    address: tuple[str, int],
    most: int,
    *,
    of_both: bool,
    receive_buffer: int = 65_536,
    first: bytes = b"",
    between: bytes = b"",
    then: bytes = b"",
) -> int:
    """Shake hands, and renew keys until the server ends the connection; return how often.

    Args:
        first, between: what is sent before each renewal; no answer is read.
        then: what is sent after the last one; its answer is read.
    """
    library = ctypes.CDLL(_ssl.__file__)  # libssl and libcrypto: the `ssl` module cannot renew keys
    for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
        getattr(library, name).restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.SSL_CTX_new(ctypes.c_void_p(library.TLS_client_method())))
    connection = ctypes.c_void_p(library.SSL_new(context))
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.connect(address)
        library.SSL_set_fd(connection, sock.fileno())
        assert library.SSL_connect(connection) == 1
        done = 0
        while done < most:
            said = between if done else first
            if said and library.SSL_write(connection, said, len(said)) != len(said):
                break
            library.SSL_key_update(connection, int(of_both))
            if library.SSL_do_handshake(connection) != 1:
                break
            done += 1
        if then:
            assert library.SSL_write(connection, then, len(then)) == len(then)
            answer = ctypes.create_string_buffer(4096)
            assert library.SSL_read(connection, answer, 4096) > 0, "with the server's own new keys"
    library.SSL_free(connection)
    library.SSL_CTX_free(context)
    return done


async def test_a_client_may_renew_the_keys_of_both_sides() -> None:
    async with serving("tls") as server:
        login = protocol.encode(protocol.login("ada", id=1))
        await trio.to_thread.run_sync(lambda: _renew_keys(server.address, 3, of_both=True, then=login))
        assert server.history() == [("login", "ada", "login")]


async def test_endless_key_renewals_end_the_connection() -> None:
    async with serving("tls") as server:
        most = 20_000  # the library itself gives up after that many
        done = await trio.to_thread.run_sync(lambda: _renew_keys(server.address, most, of_both=False))
        assert done < most
        await server.remain(0)


async def test_a_client_that_renews_the_keys_of_both_sides_and_never_reads_is_cut_off() -> None:
    """What the library says by itself waits for the client like all other bytes, and is bounded like them."""
    async with serving("tls", Limits(unsent_bytes=8192), send_buffer=4096) as server:
        most, login = 20_000, protocol.encode(protocol.login("ada"))
        done = await trio.to_thread.run_sync(
            lambda: _renew_keys(
                server.address,
                most,
                of_both=True,
                receive_buffer=4096,
                first=login,
                between=protocol.KEEPALIVE,
            )
        )
        assert done < most
        assert server.counted.slow_readers == 1
        assert server.session("ada").transport is None, "lost, within its grace"


# Ends


async def test_both_sides_close_cleanly() -> None:
    async with serving("tls") as server:
        client = await server.logged_in()
        assert isinstance(client.stream, trio.SSLStream)
        with trio.fail_after(PATIENCE_S):
            client.stream, _ = await client.stream.unwrap()  # returns once the server has sent its close
        await server.remain(0)
        assert server.session("ada").transport is None


async def test_a_close_with_the_last_packet_is_noticed() -> None:
    async with serving("tls", window_s=60.0) as server:
        client = await server.logged_in()
        tcp_stream = client.tcp
        tcp_stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        await client.send(protocol.keepalive(1))
        assert isinstance(client.stream, trio.SSLStream)
        with suppress(trio.BrokenResourceError), trio.move_on_after(0.1):
            await client.stream.unwrap()  # would wait for the server's close, and gets the answer
        tcp_stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        await server.until(lambda: server.session("ada").transport is None)
        client.stream = tcp_stream
