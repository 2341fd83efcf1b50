"""Where devices connect to, and from; what a connection says when it ends."""

import itertools
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

import protocol
from loadtest.connection import (
    ASKING_ID,
    Connection,
    ConnectionEnded,
    parse_host,
    resolve,
    source_addresses,
)


class Polling:
    """Waiting for a socket, with nobody else to go on meanwhile."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def readable(self, until: float) -> bool:
        return self._wait(select.POLLIN, until)

    def writable(self, until: float) -> bool:
        return self._wait(select.POLLOUT, until)

    def end(self) -> None:
        pass

    def _wait(self, event: int, until: float) -> bool:
        poll = select.poll()
        poll.register(self._fd, event)
        return bool(poll.poll(max(0.0, until - time.monotonic()) * 1000))


def connected(listener: socket.socket, source: str | None = None) -> Connection:
    return Connection(listener.getsockname()[:2], source, Polling)


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection and the server's end of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = connected(listener)
        server, _ = listener.accept()
        with server:
            yield connection, server
        connection.close()


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("example.org", ("example.org", 7400)),
        ("10.0.0.1:99", ("10.0.0.1", 99)),
        ("tcp://10.0.0.1:99/", ("10.0.0.1", 99)),
        ("[::1]:99", ("::1", 99)),
        ("[::1]", ("::1", 7400)),
    ],
)
def test_a_host_may_be_written_so(host: str, address: tuple[str, int]) -> None:
    assert parse_host(host) == address


@pytest.mark.parametrize("host", ["http://10.0.0.1:99", "10.0.0.1:http"])
def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match=r"tcp://|not a port"):
        parse_host(host)


def test_a_loopback_target_is_reached_from_many_addresses() -> None:
    addresses = list(itertools.islice(source_addresses("127.0.0.1", 3), 4))
    assert addresses == ["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.2"]


@pytest.mark.parametrize(
    ("host", "count"), [("10.0.0.1", 3), ("example.org", 3), ("::1", 3), ("127.0.0.1", 0)]
)
def test_elsewhere_the_kernel_chooses(host: str, count: int) -> None:
    assert next(source_addresses(host, count)) is None


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere 127.0.0.1 is the only loopback address")
def test_a_connection_comes_from_its_source_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = connected(listener, "127.0.0.9")
        server, (host, _) = listener.accept()
        server.close()
        connection.close()
    assert host == "127.0.0.9"


def test_a_packet_in_two_pieces_is_one(pair: tuple[Connection, socket.socket]) -> None:
    connection, server = pair
    frame = protocol.encode(protocol.ok(7))
    server.sendall(frame[:3])
    assert connection.receive(time.monotonic() + 0.05) is None
    server.sendall(frame[3:])
    assert connection.receive(time.monotonic() + 5) == protocol.ok(7)


def test_packets_that_come_together_are_taken_one_by_one(pair: tuple[Connection, socket.socket]) -> None:
    connection, server = pair
    packets = [protocol.ok(ASKING_ID), protocol.ok(7), protocol.ok(ASKING_ID)]
    server.sendall(b"".join(map(protocol.encode, packets)))
    assert [connection.receive(time.monotonic() + 5) for _ in packets] == packets


def test_what_the_server_never_reads_ends_the_connection(pair: tuple[Connection, socket.socket]) -> None:
    connection, _ = pair
    with pytest.raises(ConnectionEnded, match="does not read"):
        connection.send(bytes(100_000_000))


def test_a_port_that_nobody_listens_on_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
    with pytest.raises(ConnectionRefusedError):
        Connection(address, None, Polling)


def test_a_name_is_looked_up_once() -> None:
    assert resolve(("localhost", 7)) in {("127.0.0.1", 7), ("::1", 7)}


def test_a_name_that_nobody_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"nobody\.invalid"):
        resolve(("nobody.invalid", 7))


def test_the_servers_close_is_told(pair: tuple[Connection, socket.socket]) -> None:
    connection, server = pair
    server.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionEnded, match="closed by the server"):
        connection.receive(time.monotonic() + 5)


def test_a_reset_reaches_the_server_as_one(pair: tuple[Connection, socket.socket]) -> None:
    connection, server = pair
    connection.close(reset=True)
    with pytest.raises(ConnectionResetError):
        server.recv(1)


def test_the_file_limit_is_raised_to_the_hard_one() -> None:
    code = (
        "import resource; from loadtest.connection import raise_file_limit; "
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard)); print(raise_file_limit())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
