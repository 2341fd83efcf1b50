"""The descriptors of the epoll transport: the state of each, its unsent bytes, and its time-out.

`reader.py` reads connections; everything else that happens to them is here. A connection has an entry in
`unsent` only while its client reads slowly.

Each connection is watched by one of three epoll sets, its *latency class*. What the client sends moves it.
`DEMOTE_AFTER_BEATS` keepalives in a row move it to the next slower class, which would have served them too:

    accept -> (HANDSHAKING ->) IMMEDIATE -> login -> BATCHED
    anything but a keepalive:            any class -> IMMEDIATE
    a keepalive that wants an answer:    BATCHED   -> SHORT
    keepalives in a row:                 IMMEDIATE -> SHORT
    the same, none wants an answer:      SHORT     -> BATCHED

Class and count take a byte each, indexed by descriptor.

A TLS connection has an entry in `tls`: what is sent is encrypted immediately, so `unsent` holds records. A
fourth set watches it until its handshake is over. The event mask that the kernel reports for it has one bit
more than that of a plain connection, so the hot path tells the two apart without a lookup.

Closing a connection (`Closing`):

    begin_close  -> QUEUED       input is ignored; the pending replies and the close packet are kept aside
    send_close   -> FLUSHING     the close packet is written, behind what is unsent
    _half_close  -> HALF_CLOSED  everything was sent: the sending side is shut, input is read and dropped
    close                        at the end of input, or after `MAX_DRAIN_BYTES` or `DRAIN_TIMEOUT_S`; in any
                                 state if the unsent bytes are too many, or are taken too slowly
"""

import errno
import os
import select
import socket
from collections import OrderedDict
from contextlib import suppress
from enum import Enum, IntEnum
from typing import TypeAlias

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
from presence.transports.limits import (
    DRAIN_TIMEOUT_S,
    MAX_DRAIN_BYTES,
    MAX_PACKET_BYTES,
    MIN_PROGRESS_BYTES,
    READ_BYTES,
    Limits,
)
from presence.transports.statistics import TransportStatistics
from presence.transports.tls_connection import TlsConnectionState

TIMEOUT_RESOLUTION_S = 0.1  # of deadlines
# About two minutes; a client that wants every third keepalive answered keeps its class.
DEMOTE_AFTER_BEATS = 12

READ, WRITE = 0x001, 0x004  # EPOLLIN, EPOLLOUT of linux/eventpoll.h; a system without epoll can import this
TLS_READ = READ | 0x040  # EPOLLRDNORM: the kernel's `tcp_poll` sets both or none


class LatencyClass(IntEnum):
    """Which epoll set watches a connection; the head of this file has the transitions."""

    IMMEDIATE = 0  # not logged in, or has recently sent more than keepalives: served without a pause
    SHORT = 1  # keepalives that want an answer: gathered for a few milliseconds
    BATCHED = 2  # keepalives without an answer: gathered for longer
    HANDSHAKING = 3  # TLS, handshake not finished: see `tls_handshake.py`
    UNWATCHED = 4  # none


SERVED_CLASSES = (LatencyClass.IMMEDIATE, LatencyClass.SHORT, LatencyClass.BATCHED)


class CloseState(Enum):
    """How far the close of a connection is."""

    QUEUED = "queued"  # the close packet is not sent yet
    FLUSHING = "flushing"  # the close packet is in the write buffer
    HALF_CLOSED = "half closed"  # the sending side is shut; input is read and dropped


class Closing:
    """A connection that is being closed; the head of this file has the transitions.

    Attributes:
        state: how far the close is.
        close_packet: the last bytes to send.
        drained: bytes read and dropped since the close began.
    """

    __slots__ = ("close_packet", "drained", "state")

    def __init__(self, close_packet: bytes | bytearray) -> None:
        self.state = CloseState.QUEUED
        self.close_packet: bytes | bytearray = close_packet
        self.drained = 0


FdState: TypeAlias = Client | Closing | None


