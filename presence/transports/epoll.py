"""All plain TCP connections over two epoll sets of their own, in as many tasks for one as for 100,000.

Why not a task per connection: measured at 15,000 connections, such a server costs twice the processor
time per keepalive and ten times the memory. Here a ready batch is read in a plain loop. A connection is
a descriptor and a record, and has a buffer only while a frame is unfinished.

Two sets share the work. In *attentive* are the listeners and everybody who has not logged in: served at
once. In *patient* are the logged-in: after a batch the set rests for the batching window, because waking
up costs more than reading. The descriptor of either is awaited by one trio task; tasks do not grow with
connections.

A set's events are handled to the end without a pause in between; a descriptor that is closed meanwhile has
no occupant any more, and accepts come after the reads. So no event can meet the wrong connection.
"""

import errno
import math
import os
import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
import trio

from presence.clock import Clock
from presence.core import Core
from presence.logs import RateLimited
from presence.registry import Guest, Peer, Session
from presence.transports import tcp
from presence.transports.connections import CHORE_S, READ, WRITE, Closing, Connections, Occupant
from presence.transports.limits import (
    LOGIN_TIMED_OUT,
    READ_BYTES,
    SERVER_ERROR,
    TURN_CONNECTIONS,
    Limits,
    busy,
)
from protocol import KEEPALIVE, Code, keepalive_answer

QUICK_READ_BYTES = 448  # a keepalive and more; such a small object costs no system allocation
ACCEPTS_A_TURN = 256  # a burst is taken in bites, so that reads come in between
ACCEPT_PAUSE_S = 0.25  # without descriptors, accepting rests: the listener would spin
_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


@dataclass(frozen=True, slots=True)
class TransportStatistics:
    """Connections now, and counters since the start."""

    connections: int
    accepted: int
    closed: int
    slow_readers: int
    login_timeouts: int
    failures: int
    accept_errors: int
    unsent_connections: int
    batches: int


