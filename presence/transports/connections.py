"""All connections of the epoll transport: watching, sending to and closing them, and their deadlines.

`connection_states.py` says what is known of one; `reader.py` reads them, `guests.py` takes them to a login.

What is sent through a layer (TLS, WebSocket) is encoded immediately, so unsent bytes are those that go over
the wire. The event mask that the kernel reports for such a connection has one bit more than that of a plain
one, so the hot path tells the two apart without a lookup.

Tests: `tests/transports/test_connections.py`, `tests/transports/test_requests.py`.
"""

import errno
import os
import select
import socket
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import trio

from presence.common import networks
from presence.common.clock import Clock
from presence.core.admission import Admission
from presence.core.authenticator import Refusal
from presence.core.engine import Engine
from presence.core.registry import Client, Guest, Session
from presence.core.wheel import TimingWheel
from presence.protocol import Code
from presence.transports import sockets
from presence.transports.connection_failures import ConnectionFailures
from presence.transports.connection_states import (
    AWAITING_HEADER,
    BATCHED,
    CLOSE_QUEUED,
    CLOSED,
    FLUSHING,
    HALF_CLOSED,
    HANDSHAKE,
    HANDSHAKING,
    HEADER,
    IMMEDIATE,
    LOGGED_IN,
    SERVED_CLASSES,
    UNWATCHED,
    UPGRADE,
    WATCHING_CLASSES,
    Connection,
    LatencyClass,
)
from presence.transports.limits import (
    DRAIN_TIMEOUT_S,
    MAX_DRAIN_BYTES,
    MAX_PACKET_BYTES,
    MIN_PROGRESS_BYTES,
    READ_BYTES,
    Limits,
)
from presence.transports.tls_connection import TlsConnectionState
from presence.transports.transport_counters import TransportCounters
from presence.transports.websocket_connection import InputRefused, WebSocketConnectionState

TIMEOUT_RESOLUTION_S = 0.1  # of deadlines
READ, WRITE = 0x001, 0x004  # EPOLLIN, EPOLLOUT of linux/eventpoll.h; a system without epoll can import this
LAYERED_READ = READ | 0x040  # EPOLLRDNORM: the kernel's `tcp_poll` sets both or none


class ListenerKind(NamedTuple):
    """What connections of a listener begin with."""

    is_tls: bool  # a handshake
    is_websocket: bool  # a request of HTTP, after the handshake if there are both


PLAIN = ListenerKind(is_tls=False, is_websocket=False)


