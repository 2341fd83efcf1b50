"""Thousands of clients in one thread: connections in one epoll set, and one heap of deadlines.

All load in this repository comes from it; a plain loop, a thread or a greenlet drives it. What a client
does is its class: it overrides the callbacks (`opened`, `entered`, `heard`, `ended`). Only `ClientLoop.run`
waits.

Packets are unpacked without the checks of the codec, which cost more than everything else here; every
`CHECKED_EACH`th goes through the codec as well.
"""

import _socket
import contextlib
import heapq
import itertools
import math
import os
import random
import select
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

import msgpack

from loadtest.connection import source_addresses
from presence import protocol
from presence.protocol import HEADER_BYTES, KEEPALIVE, Code, Kind

T = TypeVar("T")
Poller = Any
"""What is waited with: an `select.epoll`, or a `PlainPoll`."""

AWAY = -1  # for a descriptor: there is no connection
LOGIN_ID = 1
READ_BYTES = 65_536
CHECKED_EACH = 64
BACK_OFF_MAX_S = 60.0  # as the specification says under "Coming back"
RETURN_S = 0.5  # at most, until a client whose connection ended is back
SOURCES = 8  # addresses to connect from: each brings 28,000 ports
EVENTS_A_TURN = 512
SLOT_S = 0.05  # of the ring of beats; the shorter, the more wakes and the smaller the bursts
ORDERS_EACH_S = 0.02  # how often a thread looks for orders
ANSWER_S = 30.0  # of a thread, which never waits for long
NOTHING: Mapping[str, Any] = {}
ASKING_ID = 2  # of each beat that asks
ASKING_BEAT = protocol.encode(protocol.keepalive(ASKING_ID))
TURN_S = 0.02  # of things that are due, until what has come is looked at
_READ, _WRITE, _ERROR, _END = 1, 4, 8, 16  # the same of epoll and of poll
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s
_PORT_AT_CONNECT = 24  # linux/in.h, IP_BIND_ADDRESS_NO_PORT: a port is free that is free towards the target
_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class PlainPoll:
    """`select.poll` in the form of epoll, for systems that have none; it takes longer with each connection.

    Args:
        poll: one of the standard library's; under gevent bring the original.
    """

    def __init__(self, poll: Any = None) -> None:
        self._poll = poll or select.poll()
        self.register, self.modify = self._poll.register, self._poll.modify
        self.unregister = self._poll.unregister

    def poll(self, wait_s: float, _most: int) -> list[tuple[int, int]]:
        """See `select.epoll`."""
        found: list[tuple[int, int]] = self._poll.poll(wait_s * 1000)
        return found

    def close(self) -> None:
        """It has no descriptor."""


