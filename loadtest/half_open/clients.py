"""Clients that log in and beat until they are stopped, and remember when they last sent."""

import fcntl
import heapq
import itertools
import random
import socket
import struct
import termios
import time
from collections.abc import Iterable
from typing import Final

import protocol
from protocol import Kind

LOGIN_TIMEOUT_S: Final = 10.0
BEAT: Final = protocol.encode(protocol.keepalive())
_ESTABLISHED: Final = 1  # linux/tcp_states.h


class Client:
    """One connection.

    Attributes:
        uid: the user.
        sent: monotonic seconds before the last packet was sent.
    """

    def __init__(self, uid: str, sock: socket.socket) -> None:
        self.uid = uid
        self.sent = 0.0
        self._sock = sock

    def log_in(self, address: tuple[str, int]) -> None:
        """Connect and log in; raises OSError or SystemExit if that cannot be."""
        self._sock.settimeout(LOGIN_TIMEOUT_S)
        self._sock.connect(address)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._send(protocol.encode(protocol.login(self.uid, id=1)))
        answer = self._sock.recv(4096)
        if protocol.decode(answer[protocol.HEADER_BYTES :]).kind != Kind.OK:
            raise SystemExit(f"{self.uid} was not let in: {answer!r}")

    def beat(self) -> None:
        """Send a keepalive."""
        self._send(BEAT)

    def _send(self, frame: bytes) -> None:
        self.sent = time.monotonic()
        self._sock.sendall(frame)

    @property
    def unacknowledged(self) -> int:
        """Bytes that it has sent and that its kernel does not know to have arrived."""
        (size,) = struct.unpack("i", fcntl.ioctl(self._sock, termios.TIOCOUTQ, bytes(4)))
        return int(size)

    @property
    def is_established(self) -> bool:
        """Whether neither side has ended the connection, as far as its kernel knows."""
        info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        return info[0] == _ESTABLISHED


class Beats:
    """Lets clients beat, each in a time of its own.

    Args:
        clients: who are logged in.
        every_s: how often.
    """

    def __init__(self, clients: Iterable[Client], every_s: float) -> None:
        now = time.monotonic()
        self._every_s = every_s
        self._numbers = itertools.count()
        self._due = [(now + random.uniform(0, every_s), next(self._numbers), client) for client in clients]
        heapq.heapify(self._due)

    def run(self, seconds: float) -> None:
        """Beat for so long."""
        end = time.monotonic() + seconds
        while (at := self._due[0][0]) < end:
            time.sleep(max(0.0, at - time.monotonic()))
            _, number, client = heapq.heappop(self._due)
            client.beat()
            heapq.heappush(self._due, (at + self._every_s, number, client))
        time.sleep(max(0.0, end - time.monotonic()))
