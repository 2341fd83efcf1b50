"""Accepting connections: out of the kernel's queue, and from there into the hands of `guests.py`.

The kernel's queue is short (`net.core.somaxconn`), and a connection that it drops is retried a second later.
So connections are taken out of it quickly and wait here to be admitted, which costs more because their login
has usually arrived. Both happen in slices, between which other connections are read. At most `MAX_UNADMITTED`
connections wait here; beyond that, new ones are refused. A refused connection keeps its descriptor for up to
a second, so if there are too many, further ones stay in the kernel's queue.

Tests: `tests/transports/test_epoll_transport.py`, `tests/transports/test_limits.py`.
"""

import errno
import math
import os
import socket
from collections import deque
from collections.abc import Mapping
from itertools import islice, repeat
from time import perf_counter

import trio

from presence.common.clock import Clock
from presence.common.rate_limit import RETRY_MIN_S, spread
from presence.core.admission import FULL_RETRY_S, Admission
from presence.transports import sockets
from presence.transports.accept_rotation import AcceptRotation
from presence.transports.connection_states import Connection
from presence.transports.connections import Connections, ListenerKind
from presence.transports.guests import Guests
from presence.transports.limits import TURN_BUDGET_S
from presence.transports.reader import ConnectionReader

MAX_ACCEPTS_PER_TURN = 256  # from the kernel's queue: a few milliseconds
MAX_UNADMITTED = 20_000  # an acceptable burst, about a second of work; beyond it the refusal is "busy"
# While connections come faster than one per `BUSY_GAP_S`, over the last `RECENT` of them, a rest after each
# wake-up gathers some: a wake-up costs as much as a login.
RECENT = 16
BUSY_GAP_S = 0.0015
REST_CONNECTIONS = 4  # that a rest gathers
REST_S = 0.004  # the longest; the system's timers round it up to milliseconds
ACCEPT_PAUSE_S = 0.25  # without descriptors accepting pauses, because the listener would spin
_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Acceptor:
    """Accepts connections.

    Args:
        connections: where they are counted.
        guests: takes them from the accept to the login.
        reader: handles errors of one connection.
        listeners: bound, listening sockets, with what their connections begin with; owned by the acceptor
            from now on.
        admission: decides which connections are accepted.
        clock: monotonic time.
        rotation: of the workers that share the listeners' port; None: there are no others.

    Attributes:
        admits_since: while connections are admitted, a time before which none of them was there.
    """

    def __init__(
        self,
        connections: Connections,
        guests: Guests,
        reader: ConnectionReader,
        listeners: Mapping[socket.socket, ListenerKind],
        *,
        admission: Admission,
        clock: Clock,
        rotation: AcceptRotation | None = None,
    ) -> None:
        self._connections = connections
        self._guests = guests
        self._reader = reader
        self._admission = admission
        self._clock = clock
        self._rotation = rotation
        self._kinds = listeners
        self._listeners = list(listeners)
        for listener in self._listeners:
            listener.setblocking(False)
        self._unadmitted: deque[Connection] = deque()  # accepted, not admitted yet
        self.admits_since = -math.inf
        self._has_emptied = False  # whether the last turn took all that the kernel's queue had

    async def run(self) -> None:
        """Accept and admit connections until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._rotation is not None:
                nursery.start_soon(self._rotation.run)
            for listener in self._listeners:
                nursery.start_soon(self._accept_from, listener)

    # From the kernel's queue

    async def _accept_from(self, listener: socket.socket) -> None:
        emptied_at = -math.inf  # shortly before the kernel's queue was empty
        recent = deque([-math.inf], RECENT)  # when the last connections were accepted
        accepted = 0
        while listener.fileno() >= 0:
            gap_s = (self._clock.now() - recent[0]) / RECENT
            try:
                if self._unadmitted:
                    await trio.lowlevel.checkpoint()
                elif accepted and gap_s < BUSY_GAP_S:
                    await trio.sleep(min(REST_S, gap_s * REST_CONNECTIONS))
                else:
                    await trio.lowlevel.wait_readable(listener)
            except trio.ClosedResourceError:  # closed meanwhile
                return
            if not self._unadmitted:
                self.admits_since = emptied_at
            now, before = self._clock.now(), self._connections.counters.accepted
            has_room = self._accept(listener)
            accepted = self._connections.counters.accepted - before
            if self._rotation is not None:
                self._rotation.note_accepted(accepted)
            self._admit_some()
            self.admits_since = -math.inf
            emptied_at = now if self._has_emptied else -math.inf
            recent.extend(repeat(now, accepted))
            for connection in islice(reversed(self._unadmitted), accepted):
                self._connections.expect_login(connection)
            if not has_room:
                await self._pause()

    async def _pause(self) -> None:
        """Stop accepting for a while; admitting goes on."""
        accept_again_at = trio.current_time() + ACCEPT_PAUSE_S
        while self._admit_some() and trio.current_time() < accept_again_at:
            await trio.lowlevel.checkpoint()
        await trio.sleep_until(accept_again_at)

    def _accept(self, listener: socket.socket) -> bool:
        """Take some connections from the kernel's queue; return False if there is no room for more."""
        # What `accept` calls; the socket object that `accept` makes costs as much as the call itself.
        accept = listener._accept  # type: ignore[attr-defined] # typeshed has it on the base class only
        counters = self._connections.counters
        self._has_emptied = False
        if listener.fileno() < 0:
            return True
        kind = self._kinds[listener]
        room = self._admission.room(counters.connections)
        for _ in range(min(room, MAX_ACCEPTS_PER_TURN)):
            try:
                fd, address = accept()
            except BlockingIOError:
                self._has_emptied = True
                return True
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._connections.failures.accept_failed(error)
                    return False
                continue  # the client left the queue
            if not isinstance(address, tuple) or not address[0]:  # reset before the accept, on some systems
                os.close(fd)
                continue
            os.set_blocking(fd, False)
            counters.accepted += 1
            try:
                self._enter(fd, address[0], kind)
            except Exception as error:
                self._reader.connection_failed(fd, error)
        return room > 0

    def _enter(self, fd: int, address: str, listener: ListenerKind) -> None:
        """Add an accepted connection, which waits to be admitted, or refuse it."""
        retry_after = self._admission.admit_connection(self._connections.counters.connections)
        if retry_after is None and len(self._unadmitted) >= MAX_UNADMITTED:
            retry_after = spread(RETRY_MIN_S, FULL_RETRY_S)
        connection = self._guests.enter(fd, address, listener, retry_after=retry_after)
        if connection is not None:
            self._unadmitted.append(connection)

    def _admit_some(self) -> bool:
        """Admit some waiting connections; return whether there are more."""
        unadmitted, ends_at = self._unadmitted, perf_counter() + TURN_BUDGET_S
        while unadmitted:
            connection = unadmitted.popleft()
            try:
                self._guests.advance(connection, may_shake=False)
                self._connections.expect_login(connection)
            except OSError as error:  # it could not be watched, and was closed
                self._connections.failures.accept_failed(error)
            except Exception as error:
                self._reader.connection_failed(connection.fd, error)
            if perf_counter() > ends_at:
                break
        self._connections.flush_replies()
        return bool(unadmitted)

    async def stop(self) -> None:
        """Accept what is queued, which closing would reset, and close the listeners."""
        for listener in self._listeners:
            for _ in range(0, sockets.BACKLOG + 1, MAX_ACCEPTS_PER_TURN):
                before = self._connections.counters.accepted
                self._accept(listener)
                while self._admit_some():
                    await trio.lowlevel.checkpoint()
                if self._connections.counters.accepted == before:
                    break
        self.close()

    def close(self) -> None:
        """Close the listeners."""
        for listener in self._listeners:
            trio.lowlevel.notify_closing(listener)
            listener.close()
        self._listeners = []
