"""Attempts at a login, as many a second as are due: connect, log in, read the answer, close.

Open-loop: an attempt is made when it is due, however slow the server is, and its time counts from then. One
thread makes thousands a second; they can be made in a process of their own, see `apart.py`.
"""

import itertools
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import protocol
from loadtest.connection import source_addresses
from loadtest.links import plain_login
from protocol import Kind, ProtocolError

Frame = Callable[[int], bytes]

SOURCES = 64  # addresses to connect from
OPENS_A_TURN = 16  # between two looks at what was answered
READ_BYTES = 65_536
PATIENCE_S = 15.0  # for the last answers
GRANTED, UNANSWERED, LOST = 0, -1, -2
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s
_PORT_AT_CONNECT = 24  # linux/in.h, IP_BIND_ADDRESS_NO_PORT: a port is free that is free towards the target


class Attempt(NamedTuple):
    """What came of one.

    Attributes:
        due: monotonic seconds.
        took_s: from then to the answer, or to the end without one.
        code: `GRANTED`, the reason code of the refusal, `UNANSWERED` or `LOST`: closed without a word.
        retry_after: seconds that the refusal named; 0.0 without.
    """

    due: float
    took_s: float
    code: int
    retry_after: float


@dataclass(frozen=True)
class Plain:
    """Makes logins of users of their own."""

    name: str

    def __call__(self, number: int) -> bytes:
        """Return a login's frame."""
        return plain_login(f"{self.name}-{number}")


@dataclass(frozen=True)
class Plan:
    """What attempts are to be made.

    Attributes:
        address: the server's.
        frame: makes the login of an attempt from its number.
        count: how many.
        per_second: how many are due in a second.
        begin: monotonic seconds at which the first is due; 0.0: at once.
        sources: addresses to connect from, in turn; empty: 64 of them.
        reset: whether every second connection is closed with a reset.
        at_once: how many may be under way; more are late rather than made.
    """

    address: tuple[str, int]
    frame: Frame
    count: int
    per_second: float
    begin: float = 0.0
    sources: Sequence[str] = ()
    reset: bool = False
    at_once: int = 10_000


class _Open(NamedTuple):
    sock: socket.socket
    number: int
    due: float


class Attempts:
    """The attempts of one plan.

    Args:
        plan: see `Plan`.
        tell: is told of each that is over.
        may_open: whether another may be made now; the time of what it puts off counts from when it was made.
    """

    def __init__(
        self, plan: Plan, tell: Callable[[Attempt], object], may_open: Callable[[], bool] = lambda: True
    ) -> None:
        self._plan = plan
        self._tell = tell
        self._may_open = may_open
        self._poll = select.epoll()
        self._open: dict[int, _Open] = {}
        host = plan.address[0]
        self._sources = itertools.cycle(plan.sources) if plan.sources else source_addresses(host, SOURCES)

    def run(self) -> None:
        """Make all of them; return when each is over."""
        plan, number = self._plan, 0
        origin, delayed = plan.begin or time.monotonic(), 0.0
        while number < plan.count:
            due = origin + delayed + number / plan.per_second
            now = time.monotonic()
            if due > now or len(self._open) >= plan.at_once:
                self._hear(min(0.05, max(due - now, 0.001)))
                continue
            if number % OPENS_A_TURN == 0:
                self._hear(0)
                while not self._may_open():
                    self._hear(0.005)
                    delayed = max(delayed, time.monotonic() - origin - number / plan.per_second)
                due = origin + delayed + number / plan.per_second
            self._begin(number, due)
            number += 1
        give_up = time.monotonic() + PATIENCE_S
        while self._open and time.monotonic() < give_up:
            self._hear(0.05)
        for fd in list(self._open):
            self._end(fd, UNANSWERED)
        self._poll.close()

    def _begin(self, number: int, due: float) -> None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        if source := next(self._sources):
            sock.setsockopt(socket.IPPROTO_IP, _PORT_AT_CONNECT, 1)
            sock.bind((source, 0))
        fd = sock.fileno()
        with suppress(BlockingIOError):
            sock.connect(self._plan.address)
        self._open[fd] = _Open(sock, number, due)
        mask = select.EPOLLIN
        try:
            os.write(fd, self._plan.frame(number))
        except BlockingIOError:  # the server's queue is full, so the connection comes about later
            mask = select.EPOLLOUT
        except OSError:
            self._end(fd, LOST)
            return
        self._poll.register(fd, mask)

    def _hear(self, wait_s: float) -> None:
        for fd, _ in self._poll.poll(wait_s, 512):
            try:
                self._take(fd)
            except (OSError, ProtocolError):
                self._end(fd, LOST)

    def _take(self, fd: int) -> None:
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:  # it has only just come about
            os.write(fd, self._plan.frame(self._open[fd].number))
            self._poll.modify(fd, select.EPOLLIN)
            return
        if not data:
            self._end(fd, LOST)
            return
        # The first answer comes in one piece: it is far smaller than a segment.
        end = protocol.frame_end(data, 0, protocol.SERVER_FRAME_LIMIT_BYTES)
        if end:
            packet = protocol.decode(data[protocol.HEADER_BYTES : end])
            if packet.kind == Kind.OK:
                self._end(fd, GRANTED)
            else:
                self._end(fd, packet.payload["code"], packet.payload.get("retry_after", 0.0))

    def _end(self, fd: int, code: int, retry_after: float = 0.0) -> None:
        sock, number, due = self._open.pop(fd)
        if self._plan.reset and number % 2:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        sock.close()
        self._tell(Attempt(due, time.monotonic() - due, code, retry_after))


def attempts(plan: Plan) -> list[Attempt]:
    """Make the attempts of a plan; return what came of each, in the order in which they ended."""
    ended: list[Attempt] = []
    Attempts(plan, ended.append).run()
    return ended