class LoopClient:
    """One client, connection after connection. What happens to it, its class overrides.

    Args:
        loop: what drives it.
        uid, device: who it is.

    Attributes:
        address: of its server; None: the loop's.
        context: for TLS; None: without.
        hangs_up: whether it closes its connection when the server says goodbye; else it waits for the close.
        is_member: whether the loop keeps it, lets it beat and counts it; others are made for one connection.
        is_in: whether it is logged in.
        beats: whether it beats while it is.
        returns: whether it comes back by itself when its connection ended and it may.
        meta: what it logs in with.
    """

    address: tuple[str, int] | None = None
    context: ssl.SSLContext | None = None
    hangs_up = True
    is_member = True

    def __init__(self, loop: "ClientLoop", uid: str, device: str = "") -> None:
        self.uid, self.device = uid, device
        self.loop = loop
        self.fd = AWAY
        self.is_in = False
        self.beats = self.returns = True
        self.meta: Mapping[str, Any] | None = None
        self._farewell: Mapping[str, Any] | None = None
        self._unread = b""
        self._unsent = bytearray()
        self._tls: ssl.SSLSocket | None = None
        if self.is_member:
            loop.members.append(self)

    # What happens

    def opened(self) -> None:
        """The connection is open: log in."""
        login = protocol.login(self.uid, id=LOGIN_ID, device=self.device or None, meta=self.meta or None)
        self.send(protocol.encode(login))

    def entered(self, payload: Mapping[str, Any], now: float) -> None:
        """The login was granted; moments are monotonic seconds."""

    def heard(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        """A packet has come."""

    def ended(self, payload: Mapping[str, Any] | None, now: float) -> None:
        """The server ended the connection, and why, or it broke: None."""

    def socket(self) -> _socket.socket:
        """Return a socket that is about to be connected."""
        host, _ = self.address or self.loop.address
        sock = _socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if source := next(self.loop.sources):
            with contextlib.suppress(OSError):  # only Linux has it
                sock.setsockopt(socket.IPPROTO_IP, _PORT_AT_CONNECT, 1)
            sock.bind((source, 0))
        return sock

    def beat(self) -> None:
        """It is time for a beat."""
        self.send(KEEPALIVE)

    def pause_s(self) -> float:
        """Return how long to wait until it connects again, where the server has named no time."""
        return random.uniform(0.02, RETURN_S)

    # What it does

    def connect(self) -> None:
        """Connect if not connected yet; if no server listens, retry later."""
        if self.fd == AWAY:
            try:
                self.loop.open(self)
            except ConnectionError:
                self.loop.at(time.monotonic() + self.pause_s(), self.connect)

    def send(self, frame: bytes) -> None:
        """Send, or keep what the kernel does not take; without a connection nothing."""
        if self.fd == AWAY:
            return
        if not self._unsent:
            try:
                sent = self._write(frame)
            except _LATER:
                sent = 0
            except OSError:
                return  # its next read says so
            if sent == len(frame):
                return
            self.send_later(frame[sent:])
        else:
            self._unsent += frame

    def put(self, frame: bytes) -> bool:
        """Send a whole frame now; return False if the kernel does not take it: nothing can follow then."""
        try:
            return not self._unsent and self._write(frame) == len(frame)
        except OSError:
            return False

    def send_later(self, data: bytes) -> None:
        """Send as soon as the kernel takes more, and not before the next turn."""
        self._unsent += data
        self.loop.wait_for(self.fd, _READ | _WRITE)

    def drop(self, *, reset: bool = False) -> None:
        """Close the connection, if there is one, with a FIN or a reset."""
        if self.fd == AWAY:
            return
        fd = self.leave_open()
        if reset:
            sock = _socket.socket(fileno=fd)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            sock.detach()
        os.close(fd)

    def leave_open(self) -> int:
        """Think no more of the connection, and leave it half open; return its descriptor, to be closed."""
        fd, self.fd, self.is_in = self.fd, AWAY, False
        self._unread, self._farewell = b"", None
        self._unsent.clear()
        self.loop.forget(fd)
        if self._tls is not None:
            self._tls.detach()
            self._tls = None
        return fd

    # For the loop

    @property
    def is_sending(self) -> bool:
        """Whether something waits for the kernel to take it."""
        return bool(self._unsent)

    def shake_hands(self) -> int:
        """Go on with the handshake, if there is any; return what to wait for, 0 once it is done."""
        if self.context is None:
            return 0
        try:
            if self._tls is None:
                sock = socket.socket(fileno=self.fd)
                sock.setblocking(False)
                self._tls = self.context.wrap_socket(sock, do_handshake_on_connect=False)
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return _READ
        except ssl.SSLWantWriteError:
            return _WRITE
        return 0

    def flush(self) -> None:
        """The kernel takes more."""
        with contextlib.suppress(OSError):
            del self._unsent[: self._write(self._unsent)]
        if not self._unsent:
            self.loop.wait_for(self.fd, _READ)

    def read(self) -> None:
        """Take what the server has sent."""
        try:
            data = os.read(self.fd, READ_BYTES) if self._tls is None else self._tls.recv(READ_BYTES)
        except _LATER:
            return
        except OSError:
            data = b""
        now = time.monotonic()
        if not data:
            self.lost(self._farewell, now)
            return
        unread, fd, start = self._unread + data if self._unread else data, self.fd, 0
        while len(unread) - start >= HEADER_BYTES:
            body = start + HEADER_BYTES
            end = body + int.from_bytes(unread[start:body], "big")
            if end > len(unread):
                break
            self._take(unread[body:end], now)
            if self.fd != fd:
                return
            start = end
        self._unread = unread[start:]
        if self._tls is not None and self._tls.pending():
            self.read()

    def lost(self, payload: Mapping[str, Any] | None, now: float) -> None:
        """The connection is over."""
        self.loop.endings[payload["code"] if payload else 0] += 1
        self.drop()
        self.ended(payload, now)
        if self.returns and (payload is None or Code(payload["code"]).reconnect):
            self.loop.at(now + ((payload or NOTHING).get("retry_after") or self.pause_s()), self.connect)

    def _write(self, data: bytes | bytearray) -> int:
        return os.write(self.fd, data) if self._tls is None else self._tls.send(data)

    def _take(self, body: bytes, now: float) -> None:
        self.loop.packets += 1
        if self.loop.packets % CHECKED_EACH == 0:
            protocol.decode(body)
        packet: list[Any] = msgpack.unpackb(body)
        kind = packet[0]
        id = packet[1] if len(packet) > 1 else None
        payload = packet[2] if len(packet) > 2 else NOTHING
        if kind == Kind.GOODBYE or (kind == Kind.ERROR and not self.is_in):
            if self.hangs_up:
                self.lost(payload, now)
            else:
                self._farewell = payload
        elif kind == Kind.OK and not self.is_in:
            self.is_in = True
            self.loop.logins += 1
            self.entered(payload, now)
        else:
            self.heard(kind, id, payload, now)


class ClientLoop:
    """All clients of a run, their connections and what is to be done when.

    Args:
        address: of the server.
        beat_s: how often each client beats; 0: not before `beat` says so.
        slot_s: how long a slot of the ring of beats is, at the first interval.
        sources: addresses to connect from, in turn, or how many.
        poller: what to wait with; None: an epoll set.

    Attributes:
        members: clients that it keeps.
        address: of the server.
        poller: what it waits with.
        packets, logins: that have come, and that were granted, so far.
        endings: connections that the server ended, by its code; 0 of those that broke.
        late_max_s: by how much something was done too late, at most; then the load is what is measured.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        beat_s: float = 0.0,
        slot_s: float = SLOT_S,
        sources: int | Iterable[str | None] = SOURCES,
        poller: Poller | None = None,
    ) -> None:
        self.members: list[LoopClient] = []
        self.packets = self.logins = 0
        self.endings: Counter[int] = Counter()
        self.late_max_s = 0.0
        self.sources: Iterator[str | None] = (
            source_addresses(address[0], sources) if isinstance(sources, int) else itertools.cycle(sources)
        )
        self.address = address
        self._begun, self._cpu_s = time.monotonic(), time.process_time()
        self._unix_s = time.time() - time.monotonic()
        self.poller: Poller = poller or select.epoll()
        self._by_fd: dict[int, LoopClient] = {}
        self._opening: set[int] = set()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._slots, self._slot, self._slot_s, self._first_slot_s = 0, 0, 0.0, slot_s
        self._slots_left = 0.0
        self._is_ring_turning = False
        if beat_s:
            self.beat(beat_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for client in self.open_clients():
            client.drop(reset=True)
        self.poller.close()

    def __len__(self) -> int:
        return len(self._by_fd)

    @property
    def due(self) -> float:
        """The moment at which something is to be done; infinite if nothing is."""
        return self._due[0][0] if self._due else math.inf

    def at(self, moment: float, action: Callable[[], object]) -> None:
        """Do something then (monotonic seconds)."""
        heapq.heappush(self._due, (moment, next(self._numbers), action))

    def unix_ms(self, moment: float) -> float:
        """Return what the wall clock shows at a moment; servers on this machine have the same one."""
        return (moment + self._unix_s) * 1000

    def run(self, seconds: float, done: Callable[[], bool] | None = None) -> bool:
        """Go on for so long, or until something is so; return whether it is."""
        give_up = time.monotonic() + seconds
        while not (is_done := done is not None and done()) and (now := time.monotonic()) < give_up:
            self.turn(min(give_up, self.due) - now)
        return is_done

    def turn(self, wait_s: float) -> None:
        """Wait at most so long for what comes, and take it; do what is due."""
        for fd, events in self.poller.poll(max(0.0, wait_s), EVENTS_A_TURN):
            self._serve(fd, events)
        self._act()

    def bring(self, clients: Iterable[LoopClient], per_second: float = 2000.0) -> None:
        """Let some connect, evenly at that rate."""
        now = time.monotonic()
        for number, client in enumerate(clients):
            self.at(now + number / per_second, client.connect)

    def beat(self, every_s: float, turns: float = math.inf) -> None:
        """Let all who are logged in beat at that interval, evenly; in so many turns, then no more.

        The schedule is a ring of slots, one turn of which takes one interval. Only the length of a slot
        changes with the interval: no client waits longer than the longer of the two intervals.
        """
        self._slots = self._slots or max(1, round(every_s / self._first_slot_s))
        self._slot_s, self._slots_left = every_s / self._slots, turns * self._slots
        if not self._is_ring_turning:
            self._is_ring_turning = True
            self._beat(time.monotonic())

    def silence(self) -> None:
        """Stop all beats."""
        self._slots_left = 0

    @property
    def is_beating(self) -> bool:
        """Whether beats are to come."""
        return self._slots_left > 0

    def beaten(self, sent: int, late_s: float) -> None:
        """So many have beaten in one slot, the last of them so late; a subclass may note it."""

    def load(self) -> str:
        """Return in words what this load takes of a core; if that is much, it is what was measured."""
        share = (time.process_time() - self._cpu_s) / (time.monotonic() - self._begun)
        return f"{share:.0%} of a core, late by {self.late_max_s * 1000:.0f} ms at most"

    def online(self) -> int:
        """Return how many are logged in."""
        return sum(client.is_in for client in self.members)

    def open(self, client: LoopClient) -> None:
        """Begin to connect one.

        Raises:
            OSError: that cannot be.
        """
        sock = client.socket()
        try:
            sock.connect(client.address or self.address)
        except BlockingIOError:
            pass
        except BaseException:
            sock.close()
            raise
        fd = client.fd = sock.detach()
        self._by_fd[fd] = client
        self._opening.add(fd)
        self.poller.register(fd, _READ | _WRITE)

    def open_clients(self) -> list[LoopClient]:
        """Return who has a connection."""
        return [*self._by_fd.values()]

    def forget(self, fd: int) -> None:
        """A connection is about to be closed, or no client owns it any more."""
        del self._by_fd[fd]
        self._opening.discard(fd)
        self.poller.unregister(fd)

    def wait_for(self, fd: int, events: int) -> None:
        """Wait for these events of a connection from now on."""
        self.poller.modify(fd, events)

    def hear(self, client: LoopClient, *, on: bool) -> None:
        """Read what comes on a connection from now on, or nothing but its end."""
        self.poller.modify(client.fd, _READ if on else 0)

    def _serve(self, fd: int, events: int) -> None:
        client = self._by_fd.get(fd)
        if client is None:
            return
        if fd in self._opening and not events & _ERROR:
            self._open(client)
            return
        if events & _WRITE and not events & (_ERROR | _END):
            client.flush()
        if events & ~_WRITE:
            client.read()

    def _open(self, client: LoopClient) -> None:
        try:
            events = client.shake_hands()
        except OSError:
            client.lost(None, time.monotonic())
            return
        self.poller.modify(client.fd, events or _READ)
        if not events:
            self._opening.discard(client.fd)
            client.opened()

    def _act(self) -> None:
        begun = now = time.monotonic()
        while self._due and self._due[0][0] <= now < begun + TURN_S:
            due, _, action = heapq.heappop(self._due)
            self.late_max_s = max(self.late_max_s, now - due)
            action()
            now = time.monotonic()

    def _beat(self, due: float) -> None:
        """Beat in one slot. Each has its moment: a load that is late must not make its clients silent."""
        if self._slots_left <= 0:
            self._is_ring_turning = False
            return
        sent = 0
        for client in self.members[self._slot :: self._slots]:
            if client.is_in and client.beats:
                client.beat()
                sent += 1
        if sent:
            self.beaten(sent, time.monotonic() - due)
        self._slot = (self._slot + 1) % self._slots
        self._slots_left -= 1
        due += self._slot_s
        self.at(due, partial(self._beat, due))


def back_off_s(attempts: int) -> float:
    """Return how long to wait before another attempt: full jitter over a bound that doubles."""
    return random.uniform(0, min(BACK_OFF_MAX_S, 2.0**attempts))


def plain_login(uid: str) -> bytes:
    """Return the frame of a login that says no more than who it is."""
    return protocol.encode(protocol.login(uid, id=LOGIN_ID))


class LoopThread:
    """Turns a `ClientLoop` in a thread of its own, for the length of a ``with`` block."""

    def __init__(self, loop: ClientLoop) -> None:
        self._loop = loop
        self._orders: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._is_closing = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_closing = True
        self._thread.join()

    def do(self, action: Callable[[], T]) -> T:
        """Do something in the loop's thread, between two of its turns; return what comes of it."""
        if self._failure is not None:
            raise self._failure
        future: Future[T] = Future()
        self._orders.put((action, future))
        return future.result(ANSWER_S)

    def bring(self, clients: Iterable[LoopClient], per_second: float, within_s: float) -> None:
        """Let clients connect and log in.

        Raises:
            RuntimeError: not all are logged in by then.
        """
        every = [*clients]
        self.do(lambda: self._loop.bring(every, per_second))
        give_up = time.monotonic() + len(every) / per_second + within_s
        while (online := sum(each.is_in for each in every)) < len(every):
            if time.monotonic() > give_up:
                raise RuntimeError(f"only {online} of {len(every)} clients could log in")
            time.sleep(ORDERS_EACH_S)

    def _run(self) -> None:
        try:
            with self._loop:
                while not self._is_closing:
                    self._loop.run(ORDERS_EACH_S, lambda: not self._orders.empty())
                    self._obey()
        except BaseException as error:
            self._failure = error
            raise

    def _obey(self) -> None:
        with contextlib.suppress(Empty):
            action, future = self._orders.get_nowait()
            try:
                future.set_result(action())
            except Exception as error:
                future.set_exception(error)
