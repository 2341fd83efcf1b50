"""Clients against a server that does what a test says."""

import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import trustme

import protocol
from loadtest.client_loop import AWAY, Client, ClientLoop
from protocol import Code

OK = protocol.encode(protocol.ok(1, session="s-1"))
PUSH = protocol.encode(protocol.deliver("ann", "hello", 5))
RUN_S = 5.0


class Listening(Client):
    """Keeps what comes."""

    def __init__(self, loop: ClientLoop) -> None:
        super().__init__(loop, "bob", "pad")
        self.packets: list[Any] = []
        self.ends: list[Any] = []

    def heard(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        self.packets.append((kind, id, payload))

    def ended(self, payload: Mapping[str, Any] | None, now: float) -> None:
        self.ends.append(payload)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.settimeout(RUN_S)
        yield sock


@pytest.fixture
def loop(listener: socket.socket) -> Iterator[ClientLoop]:
    with ClientLoop(listener.getsockname(), beat_s=0.1) as found:
        yield found


def accepted(loop: ClientLoop, listener: socket.socket, client: Client) -> socket.socket:
    """Let the client connect; return the server's end, once it is logged in."""
    client.connect()
    loop.run(0.02)
    server, _ = listener.accept()
    server.settimeout(RUN_S)
    loop.run(0.02)
    server.sendall(OK)
    assert loop.run(RUN_S, lambda: client.is_in)
    return server


def test_a_client_logs_in_and_beats(loop: ClientLoop, listener: socket.socket) -> None:
    with accepted(loop, listener, Listening(loop)) as server:
        loop.run(0.15)
        login, beats = protocol.encode(protocol.login("bob", id=1, device="pad")), protocol.KEEPALIVE
        assert server.recv(4096).startswith(login + beats)


def test_packets_are_heard_however_they_are_cut(loop: ClientLoop, listener: socket.socket) -> None:
    client = Listening(loop)
    with accepted(loop, listener, client) as server:
        server.sendall(PUSH * 2 + PUSH[:7])
        loop.run(0.02)
        assert len(client.packets) == 2
        server.sendall(PUSH[7:])
        assert loop.run(RUN_S, lambda: len(client.packets) == 3)
    assert client.packets[2] == (67, None, {"from": "ann", "body": "hello", "at_ms": 5})


def test_what_the_kernel_does_not_take_is_sent_later(loop: ClientLoop, listener: socket.socket) -> None:
    client = Listening(loop)
    with accepted(loop, listener, client) as server:
        client.beats = False
        server.setblocking(False)
        size, got = 8 << 20, bytearray()
        client.send(bytes(size))
        client.send(b"end")

        def is_all_there() -> bool:
            with suppress(BlockingIOError):
                got.extend(server.recv(1 << 20))
            return got.endswith(b"end")

        assert loop.run(RUN_S, is_all_there)
    assert got.count(0) >= size


@pytest.mark.parametrize(
    ("farewell", "is_back"),
    [
        (b"", True),
        (protocol.encode(protocol.goodbye(Code.SERVER_DRAIN, retry_after=0.01)), True),
        (protocol.encode(protocol.goodbye(Code.KICKED)), False),
    ],
    ids=["broken", "drain", "kicked"],
)
def test_a_client_returns_if_it_may(
    loop: ClientLoop, listener: socket.socket, farewell: bytes, is_back: bool
) -> None:
    client = Listening(loop)
    with accepted(loop, listener, client) as server:
        server.sendall(farewell)
    assert loop.run(RUN_S, lambda: bool(client.ends))
    assert (client.fd, client.is_in) == (AWAY, False)
    assert loop.run(0.6, lambda: client.fd != AWAY) == is_back


def test_whoever_is_deaf_reads_nothing_until_woken(loop: ClientLoop, listener: socket.socket) -> None:
    client = Listening(loop)
    with accepted(loop, listener, client) as server:
        loop.hear(client, on=False)
        server.sendall(PUSH)
        loop.run(0.05)
        assert client.packets == []
        loop.hear(client, on=True)
        assert loop.run(RUN_S, lambda: len(client.packets) == 1)


def test_things_are_done_when_they_are_due(loop: ClientLoop) -> None:
    done: list[int] = []
    now = time.monotonic()
    loop.at(now + 0.02, lambda: done.append(2))
    loop.at(now + 0.01, lambda: done.append(1))
    assert loop.run(RUN_S, lambda: len(done) == 2)
    assert done == [1, 2]


def test_one_that_does_not_hang_up_waits_for_the_close(loop: ClientLoop, listener: socket.socket) -> None:
    client = Listening(loop)
    client.hangs_up = client.returns = False
    with accepted(loop, listener, client) as server:
        server.sendall(protocol.encode(protocol.goodbye(Code.KICKED)))
        assert not loop.run(0.05, lambda: bool(client.ends))
    assert loop.run(RUN_S, lambda: bool(client.ends))
    assert client.ends[0]["code"] == Code.KICKED


def test_tls_carries_more_than_a_buffer_either_way(loop: ClientLoop, listener: socket.socket) -> None:
    authority, server_side = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server_side)
    client, got = Listening(loop), bytearray()
    client.context = ssl.create_default_context()
    client.context.check_hostname = client.beats = False
    authority.configure_trust(client.context)

    def serve() -> None:
        sock, _ = listener.accept()
        with server_side.wrap_socket(sock, server_side=True) as server:
            server.recv(4096)
            server.sendall(OK + PUSH * 20_000)
            while not got.endswith(b"end"):
                got.extend(server.recv(1 << 20))

    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve)
        client.connect()
        assert loop.run(RUN_S, lambda: len(client.packets) == 20_000)
        client.send(bytes(8 << 20))
        client.send(b"end")
        assert loop.run(RUN_S, served.done)
        served.result()
    assert len(got) == (8 << 20) + 3
