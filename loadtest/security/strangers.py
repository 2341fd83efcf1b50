"""Strangers who connect and never come to a login: they are silent, or send a byte now and then.

Each notes when it was connected and when the server closed the connection. Open-loop, in one thread.
"""

import math
import os
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import protocol
from loadtest.connection import source_addresses
from loadtest.security.attempts import SOURCES
from protocol import ProtocolError

READ_BYTES = 4096


class Habit(NamedTuple):
    """What a stranger sends: something at once, and then the rest of it byte by byte."""

    at_once: bytes = b""
    drip: bytes = b""


@dataclass(frozen=True)
class Plan:
    """Who comes.

    Attributes:
        address: the server's.
        habits: of the strangers, by turns.
        count: how many come.
        per_second: how many of them in a second.
        seconds: for how long the last is watched.
        begin: monotonic seconds at which the first comes; 0.0: at once.
        every_s: between two bytes of one that drips.
    """

    address: tuple[str, int]
    habits: Sequence[Habit]
    count: int
    per_second: float
    seconds: float
    begin: float = 0.0
    every_s: float = 1.0


class Stranger(NamedTuple):
    """What became of one.

    Attributes:
        lived_s: from its connect to the server's close; inf: it was there at the end.
        code: the reason that the server told, 0 without.
        sent: bytes.
    """

    lived_s: float
    code: int
    sent: int


class _Guest:
    __slots__ = ("code", "fd", "habit", "opened", "sent", "sock")

    def __init__(self, sock: socket.socket, habit: Habit, opened: float) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.habit = habit
        self.opened = opened
        self.sent = self.code = 0


def strangers(plan: Plan) -> list[Stranger]:
    """Let them come; return what became of each. None who is there at the end is closed by us before it."""
    return _Crowd(plan).run()


class _Crowd:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._poll = select.epoll()
        self._open: dict[int, _Guest] = {}
        self._dripping: deque[tuple[float, _Guest]] = deque()  # whose turn it is first, first
        self._sources = source_addresses(plan.address[0], SOURCES)
        self._ended: list[Stranger] = []

    def run(self) -> list[Stranger]:
        plan, number = self._plan, 0
        begin = plan.begin or time.monotonic()
        give_up = begin + plan.count / plan.per_second + plan.seconds
        while (now := time.monotonic()) < give_up and (self._open or number < plan.count):
            if number < plan.count and begin + number / plan.per_second <= now:
                self._come(plan.habits[number % len(plan.habits)])
                number += 1
                self._hear(0)
                continue
            while self._dripping and self._dripping[0][0] <= now:
                self._drip(*self._dripping.popleft())
            self._hear(0.002)
        for guest in list(self._open.values()):
            self._end(guest, math.inf)
        self._poll.close()
        return self._ended

    def _come(self, habit: Habit) -> None:
        sock = socket.socket()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if source := next(self._sources):
            sock.bind((source, 0))
        sock.connect(self._plan.address)  # to this machine: at once
        sock.setblocking(False)
        guest = _Guest(sock, habit, time.monotonic())
        self._open[guest.fd] = guest
        self._poll.register(guest.fd, select.EPOLLIN)
        if habit.at_once:
            guest.sent = sock.send(habit.at_once)
        if habit.drip:
            self._dripping.append((guest.opened + self._plan.every_s, guest))

    def _drip(self, due: float, guest: _Guest) -> None:
        at = guest.sent - len(guest.habit.at_once)
        if guest.fd not in self._open or self._open[guest.fd] is not guest or at >= len(guest.habit.drip):
            return
        with suppress(OSError):  # the close is on its way
            guest.sent += guest.sock.send(guest.habit.drip[at : at + 1])
        self._dripping.append((due + self._plan.every_s, guest))

    def _hear(self, wait_s: float) -> None:
        for fd, _ in self._poll.poll(wait_s, 512):
            guest = self._open[fd]
            try:
                data = os.read(fd, READ_BYTES)
            except OSError:
                data = b""
            if not data:
                self._end(guest, time.monotonic() - guest.opened)
            else:
                guest.code = _code(data) or guest.code

    def _end(self, guest: _Guest, lived_s: float) -> None:
        del self._open[guest.fd]
        guest.sock.close()
        self._ended.append(Stranger(lived_s, guest.code, guest.sent))


def _code(data: bytes) -> int:
    """Return the reason code of a packet; 0 if there is none, or it is none of ours."""
    with suppress(ProtocolError):
        if end := protocol.frame_end(data, 0, protocol.SERVER_FRAME_LIMIT_BYTES):
            return int(protocol.decode(data[protocol.HEADER_BYTES : end]).payload.get("code", 0))
    return 0
