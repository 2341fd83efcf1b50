"""The descriptors of the epoll transport: whose each is, what waits to be sent, when its time is up.

Beside `reading.py`: here is everything that a connection goes through besides being read.
A connection has an entry in `unsent` only while its peer is slow. Hung up, it is *closing*: its farewell
leaves, its sending side is shut, its input is read and dropped for a bounded time, and it is closed.

Each connection is watched by one of three epoll sets; which one is its *pace*. What it sends moves it: into a
quicker set at once, into a more patient one after `DEMOTE_AFTER_BEATS` keepalives in a row that the
more patient set would have served as well. Pace and count are a byte each, by descriptor.

TLS connections have a wire, which takes the place of `os.read` and `os.write`; until its handshake is over a
fourth set watches it. The mask that the kernel reports for it has one bit more than that of a plain one: so
the hot path knows it apart without looking it up.
"""

import os
import select
import socket
from collections import OrderedDict
from contextlib import suppress
from typing import TypeAlias

import trio

from presence.common import networks
from presence.common.clock import Clock
from presence.core.admission import Admission, Refusal
from presence.core.engine import Engine
from presence.core.registry import Guest, Peer, Session
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
    TransportStatistics,
)
from presence.transports.tls_connection import TlsConnectionState

IMMEDIATE = 0  # not logged in, or lately sent more than keepalives: served at once
SHORT = 1  # keepalives that want an answer: gathered for a time that nobody notices
BATCHED = 2  # keepalives that want none: gathered for longer
LATENCY_CLASSES = (IMMEDIATE, SHORT, BATCHED)
HANDSHAKING = 3  # TLS, and the handshake is not over: see `handshakes.py`
_UNWATCHED = 4
TIMEOUT_RESOLUTION_S = 0.1  # resolution of deadlines
DEMOTE_AFTER_BEATS = 12  # two minutes as a rule; a client that asks with every third beat stays where it is

READ, WRITE = 0x001, 0x004  # EPOLLIN, EPOLLOUT of linux/eventpoll.h; a system without epoll can import this
TLS_READ = READ | 0x040  # EPOLLRDNORM: the kernel's `tcp_poll` sets both or none


class Closing:
    """A connection that was hung up.

    Attributes:
        close_packet: what is to be said before the sending side is shut; None once it was.
        drained: bytes that were read since, and dropped.
        shut: whether the sending side is.
    """

    __slots__ = ("close_packet", "drained", "shut")

    def __init__(self, close_packet: bytes | bytearray) -> None:
        self.close_packet: bytes | bytearray | None = close_packet
        self.drained = 0
        self.shut = False


FdState: TypeAlias = Peer | Closing | None


class Addresses:
    """By which address each connection counts: kept only where the kernel could not say it, or it is counted.

    Args:
        admission: counts connections by address, if it bounds them.

    Attributes:
        known: addresses that were told or counted; one that is not here is the kernel's.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.known: dict[int, str] = {}

    def register(self, fd: int, address: str, *, from_proxy: bool = False) -> Refusal | None:
        """It is known who is at the other end.

        Args:
            fd: the connection.
            address: of the client; "" if it has none, which nobody counts.
            from_proxy: whether somebody else than the kernel says so.

        Returns:
            None, or what the client is to be told: its address has as many connections as it may have.
        """
        is_counted = self._admission.counts_connections
        if not address or not (from_proxy or is_counted):
            return None
        client = networks.client_of(address)
        if is_counted and (refusal := self._admission.enter(client)) is not None:
            return refusal
        self.known[fd] = client
        return None

    def address_of(self, fd: int) -> str:
        """Return what limits count a connection by, see `networks.client_of`; "": nothing."""
        if (address := self.known.get(fd)) is not None:
            return address
        with sockets.borrowed(fd) as sock:
            return networks.client_of(sockets.peer_address(sock))

    def release(self, fd: int) -> None:
        """The connection is closed."""
        if (address := self.known.pop(fd, None)) is not None and self._admission.counts_connections:
            self._admission.leave(address)


class Deadlines:
    """When the time of descriptors is up; at most one deadline for each. Nothing to do wakes nobody.

    Args:
        clock: monotonic time.

    Attributes:
        armed: set when a deadline is; `wait` renews it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wheel: TimingWheel[int] = TimingWheel(256, self._tick())
        self.armed = trio.Event()

    def __len__(self) -> int:
        return len(self._wheel)

    def set(self, fd: int, seconds: float) -> None:
        """Set the moment when a descriptor's time is up, in place of an earlier one."""
        if not self._wheel:  # nobody has driven the wheel meanwhile
            self._wheel.expire(self._tick(), 0)
        self._wheel.touch(fd, int((self._clock.now() + seconds) / TIMEOUT_RESOLUTION_S) + 1)
        self.armed.set()

    def cancel(self, fd: int) -> None:
        """Give a descriptor all the time that it wants."""
        self._wheel.forget(fd)

    def pop_expired(self, limit: int) -> list[int]:
        """Return descriptors whose time is up, at most `limit`; the deadline is then forgotten."""
        return self._wheel.expire(self._tick(), limit)

    async def wait(self) -> None:
        """Return when somebody's time may be up."""
        if not self._wheel:
            self.armed = trio.Event()
            await self.armed.wait()
        await trio.sleep(TIMEOUT_RESOLUTION_S)

    def _tick(self) -> int:
        return int(self._clock.now() / TIMEOUT_RESOLUTION_S)


