"""All plain TCP connections in one task, over an epoll set of their own.

Why not a task per connection: measured at 15,000 connections, such a server costs twice the processor
time per keepalive and ten times the memory. Here a ready batch is read in a plain loop. A connection is
a descriptor and a record; it has a buffer only while a frame is unfinished, and an entry in `_unsent`
only while its peer is slow.

Two sets share the work. In *attentive* are the listeners and everybody who has not logged in: served at
once. In *patient* are the logged-in: after a batch the set rests for the batching window, because waking
up costs more than reading. The descriptor of either is awaited by one trio task; tasks do not grow with
connections.

A set's events are handled to the end without a pause in between; a descriptor that is closed meanwhile has
None in `_peers`, and accepts come after the reads. So no event can meet the wrong connection.
"""

import errno
import math
import os
import random
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import structlog
import trio

from presence.clock import Clock
from presence.core import Core
from presence.logs import RateLimited
from presence.registry import Guest, Peer, Session
from presence.transports import tcp
from presence.transports.limits import (
    DRAIN_BYTES,
    DRAIN_S,
    LOGIN_TIMED_OUT,
    READ_BYTES,
    SERVER_ERROR,
    TURN_CONNECTIONS,
    Limits,
    busy,
)
from presence.wheel import TimingWheel
from protocol import KEEPALIVE, Code, keepalive_answer

QUICK_READ_BYTES = 448  # a keepalive and more; such a small object costs no system allocation
ACCEPTS_A_TURN = 256  # a burst is taken in bites, so that reads come in between
ACCEPT_PAUSE_S = 0.25  # without descriptors, accepting rests: the listener would spin
CHORE_S = 0.1  # resolution of login, drain and slow-reader deadlines

_READ, _WRITE = 0x001, 0x004  # EPOLLIN, EPOLLOUT of linux/eventpoll.h; a system without epoll can import this
_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class _Closing:
    """A connection that was hung up: the farewell leaves, the rest of the input is read and dropped."""

    __slots__ = ("drained", "epoll", "shut")

    def __init__(self, epoll: "select.epoll") -> None:
        self.epoll = epoll
        self.drained = 0
        self.shut = False


