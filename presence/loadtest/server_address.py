"""Where load generators connect to, and from, and how many connections they may have.

Tests: `tests/loadtest/test_options.py`.
"""

import _socket
import contextlib
import ipaddress
import itertools
import resource
import socket
import ssl
import struct
from collections.abc import Iterator
from typing import NamedTuple

DEFAULT_PORT, DEFAULT_TLS_PORT = 7400, 7443
MAX_PORT = 65_535
TRIAL_TIMEOUT_S = 1.0  # of a connection to each address of a name that has several
SCHEMES = {"": False, "tcp": False, "presence": False, "presences": True}
"""What may stand before a host, and whether it means TLS."""
_LINGER_0_S = struct.pack("ii", 1, 0)


class ServerAddress(NamedTuple):
    """Where devices connect to."""

    host: str
    port: int
    is_tls: bool = False


def parse_host(host: str) -> ServerAddress:
    """Return the target of ``HOST``, ``HOST:PORT`` or ``[V6]:PORT``, maybe after one of `SCHEMES`.

    Raises:
        ValueError: there is no host, the port is none, or another scheme stands before them.
    """
    scheme, _, rest = host.rpartition("://")
    if scheme not in SCHEMES:
        raise ValueError(f"{host}: devices connect to presence:// and, over TLS, presences://")
    is_tls = SCHEMES[scheme]
    rest = rest.rstrip("/")
    name, colon, port = rest.rpartition(":")
    if not colon or rest.endswith("]") or (":" in name and not name.startswith("[")):  # without a port
        name, port = rest, str(DEFAULT_TLS_PORT if is_tls else DEFAULT_PORT)
    if not name.strip("[]"):
        raise ValueError(f"{host}: there is no host")
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= MAX_PORT):
        raise ValueError(f"{host}: {port} is not a port")
    return ServerAddress(name.strip("[]"), int(port), is_tls)


def tls_context(ca: str = "", *, insecure: bool = False) -> ssl.SSLContext:
    """Return a context that trusts the certificates in the file `ca`, by default the system's.

    Raises:
        ValueError: the file cannot be read, or has no certificates.
    """
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as error:
        raise ValueError(f"{ca}: {error}") from None
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def resolve(host: str, port: int) -> tuple[str, int]:
    """Return the address as numbers, so that no connection needs a lookup.

    Of several addresses it is the first that accepts a connection; if none does, the first.

    Raises:
        ValueError: the name is unknown.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"{host}: {error.strerror or error}") from None
    addresses = [*dict.fromkeys(str(each[4][0]) for each in found)]
    for address in addresses if len(addresses) > 1 else ():
        with contextlib.suppress(OSError), socket.create_connection((address, port), TRIAL_TIMEOUT_S):
            return address, port
    return addresses[0], port


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