class Addresses:
    """The client address of each connection, kept only if it differs from the kernel's or is counted.

    Args:
        admission: counts connections per address, if they are limited.

    Attributes:
        known: addresses that a proxy named or that are counted; for any other, ask the kernel.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.known: dict[int, str] = {}

    def register(self, fd: int, address: str, *, from_proxy: bool = False) -> Refusal | None:
        """Record the address of a connection, and count it.

        Args:
            fd: the connection.
            address: what limits count the client's address by.
            from_proxy: whether a proxy named it, and not the kernel.

        Returns:
            None, or a refusal: the address has as many connections as it may have.
        """
        is_counted = self._admission.counts_connections
        if not (from_proxy or is_counted):
            return None
        if is_counted and (refusal := self._admission.add_connection(address)) is not None:
            return refusal
        self.known[fd] = address
        return None

    def address_of(self, fd: int) -> str:
        """Return the address for operators; "" if the connection is lost and its address not kept."""
        if (address := self.known.get(fd)) is not None:
            return address
        with sockets.borrowed(fd) as sock:
            return networks.limit_key(sockets.peer_address(sock))

    def release(self, fd: int) -> None:
        if (address := self.known.pop(fd, None)) is not None and self._admission.counts_connections:
            self._admission.remove_connection(address)


class Deadlines:
    """The deadlines of descriptors, at most one each. Without deadlines nothing wakes up.

    Args:
        clock: monotonic time.

    Attributes:
        armed: set when a deadline is set; `wait` renews it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wheel: TimingWheel[int] = TimingWheel(256, self._current_slot())
        self.armed = trio.Event()

    def __len__(self) -> int:
        return len(self._wheel)

    def __contains__(self, fd: int) -> bool:
        return fd in self._wheel

    def set(self, fd: int, seconds: float) -> None:
        """Set the deadline of a descriptor, replacing an earlier one."""
        if not self._wheel:  # the wheel was not advanced meanwhile
            self._wheel.pop_due(self._current_slot(), 0)
        self._wheel.touch(fd, int((self._clock.now() + seconds) / TIMEOUT_RESOLUTION_S) + 1)
        self.armed.set()

    def cancel(self, fd: int) -> None:
        self._wheel.discard(fd)

    def pop_expired(self, limit: int) -> list[int]:
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
    """All connections of one transport, by descriptor.

    Args:
        engine: is notified of connections that are dropped.
        clock: monotonic time.
        admission: counts connections by address, if it bounds them.

    Attributes:
        sets: the epoll sets, by latency class.
        fd_states: the client, close or absence of a connection, by descriptor.
        latency_class: the set that watches a descriptor.
        quiet_beats: consecutive keepalives that the next slower class would have served as well.
        unsent: bytes waiting for slow readers.
        largest_packet: the size of the largest packet among them, if packets may be as large as a frame.
        unsent_progress: bytes that slow readers have taken since their deadline was set.
        pending_replies: answers to send when the batch has been read.
        tls: the TLS state of TLS connections, from the accept on.
        handshaking: connections whose handshake has begun and is not finished, oldest first.
        deadlines: time-outs of descriptors.
        addresses: that connections are counted by.
        counters: statistics of this transport.
    """

    def __init__(self, engine: Engine, limits: Limits, clock: Clock, admission: Admission) -> None:
        self._engine = engine
        self._limits = limits
        self.sets = [select.epoll() for _ in (*SERVED_CLASSES, LatencyClass.HANDSHAKING)]
        self.fd_states: list[FdState] = []
        self.latency_class = bytearray()
        self.quiet_beats = bytearray()
        self.unsent: dict[int, bytearray] = {}
        self.largest_packet: dict[int, int] = {}
        self.unsent_progress: dict[int, int] = {}
        self.pending_replies: dict[int, bytearray] = {}
        self.tls: dict[int, TlsConnectionState] = {}
        # A plain dict gets slow when its front is removed.
        self.handshaking: OrderedDict[int, None] = OrderedDict()
        self.deadlines = Deadlines(clock)
        self.addresses = Addresses(admission)
        self.counters = TransportStatistics()

    def add(self, fd: int, guest: Guest, *, is_tls: bool = False) -> None:
        """Add an accepted descriptor, not watched yet and without a login time-out."""
        if (missing := fd + 1 - len(self.fd_states)) > 0:
            self.fd_states.extend([None] * missing)
            self.latency_class.extend(bytes([LatencyClass.UNWATCHED]) * missing)
            self.quiet_beats.extend(bytes(missing))
        self.fd_states[fd] = guest
        if is_tls:
            self.tls[fd] = TlsConnectionState(fd)
        self.counters.connections += 1

    def expect_login(self, fd: int) -> None:
        """Start the login time-out of a connection that was added, unless it runs or the login came."""
        if isinstance(self.fd_states[fd], Guest) and fd not in self.deadlines:
            self.deadlines.set(fd, self._limits.login_timeout)

    def watch_for_login(self, fd: int) -> None:
        """Watch a new connection for its login, unless the first read has closed it.

        Raises:
            OSError: the limit of epoll watches is reached, or there is no memory.
        """
        if self.fd_states[fd] is None:
            return
        if self.latency_class[fd] == LatencyClass.UNWATCHED:
            self.watch(fd, READ)
        elif self.latency_class[fd] == LatencyClass.HANDSHAKING:
            self.set_latency_class(fd, LatencyClass.IMMEDIATE)

    def watch_for_handshake(self, fd: int) -> None:
        """Watch a new TLS connection for its handshake.

        Raises:
            OSError: as in `watch_for_login`.
        """
        if self.latency_class[fd] == LatencyClass.UNWATCHED and isinstance(self.fd_states[fd], Guest):
            self.set_latency_class(fd, LatencyClass.HANDSHAKING)

    def handshake_pending(self, fd: int) -> bool:
        """Whether nothing can be sent on a connection because its handshake is not finished."""
        tls = self.tls.get(fd)
        return tls is not None and not tls.ready

    def log_in(self, fd: int, session: Session) -> None:
        """Turn a guest into a session, in the batched class.

        Raises:
            OSError: the limit of epoll watches is reached, or there is no memory; it is not watched now.
        """
        self.fd_states[fd] = session
        if fd in self.unsent:
            self.deadlines.set(fd, self._limits.unsent_timeout)
        else:
            self.deadlines.cancel(fd)
        self.set_latency_class(fd, LatencyClass.BATCHED)

    def set_latency_class(self, fd: int, latency_class: int) -> None:
        """Let the set of a latency class watch a connection.

        Raises:
            OSError: as in `log_in`.
        """
        if self.latency_class[fd] != LatencyClass.UNWATCHED:
            self.sets[self.latency_class[fd]].unregister(fd)
            self.latency_class[fd] = LatencyClass.UNWATCHED
        self.sets[latency_class].register(fd, self._mask(fd, READ | WRITE if fd in self.unsent else READ))
        self.latency_class[fd] = latency_class
        self.quiet_beats[fd] = 0

    def queue_reply(self, fd: int, data: bytearray) -> None:
        """Keep an answer for the next `flush_replies`."""
        replies = self.pending_replies.get(fd)
        if replies is None:
            self.pending_replies[fd] = data
        else:
            replies += data

    def flush_replies(self) -> None:
        """Send the pending replies, one write per connection.

        A write per answer would wake the client each time, which costs as much as all the rest of a login.
        """
        replies, self.pending_replies = self.pending_replies, {}
        for fd, data in replies.items():
            if self.fd_states[fd] is not None:
                self.send(fd, data)

    def deliver(self, fd: int, packet: bytes) -> None:
        """Send one packet after the pending replies; its size alone makes no slow reader."""
        if fd in self.pending_replies:
            self.send(fd, self.pending_replies.pop(fd))
            if not isinstance(self.fd_states[fd], Session):
                return  # dropped
        data = self._encoded(fd, packet)
        self._send(fd, data, len(data) if len(packet) <= MAX_PACKET_BYTES else MAX_PACKET_BYTES)

    def send(self, fd: int, data: bytes | bytearray) -> None:
        """Send, or keep what the kernel does not take; a peer with too many unsent bytes is dropped."""
        self._send(fd, self._encoded(fd, data))

    def _encoded(self, fd: int, data: bytes | bytearray) -> bytes | bytearray:
        """Return data as a connection sends it: over TLS, records; nothing if it is broken."""
        if (tls := self.tls.get(fd)) is None:
            return data
        try:
            return tls.encrypt(data)
        except OSError:  # the next read reports it
            return b""

    def send_output(self, fd: int, tls: TlsConnectionState) -> None:
        """Send what the TLS library says by itself."""
        if tls.has_output:
            self._send(fd, tls.take_output())

    def read_tls(self, fd: int, tls: TlsConnectionState, limit: int) -> bytes:
        """As `os.read`, and send what the TLS library says by itself.

        Raises:
            BlockingIOError: nothing has arrived; or the client reads so slowly that it was dropped.
            OSError: the connection is broken.
        """
        try:
            return tls.read(limit)
        finally:
            if tls.has_output:
                self._send(fd, tls.take_output())
                if self.tls.get(fd) is not tls:
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def _send(self, fd: int, data: bytes | bytearray, largest_packet: int = 0) -> None:
        """Send bytes as they are; `largest_packet`: how many of them make no slow reader of the peer."""
        unsent = self.unsent.get(fd)
        if unsent is not None:
            unsent += data
        else:
            sent = self._write(fd, data)
            if sent == len(data):
                return
            unsent = self.unsent[fd] = bytearray(data[sent:])
            self.watch(fd, READ | WRITE)
            if isinstance(self.fd_states[fd], Guest):
                return  # a handshake: the library bounds its size, the login time-out its time
            self.deadlines.set(fd, self._limits.unsent_timeout)
        if largest_packet > self.largest_packet.get(fd, 0):
            self.largest_packet[fd] = largest_packet
        if len(unsent) > self._limits.unsent_bytes + self.largest_packet.get(fd, 0):
            self.drop_slow_reader(fd)

    def _write(self, fd: int, data: bytes | bytearray) -> int:
        """Return how many bytes the kernel took, or no longer wants: the next read reports a loss."""
        try:
            return os.write(fd, data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)

    def flush(self, fd: int) -> None:
        """Write unsent bytes: the kernel has room again."""
        unsent = self.unsent.get(fd)
        if unsent is None:
            return
        taken = self._write(fd, unsent)
        del unsent[:taken]
        self.unsent_progress[fd] = self.unsent_progress.get(fd, 0) + taken
        if unsent:
            return
        del self.unsent[fd]
        self.largest_packet.pop(fd, None)
        self.unsent_progress.pop(fd, None)
        client = self.fd_states[fd]
        self.watch(fd, READ)
        if isinstance(client, Closing) and client.state is CloseState.QUEUED:
            self.send_close(fd)
        elif isinstance(client, Closing):
            self._half_close(fd, client)
        elif isinstance(client, Session):
            self.deadlines.cancel(fd)
            self._engine.drained(client)

    def hang_up(self, fd: int, close_packet: bytes | bytearray) -> None:
        """Send a last packet; then half-close, drain, close."""
        if self.begin_close(fd, close_packet):
            self.send_close(fd)

    def finish(self, fd: int, last_packet: bytes | bytearray) -> None:
        """Send the last packet to a client that sends nothing more, and close.

        So no later read finds the end of the input. What the client sends nevertheless is answered by the
        kernel, with a reset.
        """
        if fd in self.tls or fd in self.unsent:
            self.hang_up(fd, last_packet)
            return
        data = self.pending_replies.pop(fd, b"") + last_packet
        try:
            sent = os.write(fd, data)
        except BlockingIOError:
            sent = 0
        except OSError:  # the connection is lost
            sent = len(data)
        if sent == len(data):
            self.close(fd)
        else:
            self.hang_up(fd, data[sent:])

    def begin_close(self, fd: int, close_packet: bytes | bytearray) -> bool:
        """Ignore the input of a connection from now on; return whether `send_close` must follow."""
        if isinstance(self.fd_states[fd], Closing):
            return False
        self.fd_states[fd] = Closing(self.pending_replies.pop(fd, b"") + close_packet)
        return True

    def send_close(self, fd: int) -> None:
        """Send the close packet after `begin_close`, and half-close the connection."""
        closing = self.fd_states[fd]
        if not isinstance(closing, Closing) or closing.state is not CloseState.QUEUED:
            return
        closing.state = CloseState.FLUSHING
        close_packet, closing.close_packet = closing.close_packet, b""
        if close_packet and not self.handshake_pending(fd):
            self.send(fd, close_packet)
        if self.fd_states[fd] is not closing:
            return  # dropped: too much was unsent already
        if fd in self.unsent:
            self.deadlines.set(fd, self._limits.unsent_timeout)
        else:
            self._half_close(fd, closing)

    def _half_close(self, fd: int, closing: Closing) -> None:
        closing.state = CloseState.HALF_CLOSED
        self.deadlines.set(fd, DRAIN_TIMEOUT_S)
        self._end_tls(fd)
        with suppress(OSError), sockets.borrowed(fd) as sock:
            sock.shutdown(socket.SHUT_WR)

    def _end_tls(self, fd: int) -> None:
        """Send TLS's close notification, if nothing is unsent and the kernel takes it."""
        if (tls := self.tls.get(fd)) is not None and fd not in self.unsent:
            self._write(fd, tls.end())

    def drain(self, fd: int, closing: Closing) -> None:
        """Read and drop input; close at its end or when it is too much."""
        self.send_close(fd)
        if self.fd_states[fd] is not closing:
            return
        try:
            data = os.read(fd, READ_BYTES)  # encrypted or not: it is dropped
        except BlockingIOError:
            return
        except OSError:
            data = b""
        closing.drained += len(data)
        if not data and closing.state is not CloseState.HALF_CLOSED:
            self.watch(fd, WRITE)  # the client sends nothing more, but still reads
        elif not data or closing.drained > MAX_DRAIN_BYTES:
            self.close(fd)

    def unsent_timed_out(self, fd: int) -> None:
        """Drop a client that reads too slowly, or renew its time-out if it has taken `MIN_PROGRESS_BYTES`."""
        if self.unsent_progress.pop(fd, 0) >= MIN_PROGRESS_BYTES:
            self.deadlines.set(fd, self._limits.unsent_timeout)
        else:
            self.drop_slow_reader(fd)

    def drop_slow_reader(self, fd: int) -> None:
        """Close the connection of a slow reader; its unsent bytes are lost."""
        client = self.fd_states[fd]
        self.counters.slow_readers += 1
        if isinstance(client, Guest | Session):
            self._engine.disconnected(client, Code.SLOW_CONSUMER)
        self.close(fd)

    def close(self, fd: int) -> None:
        """Close a descriptor and remove all its state."""
        self._end_tls(fd)
        self.fd_states[fd] = None
        self.latency_class[fd] = LatencyClass.UNWATCHED
        self.unsent.pop(fd, None)
        self.largest_packet.pop(fd, None)
        self.unsent_progress.pop(fd, None)
        self.pending_replies.pop(fd, None)
        self.deadlines.cancel(fd)
        self.addresses.release(fd)
        self.counters.connections -= 1
        self.counters.closed += 1
        if self.tls.pop(fd, None) is not None:
            self.handshaking.pop(fd, None)
        os.close(fd)  # which also removes it from its epoll set

    def close_all(self) -> None:
        for fd, fd_state in enumerate(self.fd_states):
            if fd_state is not None:
                self.close(fd)
        for epoll in self.sets:
            epoll.close()

    def count_by_latency_class(self) -> tuple[int, ...]:
        """Return the number of connections in each latency class; O(descriptors)."""
        return tuple(map(self.latency_class.count, SERVED_CLASSES))

    def watch(self, fd: int, mask: int) -> None:
        """Change the watched events; a connection not watched yet becomes `IMMEDIATE`."""
        mask = self._mask(fd, mask)
        if self.latency_class[fd] == LatencyClass.UNWATCHED:
            self.sets[LatencyClass.IMMEDIATE].register(fd, mask)
            self.latency_class[fd] = LatencyClass.IMMEDIATE
        else:
            self.sets[self.latency_class[fd]].modify(fd, mask)

    def _mask(self, fd: int, mask: int) -> int:
        return mask | TLS_READ if mask & READ and fd in self.tls else mask
