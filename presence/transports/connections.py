"""The descriptors of the epoll transport: whose each is, what waits to be sent, when its time is up.

Beside `reading.py`: here is everything that a connection goes through besides being read.
A connection has an entry in `unsent` only while its peer is slow. Hung up, it is *closing*: its farewell
leaves, its sending side is shut, its input is read and dropped for a bounded time, and it is closed.

Each connection is watched by one of three epoll sets; which one is its *pace*. What it sends moves it: into a
quicker set at once, into a more patient one after `CALM_BEATS` keepalives in a row that the more patient set
would have served as well. Pace and count are a byte each, by descriptor.

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
    DRAIN_BYTES,
    DRAIN_S,
    PACKET_MAX_BYTES,
    PROGRESS_BYTES,
    READ_BYTES,
    Limits,
    TransportStatistics,
)
from presence.transports.tls_connection import TlsConnectionState

ATTENTIVE = 0  # not logged in, or lately sent more than keepalives: served at once
PROMPT = 1  # keepalives that want an answer: gathered for a time that nobody notices
PATIENT = 2  # keepalives that want none: gathered for longer
PACES = (ATTENTIVE, PROMPT, PATIENT)
SHAKING = 3  # TLS, and the handshake is not over: see `handshakes.py`
_UNWATCHED = 4
CHORE_S = 0.1  # resolution of deadlines
CALM_BEATS = 12  # two minutes as a rule; a client that asks with every third beat stays where it is

READ, WRITE = 0x001, 0x004  # EPOLLIN, EPOLLOUT of linux/eventpoll.h; a system without epoll can import this
SECURED = READ | 0x040  # EPOLLRDNORM: the kernel's `tcp_poll` sets both or none


class Closing:
    """A connection that was hung up.

    Attributes:
        farewell: what is to be said before the sending side is shut; None once it was.
        drained: bytes that were read since, and dropped.
        shut: whether the sending side is.
    """

    __slots__ = ("drained", "farewell", "shut")

    def __init__(self, farewell: bytes | bytearray) -> None:
        self.farewell: bytes | bytearray | None = farewell
        self.drained = 0
        self.shut = False


Occupant: TypeAlias = Peer | Closing | None


class Addresses:
    """By which address each connection counts: kept only where the kernel could not say it, or it is counted.

    Args:
        admission: counts connections by address, if it bounds them.

    Attributes:
        told: addresses that were told or counted; one that is not here is the kernel's.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.told: dict[int, str] = {}

    def settle(self, fd: int, address: str, *, told: bool = False) -> Refusal | None:
        """It is known who is at the other end.

        Args:
            fd: the connection.
            address: of the client; "" if it has none, which nobody counts.
            told: whether somebody else than the kernel says so.

        Returns:
            None, or what the client is to be told: its address has as many connections as it may have.
        """
        counted = self._admission.counts_connections
        if not address or not (told or counted):
            return None
        client = networks.limit_key(address)
        if counted and (refusal := self._admission.add_connection(client)) is not None:
            return refusal
        self.told[fd] = client
        return None

    def of(self, fd: int) -> str:
        """Return what limits count a connection by, see `networks.limit_key`; "": nothing."""
        if (address := self.told.get(fd)) is not None:
            return address
        with sockets.borrowed(fd) as sock:
            return networks.limit_key(sockets.peer_address(sock))

    def forget(self, fd: int) -> None:
        """The connection is closed."""
        if (address := self.told.pop(fd, None)) is not None and self._admission.counts_connections:
            self._admission.remove_connection(address)