class Deadlines:
    """The deadlines of connections, at most one each. Without deadlines nothing wakes up.

    Args:
        clock: monotonic time.

    Attributes:
        armed: set when a deadline is set; `wait` renews it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wheel: TimingWheel[Connection] = TimingWheel(256, self._current_slot())
        self.armed = trio.Event()

    def __len__(self) -> int:
        return len(self._wheel)

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._wheel

    def set(self, connection: Connection, seconds: float) -> None:
        """Set the deadline of a connection, replacing an earlier one."""
        if not self._wheel:  # `pop_expired` was not called meanwhile
            self._wheel.advance(self._current_slot())
        self._wheel.touch(connection, int((self._clock.now() + seconds) / TIMEOUT_RESOLUTION_S) + 1)
        self.armed.set()

    def cancel(self, connection: Connection) -> None:
        self._wheel.discard(connection)

    def pop_expired(self, limit: int) -> list[Connection]:
        return self._wheel.pop_due(self._current_slot(), limit)

    async def wait(self) -> None:
        """Wait until a deadline may have passed."""
        if not self._wheel:
            self.armed = trio.Event()
            await self.armed.wait()
        await trio.sleep(TIMEOUT_RESOLUTION_S)

    def _current_slot(self) -> int:
        return int(self._clock.now() / TIMEOUT_RESOLUTION_S)


class Connections:
    """All connections of one transport.

    Args:
        engine: is notified of clients that are disconnected.
        clock: monotonic time.
        admission: counts connections by address, if it bounds them.

    Attributes:
        sets: the epoll sets, by latency class.
        clients: the client of a connection, by descriptor; None while it is closing, and without one.
        latency_class: the set that watches a descriptor.
        patient_keepalives: consecutive keepalives that the next slower class would have served as well.
        addresses: those that a proxy has named or that are counted, by descriptor.
        by_fd: the `Connection` of those that have one, by descriptor.
        replies: answers to send when the batch has been read, by descriptor.
        handshaking: connections whose handshake has begun and is not finished, oldest first.
        deadlines: time-outs of connections.
        defer: called with a connection that must be read again, although the kernel will not say so.
        counters: statistics of this transport.
        failures: counts and logs what goes wrong.
    """

    def __init__(self, engine: Engine, limits: Limits, clock: Clock, admission: Admission) -> None:
        self._engine = engine
        self._limits = limits
        self._admission = admission
        self.sets = [select.epoll() for _ in WATCHING_CLASSES]
        self.clients: list[Client | None] = []
        self.latency_class = bytearray()
        self.patient_keepalives = bytearray()
        self.addresses: dict[int, str] = {}
        self.by_fd: dict[int, Connection] = {}
        self.replies: dict[int, bytearray] = {}
        # A plain dict gets slow when its front is removed.
        self.handshaking: OrderedDict[Connection, None] = OrderedDict()
        self.deadlines = Deadlines(clock)
        self.defer: Callable[[Connection], None] = lambda _connection: None  # set by the reader
        self.counters = TransportCounters()
        self.failures = ConnectionFailures(engine, self.counters)

    def add(self, fd: int, guest: Guest, listener: ListenerKind = PLAIN) -> Connection:
        """Add an accepted descriptor, not watched yet and without a login time-out."""
        if (missing := fd + 1 - len(self.clients)) > 0:
            self.clients.extend([None] * missing)
            self.latency_class.extend(bytes([UNWATCHED]) * missing)
            self.patient_keepalives.extend(bytes(missing))
        self.clients[fd] = guest
        connection = self.by_fd[fd] = Connection(fd)
        if listener.is_tls:
            connection.tls = TlsConnectionState(fd)
            self.counters.tls_connections += 1
        if listener.is_websocket:
            connection.websocket = WebSocketConnectionState(fd, connection.tls)
            self.counters.websocket_connections += 1
        connection.state = connection.next_guest_state
        self.counters.connections += 1
        return connection

    def ensure(self, fd: int) -> Connection:
        """Return the `Connection` of an open descriptor, made if its session was idle; see `drop_if_idle`."""
        connection = self.by_fd.get(fd)
        if connection is None:
            connection = self.by_fd[fd] = Connection(fd)
        return connection

    def drop_if_idle(self, connection: Connection) -> None:
        """Undo `ensure`: drop a `Connection` that says no more than its session does."""
        if connection.is_idle:
            del self.by_fd[connection.fd]

    def is_open(self, fd: int) -> bool:
        return self.clients[fd] is not None or fd in self.by_fd

    # Addresses

    def identify(self, fd: int, address: str, *, from_proxy: bool = False) -> Refusal | None:
        """Record the address of a client, and count it, unless it is banned.

        Args:
            fd: its connection.
            address: what limits count the client's address by.
            from_proxy: whether a proxy named it, and not the kernel.

        Returns:
            None, or a refusal: the address is banned, or has as many connections as it may have.
        """
        if (refusal := self._engine.refuse_address(address)) is not None:
            return refusal
        is_counted = self._admission.counts_connections
        if not (from_proxy or is_counted):
            return None
        if is_counted and (refusal := self._admission.add_connection(address)) is not None:
            return refusal
        self.addresses[fd] = address
        return None

    def address_of(self, fd: int) -> str:
        """Return the address for operators; "" if the connection is lost and its address not kept."""
        if (address := self.addresses.get(fd)) is not None:
            return address
        with sockets.borrowed(fd) as sock:
            return networks.limit_key(sockets.peer_address(sock))

    # The set that watches a connection

    def expect_login(self, connection: Connection) -> None:
        """Start the login time-out of a connection that was added, unless it runs or the login came."""
        if connection.is_guest and connection not in self.deadlines:
            self.deadlines.set(connection, self._limits.login_timeout)

    def watch_guest(self, connection: Connection) -> None:
        """Watch a guest for what it has to send next, or a connection that is closing.

        Raises:
            OSError: the limit of epoll watches is reached, or there is no memory.
        """
        if connection.state is LOGGED_IN or connection.is_closed:
            return
        latency_class: LatencyClass = IMMEDIATE
        if connection.state in {HEADER, UPGRADE}:
            latency_class = AWAITING_HEADER
        elif connection.state is HANDSHAKE:
            latency_class = HANDSHAKING
        if self.latency_class[connection.fd] != latency_class:
            self.set_latency_class(connection.fd, latency_class)

    def log_in(self, fd: int, session: Session) -> None:
        """Turn a guest into a session, in the batched class.

        Raises:
            OSError: the limit of epoll watches is reached, or there is no memory; it is not watched now.
        """
        connection = self.ensure(fd)
        self.clients[fd] = session
        connection.state = LOGGED_IN
        if connection.unsent is not None:
            self.deadlines.set(connection, self._limits.unsent_timeout)
        else:
            self.deadlines.cancel(connection)
        self.set_latency_class(fd, BATCHED)
        self.drop_if_idle(connection)

    def set_latency_class(self, fd: int, latency_class: LatencyClass) -> None:
        """Let the set of a latency class watch a connection.

        Raises:
            OSError: as in `log_in`.
        """
        if self.latency_class[fd] != UNWATCHED:
            self.sets[self.latency_class[fd]].unregister(fd)
            self.latency_class[fd] = UNWATCHED
        connection = self.by_fd.get(fd)
        has_unsent = connection is not None and connection.unsent is not None
        self.sets[latency_class].register(fd, self._mask(fd, READ | WRITE if has_unsent else READ))
        self.latency_class[fd] = latency_class
        self.patient_keepalives[fd] = 0

    def count_by_latency_class(self) -> tuple[int, ...]:
        """Return the number of connections in each latency class; O(descriptors)."""
        return tuple(map(self.latency_class.count, SERVED_CLASSES))

    def _watch(self, fd: int, mask: int) -> None:
        """Change the watched events; a connection not watched yet becomes `IMMEDIATE`."""
        mask = self._mask(fd, mask)
        if self.latency_class[fd] == UNWATCHED:
            self.sets[IMMEDIATE].register(fd, mask)
            self.latency_class[fd] = IMMEDIATE
        else:
            self.sets[self.latency_class[fd]].modify(fd, mask)

    def _mask(self, fd: int, mask: int) -> int:
        connection = self.by_fd.get(fd)
        is_layered = connection is not None and connection.layer is not None
        return mask | LAYERED_READ if mask & READ and is_layered else mask

    # Reading and sending

    def read(self, fd: int, limit: int) -> bytes:
        """As `os.read`, also through a layer; what the layer says by itself meanwhile is sent.

        Raises:
            BlockingIOError: nothing has arrived; or the client reads so slowly that it was disconnected.
            InputRefused: the client has broken a rule of WebSocket.
            OSError: the connection is broken.
        """
        connection = self.by_fd.get(fd)
        if connection is None or (layer := connection.layer) is None:
            return os.read(fd, limit)
        try:
            return layer.read(limit)
        finally:
            if layer.has_output:
                self.send_output(connection)
                if connection.is_closed:
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            if connection.websocket is not None:
                self._websocket_read(connection, connection.websocket)

    def _websocket_read(self, connection: Connection, layer: WebSocketConnectionState) -> None:
        """Count what was read, and have the rest read that is in the layer.

        Raises:
            InputRefused: the client sends too many WebSocket frames for what they carry.
        """
        client, websocket = self.clients[connection.fd], layer.websocket
        if client is None or websocket is None:
            return
        if (refusal := websocket.excess(self._engine, client)) is not None:
            raise InputRefused(refusal)
        if layer.has_more:
            self.defer(connection)

    def queue_reply(self, fd: int, data: bytearray) -> None:
        """Keep an answer for the next `flush_replies`."""
        replies = self.replies.get(fd)
        if replies is None:
            self.replies[fd] = data
        else:
            replies += data

    def flush_replies(self) -> None:
        """Send the pending replies, one write per connection.

        A write per answer would wake the client each time, which costs as much as all the rest of a login.
        """
        replies, self.replies = self.replies, {}
        for fd, data in replies.items():
            if self.clients[fd] is not None:
                self.send(fd, data)

    def deliver(self, fd: int, packet: bytes) -> None:
        """Send one packet after the pending replies; its size alone makes no slow reader of the client."""
        if fd in self.replies:
            self.send(fd, self.replies.pop(fd))
            if self.clients[fd] is None:
                return  # cut off
        connection = self.by_fd.get(fd)
        data = self._encoded(connection, packet)
        self._send(fd, connection, data, len(data) if len(packet) <= MAX_PACKET_BYTES else MAX_PACKET_BYTES)

    def send(self, fd: int, data: bytes | bytearray) -> None:
        """Send, or keep what the kernel does not take; a client with too many unsent bytes is cut off."""
        connection = self.by_fd.get(fd)
        self._send(fd, connection, self._encoded(connection, data))

    def send_output(self, connection: Connection) -> None:
        """Send what a layer says by itself."""
        if (layer := connection.layer) is not None:
            self._send(connection.fd, connection, layer.take_output())

    def _encoded(self, connection: Connection | None, data: bytes | bytearray) -> bytes | bytearray:
        """Return frames as a connection sends them; nothing if it is broken."""
        if connection is None or (layer := connection.layer) is None:
            return data
        try:
            return layer.encode(data)
        except OSError:  # the next read reports it
            return b""

    def _send(
        self, fd: int, connection: Connection | None, data: bytes | bytearray, largest_packet: int = 0
    ) -> None:
        """Send bytes as they are; `largest_packet`: how many of them make no slow reader of the client."""
        if connection is None or connection.unsent is None:
            sent = _write(fd, data)
            if sent == len(data):
                return
            connection = connection or self.ensure(fd)
            connection.unsent = bytearray(data[sent:])
            self.counters.unsent_connections += 1
            self._watch(fd, READ | WRITE)
            if not connection.is_guest:
                self.deadlines.set(connection, self._limits.unsent_timeout)
        else:
            connection.unsent += data
        if connection.is_guest:
            return  # handshake or request: their size has bounds, and the login time-out bounds their time
        connection.largest_packet = max(connection.largest_packet, largest_packet)
        if len(connection.unsent) > self._limits.unsent_bytes + connection.largest_packet:
            self._close_slow_reader(connection)

    def flush(self, connection: Connection) -> None:
        """Write unsent bytes: the kernel has room again."""
        if connection.unsent is None:
            return
        taken = _write(connection.fd, connection.unsent)
        del connection.unsent[:taken]
        connection.progress_bytes += taken
        if connection.unsent:
            return
        connection.unsent = None
        connection.largest_packet = connection.progress_bytes = 0
        self.counters.unsent_connections -= 1
        client = self.clients[connection.fd]
        self._watch(connection.fd, READ)
        if connection.state is CLOSE_QUEUED:
            self.send_close(connection)
        elif connection.state is FLUSHING:
            self._half_close(connection)
        elif isinstance(client, Session):
            self.deadlines.cancel(connection)
            self.drop_if_idle(connection)
            self._engine.all_sent(client)

    def unsent_timed_out(self, connection: Connection) -> None:
        """Cut off a slow reader, or renew its time-out if it has taken `MIN_PROGRESS_BYTES`."""
        if connection.progress_bytes >= MIN_PROGRESS_BYTES:
            connection.progress_bytes = 0
            self.deadlines.set(connection, self._limits.unsent_timeout)
        else:
            self._close_slow_reader(connection)

    def _close_slow_reader(self, connection: Connection) -> None:
        """Close the connection of a slow reader; its unsent bytes are lost."""
        self.counters.slow_readers += 1
        if (client := self.clients[connection.fd]) is not None:
            self._engine.disconnected(client, Code.SLOW_CONSUMER)
        self.close(connection.fd)

    # Closing

    def close_gracefully(self, fd: int, close_packet: bytes | bytearray) -> None:
        """Send a last packet; then half-close, drain, close."""
        if (connection := self.begin_close(fd, close_packet)) is not None:
            self.send_close(connection)

    def close_after(self, fd: int, last_packet: bytes | bytearray) -> None:
        """Send the last packet to a client that sends nothing more, and close.

        So no later read finds the end of the input. What the client sends nevertheless is answered by the
        kernel, with a reset.
        """
        connection = self.by_fd.get(fd)
        if connection is not None and (connection.layer is not None or connection.unsent is not None):
            self.close_gracefully(fd, last_packet)
            return
        data = self.replies.pop(fd, b"") + last_packet
        sent = _write(fd, data)
        if sent == len(data):
            self.close(fd)
        else:
            self.close_gracefully(fd, data[sent:])

    def begin_close(self, fd: int, close_packet: bytes | bytearray) -> Connection | None:
        """Ignore the input of a connection from now on; return it if `send_close` must follow."""
        connection = self.ensure(fd)
        if not (connection.is_guest or connection.state is LOGGED_IN):
            return None
        self.clients[fd] = None
        connection.state = CLOSE_QUEUED
        connection.close_packet = self.replies.pop(fd, b"") + close_packet
        return connection

    def send_close(self, connection: Connection) -> None:
        """Send the close packet after `begin_close`, and half-close the connection."""
        if connection.state is not CLOSE_QUEUED:
            return
        connection.state = FLUSHING
        close_packet, connection.close_packet = connection.close_packet, b""
        if close_packet and connection.can_send:
            if connection.websocket is not None:
                connection.websocket.note_last_packet(close_packet)
            self.send(connection.fd, close_packet)
        if connection.is_closed:
            return  # too much was unsent already
        if connection.unsent is not None:
            self.deadlines.set(connection, self._limits.unsent_timeout)
        else:
            self._half_close(connection)

    def _half_close(self, connection: Connection) -> None:
        connection.state = HALF_CLOSED
        self.deadlines.set(connection, DRAIN_TIMEOUT_S)
        _end_layer(connection)
        with suppress(OSError), sockets.borrowed(connection.fd) as sock:
            sock.shutdown(socket.SHUT_WR)

    def drain(self, connection: Connection) -> None:
        """Read and drop input; close at its end or when it is too much."""
        self.send_close(connection)
        if connection.is_closed:
            return
        try:
            data = os.read(connection.fd, READ_BYTES)  # encrypted or not: it is dropped
        except BlockingIOError:
            return
        except OSError:
            data = b""
        connection.drained_bytes += len(data)
        if not data and connection.state is not HALF_CLOSED:
            self._watch(connection.fd, WRITE)  # the client sends nothing more, but still reads
        elif not data or connection.drained_bytes > MAX_DRAIN_BYTES:
            self.close(connection.fd)

    def close(self, fd: int) -> None:
        """Close a descriptor and remove all its state."""
        if (connection := self.by_fd.pop(fd, None)) is not None:
            self._release(connection)
        address = self.addresses.pop(fd, None)
        if address is not None and self._admission.counts_connections:
            self._admission.remove_connection(address)
        self.replies.pop(fd, None)
        self.clients[fd] = None
        self.latency_class[fd] = UNWATCHED
        self.counters.connections -= 1
        self.counters.closed += 1
        os.close(fd)  # which also removes it from its epoll set

    def _release(self, connection: Connection) -> None:
        """Give up everything that belongs to a connection that is about to be closed."""
        _end_layer(connection)
        self.counters.unsent_connections -= connection.unsent is not None
        self.counters.awaiting_proxy_headers -= connection.header is not None
        self.deadlines.cancel(connection)
        self.forget_tls(connection)
        self.counters.websocket_connections -= connection.websocket is not None
        connection.state = CLOSED

    def forget_tls(self, connection: Connection) -> None:
        """Treat a connection as a plain one from now on."""
        if connection.tls is not None:
            connection.tls = None
            if connection.websocket is not None:
                connection.websocket.tls = None
            self.handshaking.pop(connection, None)
            self.counters.tls_connections -= 1

    def close_all(self) -> None:
        for fd in range(len(self.clients)):
            if self.is_open(fd):
                self.close(fd)
        for epoll in self.sets:
            epoll.close()


def _write(fd: int, data: bytes | bytearray) -> int:
    """Return how many bytes the kernel took, or no longer wants: the next read reports a loss."""
    try:
        return os.write(fd, data)
    except BlockingIOError:
        return 0
    except OSError:
        return len(data)


def _end_layer(connection: Connection) -> None:
    """Send a layer's close notification, if nothing is unsent and the kernel takes it."""
    if (layer := connection.layer) is not None and connection.unsent is None:
        _write(connection.fd, layer.end())
