"""Thousands of clients in one thread: connections in one epoll set, and one heap of deadlines.

All load in this repository comes from it; a plain loop, a thread or a greenlet drives it. What a client
does is its class: it overrides the callbacks (`on_connected`, `on_login`, `on_packet`, `on_disconnect`).
Only `ClientLoop.run` waits.

Packets are unpacked without the checks of the codec, which cost more than everything else here; every
`PACKETS_PER_CHECK`th goes through the codec as well.
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
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

import msgpack

from presence import protocol
from presence.loadtest.server_address import reset_on_close, source_addresses
from presence.protocol import HEADER_BYTES, KEEPALIVE, Code, Kind

T = TypeVar("T")
Client = TypeVar("Client", bound="LoopClient")
Poller = Any
"""What is waited with: an `select.epoll`, or a `PlainPoll`."""

NO_CONNECTION = -1  # for a descriptor: there is no connection
LOGIN_ID = 1
READ_BYTES = 65_536
PACKETS_PER_CHECK = 64
MAX_BACKOFF_S = 60.0  # as the specification says under "Coming back"
MAX_RECONNECT_DELAY_S = 0.5  # at most, until a client whose connection ended is back
SOURCE_ADDRESSES = 8  # addresses to connect from: each brings 28,000 ports
MAX_EVENTS_PER_POLL = 512
SLOT_S = 0.05  # of the ring of keepalives; the shorter, the more wakes and the smaller the bursts
COMMAND_POLL_INTERVAL_S = 0.02  # how often a thread looks for orders
COMMAND_TIMEOUT_S = 30.0  # of a thread, which never waits for long
EMPTY_PAYLOAD: Mapping[str, Any] = {}
KEEPALIVE_ID = 2  # of each keepalive that asks for an answer
KEEPALIVE_WITH_ID = protocol.encode(protocol.keepalive(KEEPALIVE_ID))
MAX_TURN_S = 0.02  # of things that are due, until what has come is looked at
_READ, _WRITE, _ERROR, _END = 1, 4, 8, 16  # the same of epoll and of poll
_PORT_AT_CONNECT = 24  # linux/in.h, IP_BIND_ADDRESS_NO_PORT: a port is free that is free towards the target
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class PlainPoll:
    """`select.poll` with the interface of epoll, for systems without one; slower with each connection.

    Args:
        poll: the standard library's; under gevent pass the original.
    """

    def __init__(self, poll: Any = None) -> None:
        self._poll = poll or select.poll()
        self.register, self.modify = self._poll.register, self._poll.modify
        self.unregister = self._poll.unregister

    def poll(self, wait_s: float, _most: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = self._poll.poll(wait_s * 1000)
        return found

    def close(self) -> None:
        pass


class LoopClient:
    """One client, connection after connection. Subclasses override its callbacks.

    Attributes:
        address: of its server; None: the loop's.
        context: for TLS; None: without.
        server_name: that the certificate must have, unless the context does not check it.
        tls_session: the TLS session that its next connection resumes, if the server can; None: none.
        connect_error: why the last attempt to connect, or its TLS handshake, failed; "" if it did not.
        closes_on_goodbye: whether it closes its connection after the server's goodbye; else it waits.
        is_member: whether the loop keeps it, sends its keepalives and counts it.
        sends_keepalives: whether the loop sends keepalives while it is logged in.
        reconnects: whether it reconnects by itself when its connection ended and it may.
    """

    address: tuple[str, int] | None = None
    context: ssl.SSLContext | None = None
    server_name: str | None = None
    tls_session: ssl.SSLSession | None = None
    connect_error = ""
    closes_on_goodbye = True
    is_member = True

    def __init__(self, loop: "ClientLoop", uid: str, device: str = "") -> None:
        self.uid, self.device = uid, device
        self.loop = loop
        self.fd = NO_CONNECTION
        self.is_logged_in = False
        self.sends_keepalives = self.reconnects = True
        self.meta: Mapping[str, Any] | None = None
        self._goodbye: Mapping[str, Any] | None = None
        self._unread = b""
        self._unsent = bytearray()
        self._tls: ssl.SSLSocket | None = None
        if self.is_member:
            loop.members.append(self)

    # What happens

    def on_connected(self) -> None:
        """The connection is open: log in."""
        login = protocol.login(self.uid, id=LOGIN_ID, device=self.device or None, meta=self.meta or None)
        self.send(protocol.encode(login))

    def on_login(self, payload: Mapping[str, Any], now: float) -> None:
        """The login was granted; `now` is monotonic seconds."""

    def on_packet(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        """Another packet arrived."""

    def on_disconnect(self, payload: Mapping[str, Any] | None, now: float) -> None:
        """The server ended the connection with this payload, or it broke: None."""

    def make_socket(self) -> _socket.socket:
        """Return a socket ready to connect."""
        host, _ = self.address or self.loop.address
        sock = _socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if source := next(self.loop.sources):
            with contextlib.suppress(OSError):  # only Linux has it
                sock.setsockopt(socket.IPPROTO_IP, _PORT_AT_CONNECT, 1)
            sock.bind((source, 0))
        return sock

    def send_keepalive(self) -> None:
        self.send(KEEPALIVE)

    def reconnect_delay_s(self) -> float:
        """Return the seconds until it reconnects, unless the server named a time."""
        return random.uniform(0.02, MAX_RECONNECT_DELAY_S)

    # What it does

    def connect(self) -> None:
        """Connect unless connected; if no server listens, retry later."""
        if self.fd == NO_CONNECTION:
            try:
                self.loop.open_connection(self)
            except ConnectionError:
                self.loop.call_at(time.monotonic() + self.reconnect_delay_s(), self.connect)

    def send(self, frame: bytes) -> None:
        """Send, and keep what the kernel does not take; without a connection do nothing."""
        if self.fd == NO_CONNECTION:
            return
        if not self._unsent:
            try:
                sent = self._write(frame)
            except _WOULD_BLOCK:
                sent = 0
            except OSError:
                return  # its next read says so
            if sent == len(frame):
                return
            self.send_later(frame[sent:])
        else:
            self._unsent += frame

    def try_send(self, frame: bytes) -> bool:
        """Send a whole frame now; if the kernel does not take it, return False: nothing can follow then."""
        try:
            return not self._unsent and self._write(frame) == len(frame)
        except OSError:
            return False

    def send_later(self, data: bytes) -> None:
        """Send as soon as the kernel takes more, at the next turn at the earliest."""
        self._unsent += data
        self.loop.set_events(self.fd, _READ | _WRITE)

    def close(self, *, reset: bool = False) -> None:
        """Close the connection, if there is one, with a FIN or a reset."""
        if self.fd == NO_CONNECTION:
            return
        fd = self.detach()
        if reset:
            sock = _socket.socket(fileno=fd)
            with contextlib.suppress(OSError):
                reset_on_close(sock)
            sock.detach()
        os.close(fd)

    def detach(self) -> int:
        """Give the connection up, half open; return its descriptor for the caller to close."""
        fd, self.fd, self.is_logged_in = self.fd, NO_CONNECTION, False
        self._unread, self._goodbye = b"", None
        self._unsent.clear()
        self.loop.unregister(fd)
        if self._tls is not None:
            self._tls.detach()
            self._tls = None
        return fd

    # For the loop

    @property
    def tls(self) -> ssl.SSLSocket | None:
        """The TLS connection, from its handshake on."""
        return self._tls

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def do_handshake(self) -> int:
        """Continue the TLS handshake, if any; return the events to wait for, 0 once it is done."""
        if self.context is None:
            return 0
        try:
            if self._tls is None:
                self._tls = self._wrap(self.context)
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return _READ
        except ssl.SSLWantWriteError:
            return _WRITE
        return 0

    def _wrap(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        sock = socket.socket(fileno=self.fd)
        try:
            sock.setblocking(False)
            sock.getpeername()  # raises OSError if it was reset meanwhile
            return context.wrap_socket(
                sock,
                do_handshake_on_connect=False,
                server_hostname=self.server_name,
                session=self.tls_session,
            )
        except BaseException:
            sock.close()  # `wrap_socket` may have taken the descriptor over, and has closed it then
            fd, self.fd = self.fd, NO_CONNECTION
            self.loop.forget(fd)
            raise

    def flush(self) -> None:
        """Send what the kernel now takes."""
        with contextlib.suppress(OSError):
            del self._unsent[: self._write(self._unsent)]
        if not self._unsent:
            self.loop.set_events(self.fd, _READ)

    def read(self) -> None:
        try:
            data = self._receive()
        except _WOULD_BLOCK:
            return
        except OSError as error:
            data, self.connect_error = b"", error.strerror or str(error)
        now = time.monotonic()
        if not data:
            self.handle_disconnect(self._goodbye, now)
            return
        self.handle_data(data, now)
        if self._tls is not None and self._tls.pending():
            self.read()

    def handle_data(self, data: bytes, now: float) -> None:
        """Handle all packets that are complete with these bytes."""
        unread, fd, start = self._unread + data if self._unread else data, self.fd, 0
        while len(unread) - start >= HEADER_BYTES:
            body = start + HEADER_BYTES
            end = body + int.from_bytes(unread[start:body], "big")
            if end > len(unread):
                break
            self.handle_packet(unread[body:end], now)
            if self.fd != fd:
                return
            start = end
        self._unread = unread[start:]

    def handle_disconnect(self, payload: Mapping[str, Any] | None, now: float) -> None:
        self.loop.endings[payload["code"] if payload else 0] += 1
        self.close()
        self.on_disconnect(payload, now)
        if self.reconnects and (payload is None or may_return(payload)):
            self.loop.call_at(
                now + ((payload or EMPTY_PAYLOAD).get("retry_after") or self.reconnect_delay_s()),
                self.connect,
            )

    def _receive(self) -> bytes:
        return os.read(self.fd, READ_BYTES) if self._tls is None else self._tls.recv(READ_BYTES)

    def _write(self, data: bytes | bytearray) -> int:
        return os.write(self.fd, data) if self._tls is None else self._tls.send(data)

    def handle_packet(self, body: bytes, now: float) -> None:
        """Handle a packet, whose frame had this body, by its kind."""
        self.loop.packets += 1
        if self.loop.packets % PACKETS_PER_CHECK == 0:
            protocol.decode(body)
        packet: list[Any] = msgpack.unpackb(body)
        kind = packet[0]
        id = packet[1] if len(packet) > 1 else None
        payload = packet[2] if len(packet) > 2 else EMPTY_PAYLOAD
        if kind == Kind.GOODBYE or (kind == Kind.ERROR and not self.is_logged_in):
            if self.closes_on_goodbye:
                self.handle_disconnect(payload, now)
            else:
                self._goodbye = payload
        elif kind == Kind.OK and not self.is_logged_in:
            self.is_logged_in = True
            self.loop.logins += 1
            self.on_login(payload, now)
        else:
            self.on_packet(kind, id, payload, now)


class ClientLoop:
    """All clients of a run, their connections and timers.

    Args:
        beat_s: the keepalive interval; 0: none until `start_keepalives`.
        slot_s: of the ring of keepalives, at the first interval.
        sources: addresses to connect from, in turn, or how many.
        poller: None: an epoll set where there are any.

    Attributes:
        members: the clients that it keeps.
        packets, logins: received packets, and granted logins.
        endings: connections that the server ended, by code; 0: broken.
        late_max_s: the most by which an action was late; if large, the load itself was measured.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        beat_s: float = 0.0,
        slot_s: float = SLOT_S,
        sources: int | Iterable[str | None] = SOURCE_ADDRESSES,
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
        self._started, self._cpu_s = time.monotonic(), time.process_time()
        self._unix_s = time.time() - time.monotonic()
        self.poller: Poller = poller or (select.epoll() if sys.platform == "linux" else PlainPoll())
        self._by_fd: dict[int, LoopClient] = {}
        self._opening: set[int] = set()
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._sequence = itertools.count()
        self._slots, self._slot, self._slot_s, self._first_slot_s = 0, 0, 0.0, slot_s
        self._slots_left = 0.0
        self._is_ring_running = False
        if beat_s:
            self.start_keepalives(beat_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for client in self.connected_clients():
            client.close(reset=True)
        self.poller.close()

    def __len__(self) -> int:
        return len(self._by_fd)

    @property
    def next_due_at(self) -> float:
        """When the next action is due; infinite without one."""
        return self._timers[0][0] if self._timers else math.inf

    def call_at(self, moment: float, action: Callable[[], object]) -> None:
        """Call an action at a monotonic time."""
        heapq.heappush(self._timers, (moment, next(self._sequence), action))

    def unix_ms(self, moment: float) -> float:
        """Return the wall clock's time at a monotonic time; servers on this machine have the same one."""
        return (moment + self._unix_s) * 1000

    def run(self, seconds: float, done: Callable[[], bool] | None = None) -> bool:
        """Run for some seconds, or until a condition holds; return whether it does."""
        give_up = time.monotonic() + seconds
        while not (is_done := done is not None and done()) and (now := time.monotonic()) < give_up:
            self.run_once(min(give_up, self.next_due_at) - now)
        return is_done

    def run_once(self, wait_s: float) -> None:
        """Wait at most that long for events and handle them; run the actions that are due."""
        for fd, events in self.poller.poll(max(0.0, wait_s), MAX_EVENTS_PER_POLL):
            self._handle_events(fd, events)
        self._run_due()

    def connect_all(self, clients: Iterable[LoopClient], per_second: float = 2000.0) -> None:
        """Let clients connect, evenly at that rate."""
        now = time.monotonic()
        for number, client in enumerate(clients):
            self.call_at(now + number / per_second, client.connect)

    def log_in(
        self,
        clients: Iterable[Client],
        within_s: float,
        per_second: float = 2000.0,
        is_ready: Callable[[Client], bool] = lambda client: client.is_logged_in,
    ) -> None:
        """Connect clients, evenly at that rate, and wait until all are ready; else raises RuntimeError."""
        every = [*clients]
        self.connect_all(every, per_second)
        if not self.run(within_s, lambda: all(map(is_ready, every))):
            raise RuntimeError(f"only {sum(map(is_ready, every))} of {len(every)} clients could log in")

    def start_keepalives(self, every_s: float, turns: float = math.inf) -> None:
        """Send keepalives for all logged-in clients at that interval, evenly, for some rounds.

        The schedule is a ring of slots; one round takes one interval. Only the length of a slot changes with
        the interval, so no client waits longer than the longer of the two intervals.
        """
        self._slots = self._slots or max(1, round(every_s / self._first_slot_s))
        self._slot_s, self._slots_left = every_s / self._slots, turns * self._slots
        if not self._is_ring_running:
            self._is_ring_running = True
            self._send_slot(time.monotonic())

    def stop_keepalives(self) -> None:
        self._slots_left = 0

    @property
    def is_sending_keepalives(self) -> bool:
        return self._slots_left > 0

    def on_keepalives_sent(self, sent: int, late_s: float) -> None:
        """The keepalives of one slot were sent, the last of them that late; a hook for subclasses."""

    def describe_load(self) -> str:
        """Return, as text, this load's share of a core; a high share means that the load was measured."""
        share = (time.process_time() - self._cpu_s) / (time.monotonic() - self._started)
        return f"{share:.0%} of a core, late by {self.late_max_s * 1000:.0f} ms at most"

    def count_logged_in(self) -> int:
        return sum(client.is_logged_in for client in self.members)

    def open_connection(self, client: LoopClient) -> None:
        """Begin to connect a client; raises OSError."""
        client.connect_error = ""
        sock = client.make_socket()
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

    def connected_clients(self) -> list[LoopClient]:
        return [*self._by_fd.values()]

    def unregister(self, fd: int) -> None:
        """Forget a connection that is about to be closed, or that no client owns any more."""
        del self._by_fd[fd]
        self._opening.discard(fd)
        self.poller.unregister(fd)

    def forget(self, fd: int) -> None:
        """Forget a connection that is closed already."""
        with contextlib.suppress(OSError):  # an epoll set has forgotten it
            self.poller.unregister(fd)
        del self._by_fd[fd]
        self._opening.discard(fd)

    def set_events(self, fd: int, events: int) -> None:
        self.poller.modify(fd, events)

    def set_reading(self, client: LoopClient, *, on: bool) -> None:
        """Read from a connection from now on, or notice its end only."""
        self.poller.modify(client.fd, _READ if on else 0)

    def _handle_events(self, fd: int, events: int) -> None:
        client = self._by_fd.get(fd)
        if client is None:
            return
        if fd in self._opening and not events & _ERROR:
            self._finish_connect(client)
            return
        if events & _WRITE and not events & (_ERROR | _END):
            client.flush()
        if events & ~_WRITE:
            client.read()

    def _finish_connect(self, client: LoopClient) -> None:
        try:
            events = client.do_handshake()
        except OSError as error:
            client.connect_error = f"TLS: {error.strerror or error}"
            client.handle_disconnect(None, time.monotonic())
            return
        self.poller.modify(client.fd, events or _READ)
        if not events:
            self._opening.discard(client.fd)
            client.on_connected()

    def _run_due(self) -> None:
        started = now = time.monotonic()
        while self._timers and self._timers[0][0] <= now < started + MAX_TURN_S:
            due, _, action = heapq.heappop(self._timers)
            self.late_max_s = max(self.late_max_s, now - due)
            action()
            now = time.monotonic()

    def _send_slot(self, due: float) -> None:
        """Send one slot's keepalives. Each client keeps its slot: a late load must not silence it."""
        if self._slots_left <= 0:
            self._is_ring_running = False
            return
        sent = 0
        for client in self.members[self._slot :: self._slots]:
            if client.is_logged_in and client.sends_keepalives:
                client.send_keepalive()
                sent += 1
        if sent:
            self.on_keepalives_sent(sent, time.monotonic() - due)
        self._slot = (self._slot + 1) % self._slots
        self._slots_left -= 1
        due += self._slot_s
        self.call_at(due, partial(self._send_slot, due))


def may_return(payload: Mapping[str, Any]) -> bool:
    """Whether a client may reconnect after an error or a goodbye; an unlisted code comes with the answer."""
    try:
        return Code(payload["code"]).reconnect
    except ValueError:
        return bool(payload.get("reconnect", True))


def backoff_s(attempts: int) -> float:
    """Return the seconds until the next attempt: full jitter under a bound that doubles."""
    return random.uniform(0, min(MAX_BACKOFF_S, 2.0**attempts))


def login_frame(uid: str) -> bytes:
    """Return the frame of a login with nothing but the uid."""
    return protocol.encode(protocol.login(uid, id=LOGIN_ID))


class LoopThread:
    """Runs a `ClientLoop` in a thread of its own, for the length of a ``with`` block."""

    def __init__(self, loop: ClientLoop) -> None:
        self._loop = loop
        self._commands: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._is_closing = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        self._is_closing = True
        self._thread.join()
        if kind is None and self._failure is not None:
            raise RuntimeError(f"the clients' thread died: {self._failure!r}") from self._failure

    def call(self, action: Callable[[], T]) -> T:
        """Call an action in the loop's thread, between two turns; return its result.

        Raises:
            RuntimeError: the thread has died, before the call or during it.
        """
        future: Future[T] = Future()
        self._commands.put((action, future))
        self._fail_commands()
        return future.result(COMMAND_TIMEOUT_S)

    def connect_all(self, clients: Iterable[LoopClient], per_second: float, within_s: float) -> None:
        """Connect clients and wait until all are logged in; raises RuntimeError if they are not."""
        every = [*clients]
        self.call(lambda: self._loop.connect_all(every, per_second))
        give_up = time.monotonic() + len(every) / per_second + within_s
        while (online := sum(each.is_logged_in for each in every)) < len(every):
            if time.monotonic() > give_up:
                raise RuntimeError(f"only {online} of {len(every)} clients could log in")
            self.call(lambda: None)  # it notices that the thread has died
            time.sleep(COMMAND_POLL_INTERVAL_S)

    def _run(self) -> None:
        try:
            with self._loop:
                while not self._is_closing:
                    self._loop.run(COMMAND_POLL_INTERVAL_S, lambda: not self._commands.empty())
                    self._run_command()
        except BaseException as error:
            self._failure = error
            self._fail_commands()
            raise

    def _fail_commands(self) -> None:
        """Answer the commands that the dead thread has left."""
        while self._failure is not None:
            try:
                _, future = self._commands.get_nowait()
            except Empty:
                return
            error = RuntimeError(f"the clients' thread died: {self._failure!r}")
            error.__cause__ = self._failure
            future.set_exception(error)

    def _run_command(self) -> None:
        with contextlib.suppress(Empty):
            action, future = self._commands.get_nowait()
            try:
                future.set_result(action())
            except Exception as error:
                future.set_exception(error)