_Occupant: TypeAlias = Peer | _Closing | None


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
        self._attentive = select.epoll()
        self._patient = select.epoll()
        self._peers: list[_Occupant] = []
        self._unsent: dict[int, bytearray] = {}
        self._deadlines: TimingWheel[int] = TimingWheel(256, self._chore_tick())
        self._connections = 0
        self._accepted = self._closed = self._slow = self._late = self._failures = self._accept_errors = 0
        self._batches = 0
        self._accept_again_at = math.inf
        for fd, listener in self._listeners.items():
            listener.setblocking(False)
            self._attentive.register(fd, _READ)

    # Tasks: three, whatever the number of connections

    async def run(self) -> None:
        """Serve until cancelled; then close every descriptor."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve_attentive)
                nursery.start_soon(self._serve_patient)
                nursery.start_soon(self._do_chores)
        finally:
            self._close_all()

    async def _serve_attentive(self) -> None:
        epoll = self._attentive
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
        epoll = self._patient
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
                    self._attentive.modify(fd, _READ)
            while fds := self._deadlines.expire(self._chore_tick(), TURN_CONNECTIONS):
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
            self._connections,
            self._accepted,
            self._closed,
            self._slow,
            self._late,
            self._failures,
            self._accept_errors,
            len(self._unsent),
            self._batches,
        )

    # Reading

    def _serve(self, events: list[tuple[int, int]]) -> None:
        """Read every ready connection once. The first lines of the loop are the hot path of the server."""
        peers, read = self._peers, os.read
        beats: list[Session] = []
        for fd, mask in events:
            peer = peers[fd]
            if mask == _READ and isinstance(peer, Session):
                try:
                    data = read(fd, QUICK_READ_BYTES)
                except OSError as error:
                    self._read_failed(fd, peer, error)
                    continue
                if data == KEEPALIVE and peer.partial is None:
                    beats.append(peer)
                elif peer.partial is None and (answer := keepalive_answer(data)):
                    self._send(fd, answer)
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

    def _serve_other(self, fd: int, mask: int, peer: _Occupant) -> None:
        """Whatever is not plain input of a logged-in connection."""
        if mask & _WRITE:
            self._flush(fd)
            peer = self._peers[fd]
        if peer is None or not mask & ~_WRITE:
            return
        if isinstance(peer, _Closing):
            self._drain(fd, peer)
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
            self._hang_up(fd, SERVER_ERROR)
            return
        if outcome.failure is not None:
            self._note_failure(outcome.failure)
        if outcome.peer is not peer and not self._logged_in(fd, outcome.peer):
            return
        if outcome.end_code is not None:
            self._hang_up(fd, outcome.reply)
            return
        if outcome.reply:
            self._send(fd, outcome.reply)

    def _logged_in(self, fd: int, session: Peer) -> bool:
        """Move a connection to the other set; False: that was impossible, and the connection is closed."""
        self._peers[fd] = session
        self._deadlines.forget(fd)
        self._attentive.unregister(fd)
        try:
            self._patient.register(fd, _READ)
        except OSError as error:  # the user's limit of watches, or no memory
            self._note_failure(error)
            self._core.closed(session, Code.SERVER_ERROR)
            self._close(fd)
            return False
        return True

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        self._log.error("connection_failed", failures=self._failures, exc_info=error)

    def _lost(self, fd: int, peer: Peer) -> None:
        """The client closed its side or reset the connection."""
        self._core.closed(peer)
        if fd in self._unsent:
            self._hang_up(fd, b"")  # it may still read what we owe it
        else:
            self._close(fd)

    # Link: what the core asks for

    def hang_up(self, handle: int, farewell: bytes) -> None:
        """See `Link`: the core lets go of a connection."""
        self._hang_up(handle, farewell)

    def look(self, handle: int) -> bool:
        """See `Link`: read the connection now."""
        peer = self._peers[handle]
        if isinstance(peer, Session):
            self._read(handle, peer)
        return True

    def unread_s(self, handle: int) -> float:
        """See `Link`: the kernel knows when the last data arrived."""
        with tcp.borrowed(handle) as sock:
            return tcp.unread_s(sock)

    # Sending

    def _send(self, fd: int, data: bytes | bytearray) -> None:
        """Send, or keep what the kernel does not take; a reader too slow for its bound is cut off."""
        waiting = self._unsent.get(fd)
        if waiting is not None:
            waiting += data
        else:
            try:
                sent = os.write(fd, data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the connection is gone; its next read says so
            if sent == len(data):
                return
            waiting = self._unsent[fd] = bytearray(data[sent:])
            self._watch(fd, _READ | _WRITE)
            if not isinstance(self._peers[fd], Guest):
                self._set_deadline(fd, self._limits.unsent_timeout)
        if len(waiting) > self._limits.unsent_bytes:
            self._cut_off(fd)

    def _flush(self, fd: int) -> None:
        waiting = self._unsent.get(fd)
        if waiting is None:
            return
        try:
            del waiting[: os.write(fd, waiting)]
        except BlockingIOError:
            return
        except OSError:
            waiting.clear()
        if waiting:
            return
        del self._unsent[fd]
        peer = self._peers[fd]
        self._watch(fd, _READ)
        if isinstance(peer, _Closing):
            self._shut(fd, peer)
        elif isinstance(peer, Session):
            self._deadlines.forget(fd)

    def _hang_up(self, fd: int, farewell: bytes | bytearray) -> None:
        """Send a last packet; then half-close, drain, close."""
        if isinstance(self._peers[fd], _Closing):
            return
        closing = _Closing(self._epoll_of(fd))
        if farewell:
            self._send(fd, farewell)
        if self._peers[fd] is None:
            return  # cut off: too much was waiting already
        self._peers[fd] = closing
        if fd in self._unsent:
            self._set_deadline(fd, self._limits.unsent_timeout)
        else:
            self._shut(fd, closing)

    def _shut(self, fd: int, closing: _Closing) -> None:
        closing.shut = True
        self._set_deadline(fd, DRAIN_S)
        with suppress(OSError), tcp.borrowed(fd) as sock:
            sock.shutdown(socket.SHUT_WR)

    def _drain(self, fd: int, closing: _Closing) -> None:
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        closing.drained += len(data)
        if not data and not closing.shut:
            self._watch(fd, _WRITE)  # it will say no more, and still reads
        elif not data or closing.drained > DRAIN_BYTES:
            self._close(fd)

    def _cut_off(self, fd: int) -> None:
        """A slow reader: what waits for it is dropped with the connection."""
        peer = self._peers[fd]
        self._slow += 1
        if isinstance(peer, Guest | Session):
            self._core.closed(peer, Code.SLOW_CONSUMER)
        self._close(fd)

    def _time_is_up(self, fd: int) -> None:
        peer = self._peers[fd]
        if isinstance(peer, Guest):
            self._read(fd, peer)  # after a pause of ours its login may have been waiting
            if self._peers[fd] is peer:
                self._late += 1
                self._core.note_refusal(Code.LOGIN_TIMEOUT)
                self._hang_up(fd, LOGIN_TIMED_OUT)
        elif isinstance(peer, Session):
            self._cut_off(fd)
        elif peer is not None:
            self._close(fd)

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
                self._attentive.register(fd, _READ)
            except OSError as error:  # the user's limit of watches, or no memory
                os.close(fd)
                self._pause_accepting(listener, error)
                return
            self._admit(fd)

    def _admit(self, fd: int) -> None:
        self._accepted += 1
        self._connections += 1
        if fd >= len(self._peers):
            self._peers.extend([None] * (fd + 1 - len(self._peers)))
        self._peers[fd] = self._core.opened(self, fd)
        if self._connections > self._limits.max_connections:
            self._core.note_refusal(Code.BUSY)
            self._hang_up(fd, busy(round(random.uniform(1, 10), 1)))  # noqa: S311 - spreads returns, no secret
        else:
            self._set_deadline(fd, self._limits.login_timeout)

    def _pause_accepting(self, listener: socket.socket, error: OSError) -> None:
        self._accept_errors += 1
        self._log.error("accept_failed", error=error.strerror, connections=self._connections)
        self._attentive.modify(listener.fileno(), 0)
        self._accept_again_at = self._clock.now() + ACCEPT_PAUSE_S

    def _close(self, fd: int) -> None:
        self._peers[fd] = None
        self._unsent.pop(fd, None)
        self._deadlines.forget(fd)
        self._connections -= 1
        self._closed += 1
        os.close(fd)  # which also removes it from its epoll set

    def _close_all(self) -> None:
        self.stop_accepting()
        for fd, peer in enumerate(self._peers):
            if peer is not None:
                self._close(fd)
        self._attentive.close()
        self._patient.close()

    def _epoll_of(self, fd: int) -> "select.epoll":
        peer = self._peers[fd]
        if isinstance(peer, _Closing):
            return peer.epoll
        return self._patient if isinstance(peer, Session) else self._attentive

    def _watch(self, fd: int, mask: int) -> None:
        self._epoll_of(fd).modify(fd, mask)

    def _chore_tick(self) -> int:
        return int(self._clock.now() / CHORE_S)

    def _set_deadline(self, fd: int, seconds: float) -> None:
        self._deadlines.touch(fd, int((self._clock.now() + seconds) / CHORE_S) + 1)