class Deadlines:
    """When the time of descriptors is up; at most one deadline for each. Nothing to do wakes nobody.

    Args:
        clock: monotonic time.

    Attributes:
        came: set when a deadline is; `wait` renews it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wheel: TimingWheel[int] = TimingWheel(256, self._tick())
        self.came = trio.Event()

    def __len__(self) -> int:
        return len(self._wheel)

    def set(self, fd: int, seconds: float) -> None:
        """Set the moment when a descriptor's time is up, in place of an earlier one."""
        if not self._wheel:  # nobody has driven the wheel meanwhile
            self._wheel.pop_due(self._tick(), 0)
        self._wheel.touch(fd, int((self._clock.now() + seconds) / CHORE_S) + 1)
        self.came.set()

    def forget(self, fd: int) -> None:
        """Give a descriptor all the time that it wants."""
        self._wheel.discard(fd)

    def take_overdue(self, limit: int) -> list[int]:
        """Return descriptors whose time is up, at most `limit`; the deadline is then forgotten."""
        return self._wheel.pop_due(self._tick(), limit)

    async def wait(self) -> None:
        """Return when somebody's time may be up."""
        if not self._wheel:
            self.came = trio.Event()
            await self.came.wait()
        await trio.sleep(CHORE_S)

    def _tick(self) -> int:
        return int(self._clock.now() / CHORE_S)


