"""TLS over epoll, once the handshake is over: records beside frames, reads on demand, ends."""

import _ssl
import ctypes
import socket
import ssl
import subprocess
import threading
from contextlib import suppress

import pytest
import trio

import protocol
from presence.transports.connections import CALM_BEATS, PATIENT, PROMPT, Connections
from presence.transports.epoll import EpollTransport
from presence.transports.tls_wire import RECORD_BYTES, TlsWire
from protocol import Code, Kind, Packet
from tests.cells import brief
from tests.transports import certificates
from tests.transports.harness import PATIENCE_S, Client, Harness, serving
from tests.transports.test_epoll import open_descriptors
from tests.transports.test_handshakes import client_hello


def connections_of(server: Harness) -> Connections:
    assert isinstance(server.transport, EpollTransport)
    return server.transport._connections


async def logged_in(server: Harness, uid: str = "ada") -> Client:
    client = await server.connect()
    assert (await client.login(uid)).kind == Kind.OK
    return client


async def answers(client: Client, count: int) -> list[Packet]:
    packets = []
    with trio.fail_after(PATIENCE_S):
        for _ in range(count):
            packet = await client.receive()
            assert packet is not None
            packets.append(packet)
    return packets


# Records beside frames


async def test_a_record_as_large_as_can_be_holds_many_packets() -> None:
    size = len(protocol.encode(protocol.keepalive(70_000)))
    packets = [protocol.keepalive(70_000 + number) for number in range(RECORD_BYTES // size)]
    async with serving("tls", window_s=60.0) as server:
        client = await logged_in(server)
        await client.send(*packets)
        assert [each.id for each in await answers(client, len(packets))] == [each.id for each in packets]


async def test_a_packet_over_several_records_is_one() -> None:
    async with serving("tls") as server:
        client = await logged_in(server)
        data = protocol.encode(protocol.message("bob", b"x" * 16_000, id=1))
        for begin in range(0, len(data), 1000):
            await client.stream.send_all(data[begin : begin + 1000])
        assert brief((await answers(client, 1))[0]) == (Kind.ERROR, 1, Code.UNSUPPORTED)


async def test_an_answer_over_several_records_is_read_whole() -> None:
    async with serving("tls") as server:
        client = await logged_in(server)
        session = server.session("ada")
        assert session.link is not None
        session.link.send(session.handle, protocol.encode(protocol.deliver("bob", b"x" * 200_000, 1)))
        (push,) = await answers(client, 1)
        assert push.payload["body"] == b"x" * 200_000


async def test_a_record_that_the_network_changed_ends_the_connection_with_its_grace() -> None:
    async with serving("tls") as server:
        client = await logged_in(server)
        await client.tcp.send_all(b"\x17\x03\x03\x00\x20" + bytes(32))
        await server.until(lambda: server.transport.statistics().connections == 0)
        assert server.session("ada").link is None
        assert server.ends() == []


# Paces


async def test_keepalives_leave_a_tls_connection_among_the_patient() -> None:
    async with serving("tls") as server:
        client = await logged_in(server)
        fd = server.session("ada").handle
        beats = server.core.statistics().beats
        for number in range(5):
            await client.stream.send_all(protocol.KEEPALIVE)
            await server.until(lambda wanted=beats + number + 1: server.core.statistics().beats == wanted)  # type: ignore[misc]
        assert connections_of(server).pace[fd] == PATIENT


async def test_a_tls_connection_that_asks_is_watched_by_the_prompt_until_it_is_calm() -> None:
    async with serving("tls") as server:
        client = await logged_in(server)
        fd = server.session("ada").handle
        await client.beat()
        await server.until(lambda: connections_of(server).pace[fd] == PROMPT)
        for _ in range(CALM_BEATS + 1):
            beats = server.core.statistics().beats
            await client.stream.send_all(protocol.KEEPALIVE)
            await server.until(lambda wanted=beats + 1: server.core.statistics().beats == wanted)  # type: ignore[misc]
        assert connections_of(server).pace[fd] == PATIENT


# Reads on demand


@pytest.mark.parametrize(
    "records",
    [
        (protocol.KEEPALIVE[:4], protocol.KEEPALIVE[4:]),
        (protocol.KEEPALIVE, protocol.encode(protocol.logout())),
    ],
    ids=["a packet in two", "a packet behind another"],
)
async def test_look_finds_all_records_that_wait(records: tuple[bytes, bytes]) -> None:
    async with serving("tls", window_s=60.0) as server:
        client = await logged_in(server)
        session = server.session("ada")
        seen = session.last_seen
        await client.stream.send_all(protocol.KEEPALIVE)
        await server.until(lambda: session.last_seen > seen)  # from now on the window keeps all else waiting
        frames, beats = server.core.statistics().frames, server.core.statistics().beats
        for record in records:
            await client.stream.send_all(record)
        assert session.link is not None
        session.link.look(session.handle)
        heard = server.core.statistics().frames - frames + server.core.statistics().beats - beats
        assert heard == b"".join(records).count(b"\x00\x00\x00")


async def test_how_long_a_packet_lay_unread_is_known() -> None:
    async with serving("tls") as server:
        client = await logged_in(server)
        session = server.session("ada")
        assert session.link is not None
        await client.beat()
        await trio.sleep(0.2)
        assert session.link.unread_s(session.handle) >= 0.15
        assert session.link.address(session.handle) == "127.0.0.1"


async def test_a_read_that_must_write_first_goes_on_when_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving("tls") as server:
        client = await logged_in(server)
        read, refusals = TlsWire.read, 3

        def reluctant(wire: TlsWire, limit: int) -> bytes:
            nonlocal refusals
            refusals -= 1
            if refusals >= 0:
                raise ssl.SSLWantWriteError
            return read(wire, limit)

        monkeypatch.setattr(TlsWire, "read", reluctant)
        await client.beat()
        assert refusals < 0


@pytest.mark.needs("openssl")
async def test_a_client_may_renew_its_keys() -> None:
    async with serving("tls") as server:
        host, port = server.address
        process = await trio.lowlevel.open_process(
            ["openssl", "s_client", "-connect", f"{host}:{port}", "-tls1_3"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            await process.stdin.send_all(protocol.encode(protocol.login("ada")))
            await server.until(lambda: server.registry.get("ada"))
            await process.stdin.send_all(b"K\n")  # renew yours, too
            said = b""
            with trio.fail_after(PATIENCE_S):
                while b"KEYUPDATE" not in said:
                    said += await process.stderr.receive_some()
            frames = server.core.statistics().frames
            await process.stdin.send_all(protocol.encode(protocol.logout()))
            await server.until(lambda: server.core.statistics().frames > frames)
            assert server.story()[-1] == ("end", "ada", "logout")
        finally:
            process.kill()
            await process.wait()


def _renew_keys(address: tuple[str, int], most: int) -> int:
    """Shake hands, and renew keys until the server has enough of it; return how often."""
    library = ctypes.CDLL(_ssl.__file__)  # and what it stands on: `ssl` itself cannot renew keys
    for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
        getattr(library, name).restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.SSL_CTX_new(ctypes.c_void_p(library.TLS_client_method())))
    connection = ctypes.c_void_p(library.SSL_new(context))
    with socket.create_connection(address) as sock:
        library.SSL_set_fd(connection, sock.fileno())
        assert library.SSL_connect(connection) == 1
        done = 0
        while done < most:
            library.SSL_key_update(connection, 0)
            if library.SSL_do_handshake(connection) != 1:
                break
            done += 1
    library.SSL_free(connection)
    library.SSL_CTX_free(context)
    return done


async def test_keys_that_are_renewed_without_end_end_the_connection() -> None:
    async with serving("tls") as server:
        done = await trio.to_thread.run_sync(_renew_keys, server.address, 200_000)
        print(f"test_keys_that_are_renewed_without_end_end_the_connection: after {done} times")
        assert done < 200_000
        await server.until(lambda: server.transport.statistics().connections == 0)


# Ends


async def test_both_sides_say_goodbye() -> None:
    async with serving("tls") as server:
        client = await logged_in(server)
        assert isinstance(client.stream, trio.SSLStream)
        with trio.fail_after(PATIENCE_S):
            client.stream, _ = await client.stream.unwrap()  # returns once the server's goodbye has come
        await server.until(lambda: server.transport.statistics().connections == 0)
        assert server.session("ada").link is None


async def test_a_goodbye_that_comes_with_the_last_packet_is_heard() -> None:
    async with serving("tls", window_s=60.0) as server:
        client = await logged_in(server)
        tcp_stream = client.tcp
        tcp_stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        await client.send(protocol.keepalive(1))
        assert isinstance(client.stream, trio.SSLStream)
        with suppress(trio.BrokenResourceError), trio.move_on_after(0.1):
            await client.stream.unwrap()  # would wait for the server's goodbye, and gets the answer
        tcp_stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        await server.until(lambda: server.session("ada").link is None)
        client.stream = tcp_stream


def _leave(address: tuple[str, int], number: int) -> None:
    """Connect and close: silent, in the middle of the handshake, after it, after a login, after a mistake."""
    sock = socket.create_connection(address)
    how = number % 5
    if how == 1:
        sock.sendall(client_hello()[: number + 1])
    elif how > 1:
        secured = certificates.client_context().wrap_socket(sock, server_hostname=certificates.HOST)
        if how > 2:
            secured.sendall(protocol.encode(protocol.login("ada")) if how == 3 else b"\xff\xff\xff\xff")
        sock = secured
    if number % 3:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0" + bytes(4))
    sock.close()


async def _come_and_go(address: tuple[str, int], times: int) -> None:
    """Do so in a thread; a worker thread of trio's would keep a descriptor."""

    def work() -> None:
        for number in range(times):
            _leave(address, number)

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():  # noqa: ASYNC110 - nothing tells of its end
        await trio.sleep(0.01)


async def test_cycles_leave_nothing_behind() -> None:
    cycles = 300
    async with serving("tls", grace=0.0) as server:
        await (await logged_in(server, "first")).stream.aclose()
        await server.until(lambda: server.transport.statistics().connections == 0)
        before = open_descriptors()
        await _come_and_go(server.address, cycles)
        await server.until(lambda: server.transport.statistics().closed == cycles + 1, 30.0)
        connections = connections_of(server)
        print(
            f"test_cycles_leave_nothing_behind: {cycles} cycles, {server.core.statistics().logins - 1} logins"
        )
        assert open_descriptors() == before
        assert not connections.wires
        assert not connections.shaking
        assert not connections.deadlines
        assert not any(connections.occupants)