class Connections:
    """All connections of one transport, by descriptor.

    Args:
        core: told of connections that are cut off.
        limits: see `Limits`.
        clock: monotonic time.
        admission: counts connections by address, if it bounds them.

    Attributes:
        sets: the epoll sets, by pace.
        fd_states: by descriptor.
        latency_class: which set watches a descriptor.
        quiet_beats: how many keepalives in a row have asked for no more than a more patient set gives.
        unsent: what waits for slow readers.
        largest_packet: of these, the size of the largest packet that may be as large as a frame.
        unsent_progress: bytes that slow readers have taken since their time began.
        pending_replies: answers that are sent when the batch has been read.
        tls: of TLS connections, from the accept on.
        handshaking: those whose handshake has begun and was never over, the oldest first.
        deadlines: when a descriptor's time is up.
        addresses: by which each counts.
        counters: what this transport counts.
    """

    def __init__(self, core: Engine, limits: Limits, clock: Clock, admission: Admission) -> None:
        self._core = core
        self._limits = limits
        self.sets = [select.epoll() for _ in (*LATENCY_CLASSES, HANDSHAKING)]
        self.fd_states: list[FdState] = []
        self.latency_class = bytearray()
        self.quiet_beats = bytearray()
        self.unsent: dict[int, bytearray] = {}
        self.largest_packet: dict[int, int] = {}
        self.unsent_progress: dict[int, int] = {}
        self.pending_replies: dict[int, bytearray] = {}
        self.tls: dict[int, TlsConnectionState] = {}
        self.handshaking: OrderedDict[int, None] = OrderedDict()  # a plain one grows slow at its front
        self.deadlines = Deadlines(clock)
        self.addresses = Addresses(admission)
        self.counters = TransportStatistics()

    def add(self, fd: int, guest: Guest, *, is_tls: bool = False) -> None:
        """Take in a descriptor that nobody watches yet; its login is due, and before it its handshake."""
        if (missing := fd + 1 - len(self.fd_states)) > 0:
            self.fd_states.extend([None] * missing)
            self.latency_class.extend(bytes([_UNWATCHED]) * missing)
            self.quiet_beats.extend(bytes(missing))
        self.fd_states[fd] = guest
        if is_tls:
            self.tls[fd] = TlsConnectionState(fd)
        self.counters.connections += 1
        self.deadlines.set(fd, self._limits.login_timeout)

    def watch_for_login(self, fd: int) -> None:
        """Watch a new connection, if its first read has not settled everything.

        Raises:
            OSError: the user's limit of watches is reached, or there is no memory.
        """
        if self.fd_states[fd] is None:
            return
        if self.latency_class[fd] == _UNWATCHED:
            self.watch(fd, READ)
        elif self.latency_class[fd] == HANDSHAKING:
            self.set_latency_class(fd, IMMEDIATE)

    def watch_for_handshake(self, fd: int) -> None:
        """Watch a new TLS connection.

        Raises:
            OSError: as in `watch_for_login`.
        """
        if self.latency_class[fd] == _UNWATCHED and isinstance(self.fd_states[fd], Guest):
            self.set_latency_class(fd, HANDSHAKING)

    def handshake_pending(self, fd: int) -> bool:
        """Return whether nothing can be said to a connection, for its handshake is not over."""
        tls = self.tls.get(fd)
        return tls is not None and not tls.ready

    def log_in(self, fd: int, session: Session) -> None:
        """Move a connection to the patient set.

        Raises:
            OSError: the user's limit of watches is reached, or there is no memory; nobody watches it now.
        """
        self.fd_states[fd] = session
        self.deadlines.cancel(fd)
        self.set_latency_class(fd, BATCHED)

    def set_latency_class(self, fd: int, latency_class: int) -> None:
        """Let the set of `latency_class` watch a connection.

        Raises:
            OSError: as in `log_in`.
        """
        if self.latency_class[fd] != _UNWATCHED:
            self.sets[self.latency_class[fd]].unregister(fd)
            self.latency_class[fd] = _UNWATCHED
        self.sets[latency_class].register(fd, self._mask(fd, READ | WRITE if fd in self.unsent else READ))
        self.latency_class[fd] = latency_class
        self.quiet_beats[fd] = 0

    def queue_reply(self, fd: int, data: bytearray) -> None:
        """Send with the next `flush_replies`."""
        replies = self.pending_replies.get(fd)
        if replies is None:
            self.pending_replies[fd] = data
        else:
            replies += data

    def flush_replies(self) -> None:
        """Send what is owed, in one go: a client that waits is woken by the first answer, and then awake.

        Each answer by itself would wake it anew, which costs the sender as much as all else about a login.
        """
        replies, self.pending_replies = self.pending_replies, {}
        for fd, data in replies.items():
            if self.fd_states[fd] is not None:
                self.send(fd, data)

    def deliver(self, fd: int, packet: bytes) -> None:
        """Send one packet after all that is owed. However large it is, it is no sign of a slow reader."""
        if fd in self.pending_replies:
            self.send(fd, self.pending_replies.pop(fd))
            if not isinstance(self.fd_states[fd], Session):
                return  # cut off
        self.largest_packet[fd] = max(min(len(packet), MAX_PACKET_BYTES), self.largest_packet.get(fd, 0))
        self.send(fd, packet)
        if fd not in self.unsent:
            self.largest_packet.pop(fd, None)

    def send(self, fd: int, data: bytes | bytearray) -> None:
        """Send, or keep what the kernel does not take; a reader too slow for its bound is cut off."""
        unsent = self.unsent.get(fd)
        if unsent is not None:
            unsent += data
        else:
            tls = self.tls.get(fd)
            try:
                sent = os.write(fd, data) if tls is None else tls.write(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the connection is gone; its next read says so
            if sent == len(data):
                return
            unsent = self.unsent[fd] = bytearray(data[sent:])
            self.watch(fd, READ | WRITE)
            if not isinstance(self.fd_states[fd], Guest):
                self.deadlines.set(fd, self._limits.unsent_timeout)
        if len(unsent) > self._limits.unsent_bytes + self.largest_packet.get(fd, 0):
            self.drop_slow_reader(fd)

    def flush(self, fd: int) -> None:
        """The kernel takes more."""
        unsent, tls = self.unsent.get(fd), self.tls.get(fd)
        if unsent is None:
            if tls is not None:  # a read waited for it
                self.watch(fd, READ)
            return
        try:
            taken = os.write(fd, unsent) if tls is None else tls.write(unsent)
            del unsent[:taken]
            self.unsent_progress[fd] = self.unsent_progress.get(fd, 0) + taken
        except BlockingIOError:
            return
        except OSError:
            unsent.clear()
        if unsent:
            return
        del self.unsent[fd]
        self.largest_packet.pop(fd, None)
        self.unsent_progress.pop(fd, None)
        peer = self.fd_states[fd]
        self.watch(fd, READ)
        if isinstance(peer, Closing) and peer.close_packet is not None:
            self.send_close(fd)
        elif isinstance(peer, Closing):
            self._half_close(fd, peer)
        elif isinstance(peer, Session):
            self.deadlines.cancel(fd)
            self._core.drained(peer)

    def hang_up(self, fd: int, close_packet: bytes | bytearray) -> None:
        """Send a last packet; then half-close, drain, close."""
        if self.begin_close(fd, close_packet):
            self.send_close(fd)

    def begin_close(self, fd: int, close_packet: bytes | bytearray) -> bool:
        """Listen no more to a connection; True: `send_close` is to follow, soon."""
        if isinstance(self.fd_states[fd], Closing):
            return False
        self.fd_states[fd] = Closing(self.pending_replies.pop(fd, b"") + close_packet)
        return True

    def send_close(self, fd: int) -> None:
        """Send the farewell of a connection whose parting began, and half-close it."""
        closing = self.fd_states[fd]
        if not isinstance(closing, Closing) or closing.close_packet is None:
            return
        close_packet, closing.close_packet = closing.close_packet, None
        if close_packet and not self.handshake_pending(fd):
            self.send(fd, close_packet)
        if self.fd_states[fd] is not closing:
            return  # cut off: too much was waiting already
        if fd in self.unsent:
            self.deadlines.set(fd, self._limits.unsent_timeout)
        else:
            self._half_close(fd, closing)

    def _half_close(self, fd: int, closing: Closing) -> None:
        closing.shut = True
        self.deadlines.set(fd, DRAIN_TIMEOUT_S)
        if fd in self.tls:
            self.tls[fd].close_send()
        with suppress(OSError), sockets.borrowed(fd) as sock:
            sock.shutdown(socket.SHUT_WR)

    def drain(self, fd: int, closing: Closing) -> None:
        """Read and drop what still comes; close when it ends or is too much."""
        self.send_close(fd)
        if self.fd_states[fd] is not closing:
            return
        try:
            data = os.read(fd, READ_BYTES)  # of TLS, too: nobody wants to know what it says
        except BlockingIOError:
            return
        except OSError:
            data = b""
        closing.drained += len(data)
        if not data and not closing.shut:
            self.watch(fd, WRITE)  # it will say no more, and still reads
        elif not data or closing.drained > MAX_DRAIN_BYTES:
            self.close(fd)

    def unsent_timed_out(self, fd: int) -> None:
        """A session's time to take what waits is over; who has taken a good part of it has as long again."""
        if self.unsent_progress.pop(fd, 0) >= MIN_PROGRESS_BYTES:
            self.deadlines.set(fd, self._limits.unsent_timeout)
        else:
            self.drop_slow_reader(fd)

    def drop_slow_reader(self, fd: int) -> None:
        """A slow reader: what waits for it is dropped with the connection."""
        peer = self.fd_states[fd]
        self.counters.slow_readers += 1
        if isinstance(peer, Guest | Session):
            self._core.closed(peer, Code.SLOW_CONSUMER)
        self.close(fd)

    def close(self, fd: int) -> None:
        """Close a descriptor and forget all about it."""
        self.fd_states[fd] = None
        self.latency_class[fd] = _UNWATCHED
        self.unsent.pop(fd, None)
        self.largest_packet.pop(fd, None)
        self.unsent_progress.pop(fd, None)
        self.pending_replies.pop(fd, None)
        self.deadlines.cancel(fd)
        self.addresses.release(fd)
        self.counters.connections -= 1
        self.counters.closed += 1
        if (tls := self.tls.pop(fd, None)) is not None:
            self.handshaking.pop(fd, None)
            tls.close_send()
        os.close(fd)  # which also removes it from its epoll set

    def close_all(self) -> None:
        """Close everything, the sets too."""
        for fd, fd_state in enumerate(self.fd_states):
            if fd_state is not None:
                self.close(fd)
        for epoll in self.sets:
            epoll.close()

    def count_by_latency_class(self) -> tuple[int, ...]:
        """Return how many connections each set watches, by pace; O(descriptors)."""
        return tuple(map(self.latency_class.count, LATENCY_CLASSES))

    def watch(self, fd: int, mask: int) -> None:
        """Change what is watched for; a connection that nobody watches yet is attended to from now on."""
        mask = self._mask(fd, mask)
        if self.latency_class[fd] == _UNWATCHED:
            self.sets[IMMEDIATE].register(fd, mask)
            self.latency_class[fd] = IMMEDIATE
        else:
            self.sets[self.latency_class[fd]].modify(fd, mask)

    def _mask(self, fd: int, mask: int) -> int:
        return mask | TLS_READ if mask & READ and fd in self.tls else mask