class Connections:
    """All connections of one transport, by descriptor.

    Args:
        engine: told of connections that are cut off.
        limits: see `Limits`.
        clock: monotonic time.
        admission: counts connections by address, if it bounds them.

    Attributes:
        sets: the epoll sets, by pace.
        occupants: by descriptor.
        pace: which set watches a descriptor.
        calm: how many keepalives in a row have asked for no more than a more patient set gives.
        unsent: what waits for slow readers.
        largest: of these, the size of the largest packet that may be as large as a frame.
        taken: bytes that slow readers have taken since their time began.
        owed: answers that are sent when the batch has been read.
        wires: of TLS connections, from the accept on.
        shaking: those whose handshake has begun and was never over, the oldest first.
        deadlines: when a descriptor's time is up.
        addresses: by which each counts.
        counted: what this transport counts.
    """

    def __init__(self, engine: Engine, limits: Limits, clock: Clock, admission: Admission) -> None:
        self._engine = engine
        self._limits = limits
        self.sets = [select.epoll() for _ in (*PACES, SHAKING)]
        self.occupants: list[Occupant] = []
        self.pace = bytearray()
        self.calm = bytearray()
        self.unsent: dict[int, bytearray] = {}
        self.largest: dict[int, int] = {}
        self.taken: dict[int, int] = {}
        self.owed: dict[int, bytearray] = {}
        self.wires: dict[int, TlsConnectionState] = {}
        self.shaking: OrderedDict[int, None] = OrderedDict()  # a plain one grows slow at its front
        self.deadlines = Deadlines(clock)
        self.addresses = Addresses(admission)
        self.counted = TransportStatistics()

    def enter(self, fd: int, guest: Guest, *, secured: bool = False) -> None:
        """Take in a descriptor that nobody watches yet; its login is due, and before it its handshake."""
        if (missing := fd + 1 - len(self.occupants)) > 0:
            self.occupants.extend([None] * missing)
            self.pace.extend(bytes([_UNWATCHED]) * missing)
            self.calm.extend(bytes(missing))
        self.occupants[fd] = guest
        if secured:
            self.wires[fd] = TlsConnectionState(fd)
        self.counted.connections += 1
        self.deadlines.set(fd, self._limits.login_timeout)

    def await_login(self, fd: int) -> None:
        """Watch a new connection, if its first read has not settled everything.

        Raises:
            OSError: the user's limit of watches is reached, or there is no memory.
        """
        if self.occupants[fd] is None:
            return
        if self.pace[fd] == _UNWATCHED:
            self.watch(fd, READ)
        elif self.pace[fd] == SHAKING:
            self.move(fd, ATTENTIVE)

    def await_handshake(self, fd: int) -> None:
        """Watch a new TLS connection.

        Raises:
            OSError: as in `await_login`.
        """
        if self.pace[fd] == _UNWATCHED and isinstance(self.occupants[fd], Guest):
            self.move(fd, SHAKING)

    def is_mute(self, fd: int) -> bool:
        """Return whether nothing can be said to a connection, for its handshake is not over."""
        wire = self.wires.get(fd)
        return wire is not None and not wire.ready

    def log_in(self, fd: int, session: Session) -> None:
        """Move a connection to the patient set.

        Raises:
            OSError: the user's limit of watches is reached, or there is no memory; nobody watches it now.
        """
        self.occupants[fd] = session
        self.deadlines.forget(fd)
        self.move(fd, PATIENT)

    def move(self, fd: int, pace: int) -> None:
        """Let the set of `pace` watch a connection.

        Raises:
            OSError: as in `log_in`.
        """
        if self.pace[fd] != _UNWATCHED:
            self.sets[self.pace[fd]].unregister(fd)
            self.pace[fd] = _UNWATCHED
        self.sets[pace].register(fd, self._mask(fd, READ | WRITE if fd in self.unsent else READ))
        self.pace[fd] = pace
        self.calm[fd] = 0

    def owe(self, fd: int, data: bytearray) -> None:
        """Send with the next `pay`."""
        owed = self.owed.get(fd)
        if owed is None:
            self.owed[fd] = data
        else:
            owed += data

    def pay(self) -> None:
        """Send what is owed, in one go: a client that waits is woken by the first answer, and then awake.

        Each answer by itself would wake it anew, which costs the sender as much as all else about a login.
        """
        owed, self.owed = self.owed, {}
        for fd, data in owed.items():
            if self.occupants[fd] is not None:
                self.send(fd, data)

    def deliver(self, fd: int, packet: bytes) -> None:
        """Send one packet after all that is owed. However large it is, it is no sign of a slow reader."""
        if fd in self.owed:
            self.send(fd, self.owed.pop(fd))
            if not isinstance(self.occupants[fd], Session):
                return  # cut off
        self.largest[fd] = max(min(len(packet), PACKET_MAX_BYTES), self.largest.get(fd, 0))
        self.send(fd, packet)
        if fd not in self.unsent:
            self.largest.pop(fd, None)

    def send(self, fd: int, data: bytes | bytearray) -> None:
        """Send, or keep what the kernel does not take; a reader too slow for its bound is cut off."""
        waiting = self.unsent.get(fd)
        if waiting is not None:
            waiting += data
        else:
            wire = self.wires.get(fd)
            try:
                sent = os.write(fd, data) if wire is None else wire.write(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the connection is gone; its next read says so
            if sent == len(data):
                return
            waiting = self.unsent[fd] = bytearray(data[sent:])
            self.watch(fd, READ | WRITE)
            if not isinstance(self.occupants[fd], Guest):
                self.deadlines.set(fd, self._limits.unsent_timeout)
        if len(waiting) > self._limits.unsent_bytes + self.largest.get(fd, 0):
            self.cut_off(fd)

    def flush(self, fd: int) -> None:
        """The kernel takes more."""
        waiting, wire = self.unsent.get(fd), self.wires.get(fd)
        if waiting is None:
            if wire is not None:  # a read waited for it
                self.watch(fd, READ)
            return
        try:
            taken = os.write(fd, waiting) if wire is None else wire.write(waiting)
            del waiting[:taken]
            self.taken[fd] = self.taken.get(fd, 0) + taken
        except BlockingIOError:
            return
        except OSError:
            waiting.clear()
        if waiting:
            return
        del self.unsent[fd]
        self.largest.pop(fd, None)
        self.taken.pop(fd, None)
        peer = self.occupants[fd]
        self.watch(fd, READ)
        if isinstance(peer, Closing) and peer.farewell is not None:
            self.part(fd)
        elif isinstance(peer, Closing):
            self._shut(fd, peer)
        elif isinstance(peer, Session):
            self.deadlines.forget(fd)
            self._engine.drained(peer)

    def hang_up(self, fd: int, farewell: bytes | bytearray) -> None:
        """Send a last packet; then half-close, drain, close."""
        if self.begin_parting(fd, farewell):
            self.part(fd)

    def begin_parting(self, fd: int, farewell: bytes | bytearray) -> bool:
        """Listen no more to a connection; True: `part` is to follow, soon."""
        if isinstance(self.occupants[fd], Closing):
            return False
        self.occupants[fd] = Closing(self.owed.pop(fd, b"") + farewell)
        return True

    def part(self, fd: int) -> None:
        """Send the farewell of a connection whose parting began, and half-close it."""
        closing = self.occupants[fd]
        if not isinstance(closing, Closing) or closing.farewell is None:
            return
        farewell, closing.farewell = closing.farewell, None
        if farewell and not self.is_mute(fd):
            self.send(fd, farewell)
        if self.occupants[fd] is not closing:
            return  # cut off: too much was waiting already
        if fd in self.unsent:
            self.deadlines.set(fd, self._limits.unsent_timeout)
        else:
            self._shut(fd, closing)

    def _shut(self, fd: int, closing: Closing) -> None:
        closing.shut = True
        self.deadlines.set(fd, DRAIN_S)
        if fd in self.wires:
            self.wires[fd].shut()
        with suppress(OSError), sockets.borrowed(fd) as sock:
            sock.shutdown(socket.SHUT_WR)

    def drain(self, fd: int, closing: Closing) -> None:
        """Read and drop what still comes; close when it ends or is too much."""
        self.part(fd)
        if self.occupants[fd] is not closing:
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
        elif not data or closing.drained > DRAIN_BYTES:
            self.close(fd)

    def lose_patience(self, fd: int) -> None:
        """A session's time to take what waits is over; who has taken a good part of it has as long again."""
        if self.taken.pop(fd, 0) >= PROGRESS_BYTES:
            self.deadlines.set(fd, self._limits.unsent_timeout)
        else:
            self.cut_off(fd)

    def cut_off(self, fd: int) -> None:
        """A slow reader: what waits for it is dropped with the connection."""
        peer = self.occupants[fd]
        self.counted.slow_readers += 1
        if isinstance(peer, Guest | Session):
            self._engine.closed(peer, Code.SLOW_CONSUMER)
        self.close(fd)

    def close(self, fd: int) -> None:
        """Close a descriptor and forget all about it."""
        self.occupants[fd] = None
        self.pace[fd] = _UNWATCHED
        self.unsent.pop(fd, None)
        self.largest.pop(fd, None)
        self.taken.pop(fd, None)
        self.owed.pop(fd, None)
        self.deadlines.forget(fd)
        self.addresses.forget(fd)
        self.counted.connections -= 1
        self.counted.closed += 1
        if (wire := self.wires.pop(fd, None)) is not None:
            self.shaking.pop(fd, None)
            wire.shut()
        os.close(fd)  # which also removes it from its epoll set

    def close_all(self) -> None:
        """Close everything, the sets too."""
        for fd, occupant in enumerate(self.occupants):
            if occupant is not None:
                self.close(fd)
        for epoll in self.sets:
            epoll.close()

    def watched_by(self) -> tuple[int, ...]:
        """Return how many connections each set watches, by pace; O(descriptors)."""
        return tuple(map(self.pace.count, PACES))

    def watch(self, fd: int, mask: int) -> None:
        """Change what is watched for; a connection that nobody watches yet is attended to from now on."""
        mask = self._mask(fd, mask)
        if self.pace[fd] == _UNWATCHED:
            self.sets[ATTENTIVE].register(fd, mask)
            self.pace[fd] = ATTENTIVE
        else:
            self.sets[self.pace[fd]].modify(fd, mask)

    def _mask(self, fd: int, mask: int) -> int:
        return mask | SECURED if mask & READ and fd in self.wires else mask
