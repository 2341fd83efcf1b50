"""One device's TCP connection: whole packets out, packets in, by blocking calls.

Under locust the `socket` module is gevent's, and a call that blocks lets other devices go on.
"""

import contextlib
import ipaddress
import itertools
import resource
import socket
import struct
import time
from collections.abc import Iterator

import protocol
from loadtest.facts import Sent
from protocol import Packet

CONNECT_TIMEOUT_S = 10.0
DEFAULT_PORT = 7400
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s


class ConnectionEnded(Exception):
    """The server has closed the connection, or it broke."""


class Connection:
    """A connection that is open.

    Args:
        address: the server's host and port.
        source: the local address to connect from; None leaves it to the kernel.

    Raises:
        OSError: no connection came about.
    """

    def __init__(self, address: tuple[str, int], source: str | None = None) -> None:
        local = None if source is None else (source, 0)
        self._socket = socket.create_connection(address, CONNECT_TIMEOUT_S, local)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = protocol.Decoder(protocol.SERVER_FRAME_LIMIT_BYTES)

    def send(self, frame: bytes) -> Sent:
        """Send a whole frame, and return when.

        Raises:
            ConnectionEnded: it cannot be sent.
        """
        begun = time.monotonic()
        try:
            self._socket.sendall(frame)
        except OSError as error:
            raise ConnectionEnded(error.strerror or str(error)) from None
        return Sent(begun, time.monotonic())

    def receive(self, until: float) -> Packet | None:
        """Return the next packet, or None if none has come by then (monotonic seconds).

        Raises:
            ConnectionEnded: no packet will come any more.
            ProtocolError: the server breaks the protocol.
        """
        while (packet := self._decoder.next()) is None:
            # Zero would mean "do not wait", and the kernel's buffer would be looked at only now and then.
            self._socket.settimeout(max(1e-4, until - time.monotonic()))
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                return None
            except OSError as error:
                raise ConnectionEnded(error.strerror or str(error)) from None
            if not data:
                raise ConnectionEnded("closed by the server")
            self._decoder.feed(data)
        return packet

    def close(self, *, reset: bool = False) -> Sent:
        """Close, with a FIN or with a reset as a crashed phone's network does; return when."""
        begun = time.monotonic()
        with contextlib.suppress(OSError):
            if reset:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._socket.close()
        return Sent(begun, time.monotonic())


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


def source_addresses(host: str, count: int) -> Iterator[str | None]:
    """Return the addresses to connect from, in turn, for ever.

    Each local address brings another 28,000 ports towards one server. Only 127.0.0.0/8 has more than one
    without further ado, so for any other target the kernel chooses.
    """
    try:
        loopback = host == "localhost" or ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback or not count:
        return itertools.repeat(None)
    first = int(ipaddress.IPv4Address("127.0.0.2"))
    return itertools.cycle([str(ipaddress.IPv4Address(first + number)) for number in range(count)])


def raise_file_limit() -> int:
    """Raise the soft limit on open files to the hard one; return it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):  # macOS names a hard limit that it does not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