class EpollTransport:
    """Plain TCP on the given listeners.

    Args:
        core: what the bytes mean.
        listeners: bound, listening sockets; owned by the transport from now on.
        limits: see `Limits`.
        window_s: seconds that the logged-in connections rest after a batch.
        clock: monotonic time.
    """

    def __init__(
        self, core: Core, listeners: Sequence[socket.socket], limits: Limits, window_s: float, clock: Clock
    ) -> None:
        self._core = core
        self._log = RateLimited(structlog.get_logger("presence.transport"))
        self._limits = limits
        self._window_s = window_s
        self._clock = clock
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._connections = Connections(core, limits, clock)
        self._accepted = self._late = self._failures = self._accept_errors = self._batches = 0
        self._accept_again_at = math.inf
        for fd, listener in self._listeners.items():
            listener.setblocking(False)
            self._connections.attentive.register(fd, READ)

    # Tasks: three, whatever the number of connections

    async def run(self) -> None:
        """Serve until cancelled; then close every descriptor."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve_attentive)
                nursery.start_soon(self._serve_patient)
                nursery.start_soon(self._do_chores)
        finally:
            self.stop_accepting()
            self._connections.close_all()

    async def _serve_attentive(self) -> None:
        epoll = self._connections.attentive
        while True:
            await trio.lowlevel.wait_readable(epoll.fileno())
            events = epoll.poll(0, TURN_CONNECTIONS)
            ready = [event for event in events if event[0] not in self._listeners]
            if ready:
                self._serve(ready)
            if len(ready) < len(events):
                for fd, _ in events:
                    if (listener := self._listeners.get(fd)) is not None:
                        self._accept(listener)
            await trio.lowlevel.checkpoint()

    async def _serve_patient(self) -> None:
        epoll = self._connections.patient
        while True:
            events = epoll.poll(0, TURN_CONNECTIONS)
            if not events:
                await trio.lowlevel.wait_readable(epoll.fileno())
                continue
            self._serve(events)
            if len(events) < TURN_CONNECTIONS and self._window_s:
                await trio.sleep(self._window_s)
            else:
                await trio.lowlevel.checkpoint()

    async def _do_chores(self) -> None:
        """Login time-outs, slow readers, ends of drains, and accepting again after a pause."""
        while True:
            await trio.sleep(CHORE_S)
            if self._clock.now() >= self._accept_again_at:
                self._accept_again_at = math.inf
                for fd in self._listeners:
                    self._connections.attentive.modify(fd, READ)
            while fds := self._connections.take_overdue(TURN_CONNECTIONS):
                for fd in fds:
                    self._time_is_up(fd)
                await trio.lowlevel.checkpoint()

    def stop_accepting(self) -> None:
        """Close the listeners; connections stay."""
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()

    def statistics(self) -> TransportStatistics:
        """Return connections and counters."""
        return TransportStatistics(
            self._connections.open,
            self._accepted,
            self._connections.closed,
            self._connections.cut_offs,
            self._late,
            self._failures,
            self._accept_errors,
            len(self._connections.unsent),
            self._batches,
        )

    # Reading

    def _serve(self, events: list[tuple[int, int]]) -> None:
        """Read every ready connection once. The first lines of the loop are the hot path of the server."""
        peers, read = self._connections.occupants, os.read
        beats: list[Session] = []
        for fd, mask in events:
            peer = peers[fd]
            if mask == READ and isinstance(peer, Session):
                try:
                    data = read(fd, QUICK_READ_BYTES)
                except OSError as error:
                    self._read_failed(fd, peer, error)
                    continue
                if data == KEEPALIVE and peer.partial is None:
                    beats.append(peer)
                elif peer.partial is None and (answer := keepalive_answer(data)):
                    self._connections.send(fd, answer)
                    if peers[fd] is peer:  # not cut off as a slow reader
                        beats.append(peer)
                else:
                    self._take(fd, peer, data)
                    # More may wait, and in this set its turn would only come a window later.
                    if len(data) == QUICK_READ_BYTES and peers[fd] is peer:
                        self._read(fd, peer)
            else:
                self._serve_other(fd, mask, peer)
        self._batches += 1
        self._core.beats(beats)

    def _serve_other(self, fd: int, mask: int, peer: Occupant) -> None:
        """Whatever is not plain input of a logged-in connection."""
        if mask & WRITE:
            self._connections.flush(fd)
            peer = self._connections.occupants[fd]
        if peer is None or not mask & ~WRITE:
            return
        if isinstance(peer, Closing):
            self._connections.drain(fd, peer)
        else:
            self._read(fd, peer)

    def _read(self, fd: int, peer: Peer) -> None:
        try:
            data = os.read(fd, READ_BYTES)
        except OSError as error:
            self._read_failed(fd, peer, error)
            return
        self._take(fd, peer, data)

    def _read_failed(self, fd: int, peer: Peer, error: OSError) -> None:
        if error.errno not in (errno.EAGAIN, errno.EINTR):
            self._lost(fd, peer)

    def _take(self, fd: int, peer: Peer, data: bytes) -> None:
        """Hand bytes to the core. Whatever goes wrong in it concerns this connection only."""
        if not data:
            self._lost(fd, peer)
            return
        try:
            outcome = self._core.received(peer, data)
        except Exception as error:  # reported, and the end of one connection only
            self._note_failure(error)
            self._core.closed(peer, Code.SERVER_ERROR)
            self.hang_up(fd, SERVER_ERROR)
            return
        if outcome.failure is not None:
            self._note_failure(outcome.failure)
        now = outcome.peer
        if isinstance(now, Session) and now is not peer and not self._logged_in(fd, now):
            return
        if outcome.end_code is not None:
            self.hang_up(fd, outcome.reply)
            return
        if outcome.reply:
            self._connections.send(fd, outcome.reply)

    def _logged_in(self, fd: int, session: Session) -> bool:
        """Move a connection to the other set; False: that was impossible, and the connection is closed."""
        try:
            self._connections.log_in(fd, session)
        except OSError as error:  # the user's limit of watches, or no memory
            self._note_failure(error)
            self._core.closed(session, Code.SERVER_ERROR)
            self._connections.close(fd)
            return False
        return True

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        self._log.error("connection_failed", failures=self._failures, exc_info=error)

    def _lost(self, fd: int, peer: Peer) -> None:
        """The client closed its side or reset the connection."""
        self._core.closed(peer)
        if fd in self._connections.unsent:
            self.hang_up(fd, b"")  # it may still read what we owe it
        else:
            self._connections.close(fd)

    # Link: what the core asks for

    def hang_up(self, handle: int, farewell: bytes | bytearray) -> None:
        """See `Link`: send a last packet, then let go of the connection."""
        self._connections.hang_up(handle, farewell)

    def look(self, handle: int) -> bool:
        """See `Link`: read the connection now."""
        peer = self._connections.occupants[handle]
        if isinstance(peer, Session):
            self._read(handle, peer)
        return True

    def unread_s(self, handle: int) -> float:
        """See `Link`: the kernel knows when the last data arrived."""
        with tcp.borrowed(handle) as sock:
            return tcp.unread_s(sock)

    def _time_is_up(self, fd: int) -> None:
        peer = self._connections.occupants[fd]
        if isinstance(peer, Guest):
            self._read(fd, peer)  # after a pause of ours its login may have been waiting
            if self._connections.occupants[fd] is peer:
                self._late += 1
                self._core.note_refusal(Code.LOGIN_TIMEOUT)
                self.hang_up(fd, LOGIN_TIMED_OUT)
        elif isinstance(peer, Session):
            self._connections.cut_off(fd)
        elif peer is not None:
            self._connections.close(fd)

    # Connections

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                accepted, _address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._pause_accepting(listener, error)
                    return
                continue  # the client went away while it was queueing
            fd = accepted.detach()
            os.set_blocking(fd, False)
            try:
                self._connections.attentive.register(fd, READ)
            except OSError as error:  # the user's limit of watches, or no memory
                os.close(fd)
                self._pause_accepting(listener, error)
                return
            self._admit(fd)

    def _admit(self, fd: int) -> None:
        self._accepted += 1
        self._connections.admit(fd, self._core.opened(self, fd))
        if self._connections.open > self._limits.max_connections:
            self._core.note_refusal(Code.BUSY)
            self.hang_up(fd, busy(round(random.uniform(1, 10), 1)))  # noqa: S311 - spreads returns, no secret

    def _pause_accepting(self, listener: socket.socket, error: OSError) -> None:
        self._accept_errors += 1
        self._log.error("accept_failed", error=error.strerror, connections=self._connections)
        self._connections.attentive.modify(listener.fileno(), 0)
        self._accept_again_at = self._clock.now() + ACCEPT_PAUSE_S
