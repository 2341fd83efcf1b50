"""Some thousand devices in one thread: bare descriptors in one epoll set. Nothing waits but `Devices.run`."""

import _socket
import contextlib
import heapq
import itertools
import os
import random
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from loadtest.channel.device import RETURN_S, Device
from loadtest.connection import source_addresses
from protocol import KEEPALIVE

SOURCES = 8  # addresses to connect from: each brings 28,000 ports
EVENTS_A_TURN = 512
SLOT_S = 0.05  # of the ring of beats
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s
_PORT_AT_CONNECT = 24  # linux/in.h, IP_BIND_ADDRESS_NO_PORT: a port is free that is free towards the target


class Devices:
    """All devices of a run, their connections and what is to be done when.

    Args:
        address: of the server.
        beat_s: how often each beats.

    Attributes:
        packets: that have come so far.
        endings: connections that the server ended, by its code; 0 of those that broke.
        late_max_s: by how much something was done too late, at most; then the load is what is measured.
    """

    def __init__(self, address: tuple[str, int], *, beat_s: float) -> None:
        self.packets = 0
        self.endings: Counter[int] = Counter()
        self.late_max_s = 0.0
        self._address = address
        self._unix_s = time.time() - time.monotonic()
        self._epoll = select.epoll()
        self._by_fd: dict[int, Device] = {}
        self._opening: set[int] = set()
        self._all: list[Device] = []
        self._sources = source_addresses(address[0], SOURCES)
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._slots = max(1, round(beat_s / SLOT_S))
        self._slot = 0
        self._beat(time.monotonic())

    def __enter__(self) -> "Devices":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for device in self._all:
            device.drop(reset=True)
        self._epoll.close()

    def at(self, moment: float, action: Callable[[], object]) -> None:
        """Do something then (monotonic seconds)."""
        heapq.heappush(self._due, (moment, next(self._numbers), action))

    def unix_ms(self, moment: float) -> float:
        """Return what the wall clock shows at a moment; servers on this machine have the same one."""
        return (moment + self._unix_s) * 1000

    def enter(self, device: Device) -> None:
        """Take one in."""
        self._all.append(device)

    def run(self, seconds: float, done: Callable[[], bool] | None = None) -> bool:
        """Go on for so long, or until something is so; return whether it is."""
        give_up = time.monotonic() + seconds
        while not (is_done := done is not None and done()) and (now := time.monotonic()) < give_up:
            wait_s = min(give_up, self._due[0][0] if self._due else give_up) - now
            for fd, events in self._epoll.poll(max(0.0, wait_s), EVENTS_A_TURN):
                self._serve(fd, events)
            self._act()
        return is_done

    def bring(self, devices: Iterable[Device], per_second: float = 2000.0) -> None:
        """Let some log in, evenly at that rate."""
        now = time.monotonic()
        for number, device in enumerate(devices):
            self.at(now + number / per_second, device.connect)

    def open(self, device: Device) -> None:
        """Begin to connect one; it is tried again if that fails."""
        sock = _socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if source := next(self._sources):
            sock.setsockopt(socket.IPPROTO_IP, _PORT_AT_CONNECT, 1)
            sock.bind((source, 0))
        device.prepare(sock)
        with contextlib.suppress(BlockingIOError):
            try:
                sock.connect(self._address)
            except ConnectionError:
                sock.close()
                self.at(time.monotonic() + random.uniform(0.02, RETURN_S), device.connect)
                return
        fd = device.fd = sock.detach()
        self._by_fd[fd] = device
        self._opening.add(fd)
        self._epoll.register(fd, _READ | _WRITE)

    def close(self, fd: int, *, reset: bool) -> None:
        """Close a connection."""
        if reset:
            sock = _socket.socket(fileno=fd)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            sock.detach()
        del self._by_fd[fd]
        self._opening.discard(fd)
        os.close(fd)  # which takes it out of the epoll set

    def write_later(self, fd: int, *, on: bool) -> None:
        """Wait until the kernel takes more, too, or no longer."""
        self._epoll.modify(fd, _READ | _WRITE if on else _READ)

    def hear(self, device: Device, *, on: bool) -> None:
        """Read what comes on a connection from now on, or nothing but its end."""
        self._epoll.modify(device.fd, _READ if on else 0)

    def online(self) -> int:
        """Return how many are logged in."""
        return sum(device.is_in for device in self._all)

    def _serve(self, fd: int, events: int) -> None:
        device = self._by_fd.get(fd)
        if device is None:
            return
        if fd in self._opening and events & _WRITE and not events & select.EPOLLERR:
            self._opening.discard(fd)
            self._epoll.modify(fd, _READ)
            device.log_in()
            return
        if events & _WRITE and not events & (select.EPOLLERR | select.EPOLLHUP):
            device.flush()
        if events & ~_WRITE:
            device.read()

    def _act(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            due, _, action = heapq.heappop(self._due)
            self.late_max_s = max(self.late_max_s, now - due)
            action()

    def _beat(self, due: float) -> None:
        """Beat in one slot. Each has its moment: a load that is late must not make its devices silent."""
        for device in self._all[self._slot :: self._slots]:
            if device.is_in and device.beats:
                device.send(KEEPALIVE)
        self._slot = (self._slot + 1) % self._slots
        self.at(due + SLOT_S, partial(self._beat, due + SLOT_S))
