"""One device's TCP connection: whole packets out, packets in, by calls that wait while others go on.

How to wait is handed in, so that nothing here knows under which loop it runs.
"""

import _socket  # gevent replaces `socket`; each of its sockets costs more objects, and waits by itself
import contextlib
import ipaddress
import itertools
import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import protocol
from loadtest.facts import Sent
from protocol import Packet

CONNECT_TIMEOUT_S = 10.0
DEFAULT_PORT = 7400
READ_BYTES = 65536
ASKING_ID = 2  # of each beat that asks: answers to one and the same frame need no decoding
ASKING_BEAT = protocol.encode(protocol.keepalive(ASKING_ID))
_ANSWER = protocol.ok(ASKING_ID)
_ANSWER_FRAME = protocol.encode(_ANSWER)
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s
_PORT_AT_CONNECT = 24  # linux/in.h, IP_BIND_ADDRESS_NO_PORT: a port is free that is free towards the target


class ConnectionEnded(Exception):
    """The server has closed the connection, or it broke."""


class Waiting(Protocol):
    """How one socket is waited for. Moments are monotonic seconds."""

    def readable(self, until: float) -> bool:
        """Wait until there is something to read; return whether there is."""

    def writable(self, until: float) -> bool:
        """Wait until the connection is open, or failed; return whether that is so."""

    def end(self) -> None:
        """The socket is being closed: nobody waits for it any more."""


class Connection:
    """A connection that is open.

    Args:
        address: the server's address, as numbers, and port.
        source: the local address to connect from; None leaves it to the kernel.
        waiting: how to wait for a descriptor.

    Raises:
        OSError: no connection came about.
    """

    __slots__ = ("_socket", "_unread", "_waiting")

    def __init__(
        self, address: tuple[str, int], source: str | None, waiting: Callable[[int], Waiting]
    ) -> None:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = _socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._waiting = waiting(self._socket.fileno())
        self._unread = b""
        try:
            self._connect(address, source)
        except BaseException:
            self.close()
            raise

    def _connect(self, address: tuple[str, int], source: str | None) -> None:
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if source is not None:
            with contextlib.suppress(OSError):  # only Linux has it
                self._socket.setsockopt(socket.IPPROTO_IP, _PORT_AT_CONNECT, 1)
            self._socket.bind((source, 0))
        with contextlib.suppress(BlockingIOError):
            self._socket.connect(address)
        if not self._waiting.writable(time.monotonic() + CONNECT_TIMEOUT_S):
            raise TimeoutError("the connection was not accepted in time")
        if error := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error))

    def send(self, frame: bytes) -> Sent:
        """Send a whole frame, and return when. Never waits: nothing that a device sends fills a buffer.

        Raises:
            ConnectionEnded: it cannot be sent.
        """
        begun = time.monotonic()
        try:
            size = self._socket.send(frame)
        except BlockingIOError:
            size = 0
        except OSError as error:
            raise ConnectionEnded(error.strerror or str(error)) from None
        if size != len(frame):
            raise ConnectionEnded("the server does not read")
        return Sent(begun, time.monotonic())

    def receive(self, until: float) -> Packet | None:
        """Return the next packet, or None if none has come by then (monotonic seconds).

        Raises:
            ConnectionEnded: no packet will come any more.
            ProtocolError: the server breaks the protocol.
        """
        while (packet := self._next()) is None:
            if not self._waiting.readable(until):
                return None
            try:
                data = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise ConnectionEnded(error.strerror or str(error)) from None
            if data == _ANSWER_FRAME and not self._unread:
                return _ANSWER
            if not data:
                raise ConnectionEnded("closed by the server")
            self._unread += data
        return packet

    def _next(self) -> Packet | None:
        unread = self._unread
        end = unread and protocol.frame_end(unread, 0, protocol.SERVER_FRAME_LIMIT_BYTES)
        if not end:
            return None
        self._unread = unread[end:]
        return protocol.decode(unread[protocol.HEADER_BYTES : end])

    def close(self, *, reset: bool = False) -> Sent:
        """Close, with a FIN or with a reset as a crashed phone's network does; return when."""
        self._waiting.end()
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


def resolve(address: tuple[str, int]) -> tuple[str, int]:
    """Return the address as numbers; a lookup for each connection would be what is measured.

    Raises:
        ValueError: nothing is known by that name.
    """
    host, port = address
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"{host}: {error.strerror or error}") from None
    return str(found[0][4][0]), port


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
