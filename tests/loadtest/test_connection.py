"""Where devices connect to, and from; what a connection says when it ends."""

import itertools
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

import protocol
from loadtest.connection import Connection, ConnectionEnded, parse_host, source_addresses


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection and the server's end of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = Connection(listener.getsockname()[:2])
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
        connection = Connection(listener.getsockname()[:2], "127.0.0.9")
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
