"""Reading: what a ready connection sent, handed to the core, and what follows from it.

`Reading.serve` is the hot path of the server: a keepalive costs one read, two comparisons and its place in
the batch's list. Everything else that a connection may send goes by way of `Engine.received`.
"""

import errno
import math
import os
import ssl
from time import perf_counter

import structlog
import trio

from presence.common.logs import RateLimited
from presence.core.engine import Engine
from presence.core.registry import Peer, Session
from presence.protocol import KEEPALIVE, Code, keepalive_answer
from presence.transports.connections import (
    ATTENTIVE,
    CALM_BEATS,
    PATIENT,
    PROMPT,
    READ,
    SECURED,
    WRITE,
    Closing,
    Connections,
)
from presence.transports.limits import (
    GUEST_READ_BYTES,
    LOOK_READS,
    PACKETS_A_SLICE,
    READ_BYTES,
    TURN_S,
)

QUICK_READ_BYTES = 64  # any keepalive; such a small object costs no system allocation


class Reading:
    """Reads the connections of one transport.

    Args:
        core: what the bytes mean.
        connections: whose they are.

    Attributes:
        surprised: whether someone in the patient set wanted an answer; whoever minds sets it back.
    """

    def __init__(self, core: Engine, connections: Connections) -> None:
        self._core = core
        self._connections = connections
        self._log = RateLimited(structlog.get_logger("presence.transport"))
        self._unfinished: dict[int, Peer] = {}  # by descriptor: packets were read and wait, in this order
        self._has_unfinished = trio.Event()
        self.surprised = False

    def serve(self, events: list[tuple[int, int]], pace: int) -> bool:
        """Read ready connections once each. The first lines of the loop are the hot path of the server.

        Returns:
            Whether all were read; else the time for a turn was up, and epoll tells of the others again.
        """
        until = perf_counter() + TURN_S
        connections, read = self._connections, os.read
        peers, send, wires = connections.occupants, connections.send, connections.wires
        plain: list[Session] = []
        asking: list[Session] = []
        fd = -1
        try:
            for fd, mask in events:
                peer = peers[fd]
                known = mask == READ or mask == SECURED  # noqa: PLR1714 - a tuple would cost more
                if known and isinstance(peer, Session) and peer.partial is None:
                    try:
                        data = read(fd, QUICK_READ_BYTES) if mask == READ else wires[fd].read(READ_BYTES)
                    except OSError as error:
                        self._read_failed(fd, peer, error)
                        continue
                    if data == KEEPALIVE:
                        plain.append(peer)
                        continue
                    if answer := keepalive_answer(data):
                        send(fd, answer)
                        if peers[fd] is peer:  # not cut off as a slow reader
                            asking.append(peer)
                        continue
                    # More may wait, and in this set its turn would only come a window later.
                    if mask == READ and len(data) == QUICK_READ_BYTES:
                        data += _rest(fd)
                    self._take(fd, peer, data)
                else:
                    self.serve_other(fd, mask)
                if perf_counter() > until:
                    break
            else:
                until = math.inf
        except Exception as error:  # what is ready behind this connection is so in the next turn, too
            self.failed(fd, error)
        if connections.owed:
            connections.pay()
        connections.counted.batches += 1
        self._count(pace, plain, asking)
        return until == math.inf

    async def finish(self) -> None:
        """Handle packets that were read and had to wait, a few of each connection in its turn, for ever."""
        while True:
            if not self._unfinished:
                self._has_unfinished = trio.Event()
                await self._has_unfinished.wait()
            until = perf_counter() + TURN_S
            while self._unfinished and perf_counter() < until:
                fd = next(iter(self._unfinished))
                try:
                    self._go_on(fd)
                except Exception as error:
                    self.failed(fd, error)
            self._connections.pay()
            await trio.lowlevel.checkpoint()

    def _go_on(self, fd: int) -> None:
        """Handle some of the packets of a connection that wait."""
        peer = self._unfinished.pop(fd)
        if self._connections.occupants[fd] is peer:
            self._handle(fd, peer, b"")

    def look(self, fd: int, peer: Session) -> None:
        """Read a connection before its session ends; one complete packet among what has arrived saves it."""
        for _ in range(LOOK_READS if fd in self._connections.wires else 1):
            if fd not in self._unfinished and not self.read(fd, peer):
                break
            if fd in self._unfinished:
                self._go_on(fd)
            if peer.partial is None or fd in self._unfinished:
                break
        self._connections.pay()

    def _count(self, pace: int, plain: list[Session], asking: list[Session]) -> None:
        """Have the keepalives of a batch counted, with the time after all of it was read."""
        self._core.beats(plain)
        if asking:
            self._core.beats(asking)
        if asking or pace != PATIENT:
            self._adapt(pace, plain, asking)

    def _adapt(self, pace: int, plain: list[Session], asking: list[Session]) -> None:
        """Let connections be watched with the patience that their keepalives allow."""
        connections = self._connections
        if pace == PATIENT:
            self.surprised = True
            for session in asking:
                self._move(session, PROMPT)
            return
        calm = connections.calm
        if pace == PROMPT:
            for session in asking:
                if session.link is not None:
                    calm[session.handle] = 0
        for session in plain if pace == PROMPT else plain + asking:
            if session.link is None:
                continue
            fd = session.handle
            calm[fd] += 1
            if calm[fd] >= CALM_BEATS:
                self._move(session, pace + 1)

    def _move(self, session: Session, pace: int) -> None:
        if session.link is None:
            return
        fd = session.handle
        try:
            self._connections.move(fd, pace)
        except OSError as error:  # the user's limit of watches, or no memory
            self._give_up(fd, session, error)

    def serve_other(self, fd: int, mask: int) -> None:
        """Whatever is not plain input of a logged-in connection."""
        if mask & WRITE:
            self._connections.flush(fd)
        peer = self._connections.occupants[fd]
        if peer is None or not mask & ~WRITE:
            return
        if isinstance(peer, Closing):
            self._connections.drain(fd, peer)
        else:
            self.read(fd, peer)

    def read(self, fd: int, peer: Peer) -> bool:
        """Read a connection once, ready or not; answers are owed until `Connections.pay`.

        One whose packets still wait is not read: the kernel keeps what comes, and makes its sender wait.

        Returns:
            Whether anything was read, and the connection is still there.
        """
        if fd in self._unfinished:
            return False
        wire = self._connections.wires.get(fd)
        limit = READ_BYTES if isinstance(peer, Session) else GUEST_READ_BYTES
        try:
            data = wire.read(limit) if wire is not None else os.read(fd, limit)
        except OSError as error:
            self._read_failed(fd, peer, error)
            return False
        self._take(fd, peer, data)
        return self._connections.occupants[fd] is peer

    def _read_failed(self, fd: int, peer: Peer, error: OSError) -> None:
        if isinstance(error, ssl.SSLWantWriteError):
            self._connections.watch(fd, WRITE)
        elif error.errno not in (errno.EAGAIN, errno.EINTR):
            self._lost(fd, peer)

    def _take(self, fd: int, peer: Peer, data: bytes) -> None:
        if not data:
            self._lost(fd, peer)
        elif len(data) < QUICK_READ_BYTES or not isinstance(peer, Session):
            self._handle(fd, peer, data)
        else:
            peer.partial = peer.partial + data if peer.partial else data
            self._let_wait(fd, peer)

    def _handle(self, fd: int, peer: Peer, data: bytes) -> None:
        """Hand bytes to the core."""
        outcome = self._core.received(peer, data, PACKETS_A_SLICE)
        if outcome.failure is not None:
            self._note_failure(outcome.failure)
        now = outcome.peer
        if isinstance(now, Session) and now is not peer and not self._logged_in(fd, now):
            return
        if outcome.end_code is not None:
            self._connections.hang_up(fd, outcome.reply)
        elif outcome.reply or outcome.requests:
            if outcome.reply:
                self._connections.owe(fd, outcome.reply)
            if now is peer and isinstance(now, Session) and (pace := self._connections.pace[fd]) != ATTENTIVE:
                self.surprised |= pace == PATIENT
                self._move(now, ATTENTIVE)
        if outcome.requests and (failure := self._core.attend(outcome)) is not None:
            self._note_failure(failure)
        if outcome.unfinished and self._connections.occupants[fd] is now:
            self._let_wait(fd, now)

    def _let_wait(self, fd: int, peer: Peer) -> None:
        """Have packets that were read handled later, after those that wait already."""
        self._unfinished[fd] = peer
        self._has_unfinished.set()

    def _logged_in(self, fd: int, session: Session) -> bool:
        """Let a connection be watched as one that has logged in; False: impossible, and it is closed."""
        try:
            self._connections.log_in(fd, session)
        except OSError as error:  # the user's limit of watches, or no memory
            self._give_up(fd, session, error)
            return False
        return True

    def _give_up(self, fd: int, session: Session, error: Exception) -> None:
        self._note_failure(error)
        self._core.closed(session, Code.SERVER_ERROR)
        self._connections.close(fd)

    def failed(self, fd: int, error: Exception) -> None:
        """End a connection over a mistake of this server."""
        self._note_failure(error)
        peer = self._connections.occupants[fd]
        if isinstance(peer, Session):
            self._core.closed(peer, Code.SERVER_ERROR)
        if peer is not None:
            self._connections.close(fd)

    def _note_failure(self, error: Exception) -> None:
        counted = self._connections.counted
        counted.failures += 1
        self._log.error("connection failed", failures=counted.failures, exc_info=error)

    def _lost(self, fd: int, peer: Peer) -> None:
        """The client closed its side or reset the connection."""
        self._core.closed(peer)
        if fd in self._connections.unsent or fd in self._connections.owed:
            self._connections.hang_up(fd, b"")  # it may still read what we owe it
        else:
            self._connections.close(fd)


def _rest(fd: int) -> bytes:
    """Read what waits behind the first bytes, as far as it completes any packet; errors and ends are left."""
    try:
        return os.read(fd, READ_BYTES - QUICK_READ_BYTES)
    except OSError:
        return b""
