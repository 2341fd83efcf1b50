"""Where load generators connect to, and from, and how many connections they may have."""

import _socket
import contextlib
import ipaddress
import itertools
import resource
import socket
import struct
from collections.abc import Iterator

DEFAULT_PORT = 7400
_LINGER_0_S = struct.pack("ii", 1, 0)


def parse_host(host: str) -> tuple[str, int]:
    """Return host and port of ``HOST``, ``HOST:PORT``, ``[V6]:PORT`` or the same after ``tcp://``.

    Raises:
        ValueError: the port is no number, or another scheme stands before it.
    """
    scheme, found, rest = host.rpartition("://")
    if found and scheme != "tcp":
        raise ValueError(f"{host}: devices speak plain TCP, so only tcp:// can stand before it")
    name, _, port = rest.rstrip("/").rpartition(":")
    if not name or name.endswith(":"):
        return rest.rstrip("/").strip("[]"), DEFAULT_PORT
    if not port.isdigit():
        raise ValueError(f"{host}: {port} is not a port")
    return name.strip("[]"), int(port)


def resolve(address: tuple[str, int]) -> tuple[str, int]:
    """Return the address as numbers, so that no connection needs a lookup.

    Raises:
        ValueError: the name is unknown.
    """
    host, port = address
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"{host}: {error.strerror or error}") from None
    return str(found[0][4][0]), port


def source_addresses(host: str, count: int) -> Iterator[str | None]:
    """Yield the addresses to connect from, in turn, for ever.

    Each local address adds 28,000 ports towards one server. Only 127.0.0.0/8 has several without
    configuration, so for any other target the kernel chooses.
    """
    try:
        loopback = host == "localhost" or ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback or not count:
        return itertools.repeat(None)
    first = int(ipaddress.IPv4Address("127.0.0.2"))
    return itertools.cycle([str(ipaddress.IPv4Address(first + number)) for number in range(count)])


def reset_on_close(sock: _socket.socket) -> None:
    """Make the close of a TCP socket send a reset, and leave nothing of it in the kernel."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0_S)


def raise_file_limit() -> int:
    """Raise the soft limit on open files to the hard one; return it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):  # macOS names a hard limit that it does not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
