"""Accepting connections: from the kernel's queue to a connection whose login is awaited.

The kernel's queue is short (`net.core.somaxconn`), and a connection that it drops is retried a second later.
So connections are taken out of it quickly and wait here to be admitted, which costs more because their login
has usually arrived. Both happen in slices, between which other connections are read. At most `MAX_UNADMITTED`
connections wait here; beyond that, new ones are refused. A refused connection keeps its descriptor for up to
a second, so if there are too many, further ones stay in the kernel's queue.

The steps: a connection is accepted and counted; a proxy's header, if any, names the client; the client's
address is counted; TLS shakes hands; the login is read. A refusal says why, except before a TLS handshake,
when nothing can be sent.

All of this has to finish within the login time-out, which starts at the accept and is never prolonged.
"""

import errno
import math
import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice, repeat
from time import perf_counter

import structlog
import trio

from presence.common import networks
from presence.common.clock import Clock
from presence.common.logs import RateLimited
from presence.common.rate_limit import RETRY_MIN_S, spread
from presence.core.admission import FULL_RETRY_S, Admission
from presence.core.authenticator import Refusal
from presence.core.engine import Engine
from presence.core.registry import Guest, Transport
from presence.protocol import Code
from presence.transports import sockets
from presence.transports.accept_rotation import AcceptRotation
from presence.transports.connections import READ, Connections
from presence.transports.limits import (
    LOGIN_TIMED_OUT,
    TOO_MANY_CONNECTIONS,
    TURN_BUDGET_S,
    encode_refusal,
)
from presence.transports.proxy_protocol import ProxyHeaders
from presence.transports.reader import ConnectionReader
from presence.transports.tls import TlsListening
from presence.transports.tls_handshake import Handshakes

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
    """Accepts connections, until their login is read.

    Args:
        engine: is notified of new connections.
        transport: the transport, as the core addresses it.
        connections: where they are added.
        reader: reads their logins.
        listeners: bound, listening sockets, for plain TCP; owned by the acceptor from now on.
        tls: listeners for TLS; None for none.
        proxies: networks whose connections must begin with a header of the PROXY protocol.
        admission: decides which connections are accepted.
        clock: monotonic time.
        rotation: of the workers that share the listeners' port; None: there are no others.

    Attributes:
        headers, handshakes: connections at these steps.
        admits_since: while connections are admitted, a time before which none of them was there.
    """

    def __init__(
        self,
        engine: Engine,
        transport: Transport,
        connections: Connections,
        reader: ConnectionReader,
        listeners: Sequence[socket.socket],
        *,
        tls: TlsListening | None,
        proxies: tuple[networks.Network, ...],
        admission: Admission,
        clock: Clock,
        rotation: AcceptRotation | None = None,
    ) -> None:
        self._engine = engine
        self._transport = transport
        self._connections = connections
        self._reader = reader
        self._admission = admission
        self._clock = clock
        self._rotation = rotation
        tls_listeners = () if tls is None else tls.listeners
        self._listeners = [*listeners, *tls_listeners]
        self._tls_listeners = frozenset(tls_listeners)
        for listener in self._listeners:
            listener.setblocking(False)
        self._unadmitted: deque[int] = deque()  # accepted, not admitted yet
        # whether a connection is admitted without knowing its client's address
        self._ignores_addresses = not proxies and not admission.counts_connections
        self.admits_since = -math.inf
        self._has_emptied = False  # whether the last turn took all that the kernel's queue had
        self._log = RateLimited(structlog.get_logger("presence.transport"))
        self.headers = ProxyHeaders(proxies, connections.close, self._resume, connections.counters)
        self.handshakes = Handshakes(connections, tls, self._admit, reader.serve_other, self.contained)

    async def run(self) -> None:
        """Accept and admit connections until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.handshakes.run)
            nursery.start_soon(self.headers.run)
            if self._rotation is not None:
                nursery.start_soon(self._rotation.run)
            for listener in self._listeners:
                nursery.start_soon(self._accept_from, listener)

    @contextmanager
    def contained(self, fd: int) -> Iterator[None]:
        """Let an error in the handling of a connection close only that connection."""
        try:
            yield
        except Exception as error:
            self._failed(fd, error)

    def _failed(self, fd: int, error: Exception) -> None:
        self.headers.stop_awaiting(fd)
        self._reader.connection_failed(fd, error)

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
            for fd in islice(reversed(self._unadmitted), accepted):
                self._connections.expect_login(fd)
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
        is_tls, counters = listener in self._tls_listeners, self._connections.counters
        self._has_emptied = False
        if listener.fileno() < 0:
            return True
        room = self._admission.room(counters.connections)
        for _ in range(min(room, MAX_ACCEPTS_PER_TURN)):
            try:
                fd, address = accept()
            except BlockingIOError:
                self._has_emptied = True
                return True
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._record_accept_error(error)
                    return False
                continue  # the client left the queue
            if not isinstance(address, tuple) or not address[0]:  # reset before the accept, on some systems
                os.close(fd)
                continue
            os.set_blocking(fd, False)
            counters.accepted += 1
            try:
                if self._enter(fd, is_tls, address[0]):
                    self._unadmitted.append(fd)
            except Exception as error:
                self._failed(fd, error)
        return room > 0

    def _record_accept_error(self, error: OSError) -> None:
        counters = self._connections.counters
        counters.accept_errors += 1
        self._log.error("accept failed", error=error.strerror, accepted=counters.accepted)

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
        self._close_listeners()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            trio.lowlevel.notify_closing(listener)
            listener.close()
        self._listeners = []

    def close(self) -> None:
        """Close everything except connections and their epoll sets."""
        self._close_listeners()
        self.headers.close()

    # Admission

    def _enter(self, fd: int, is_tls: bool, address: str) -> bool:
        """Add an accepted connection, or refuse it; return whether it waits to be admitted."""
        connections = self._connections
        retry_after = self._admission.admit_connection(connections.counters.connections)
        if retry_after is None and len(self._unadmitted) >= MAX_UNADMITTED:
            retry_after = spread(RETRY_MIN_S, FULL_RETRY_S)
        guest = self._engine.opened(self._transport, fd, networks.limit_key(address))
        connections.add(fd, guest, is_tls=is_tls)
        if retry_after is not None:
            self._refuse(fd, Refusal(Code.BUSY, TOO_MANY_CONNECTIONS, retry_after))
            return False
        return self._ignores_addresses or self.headers.expect(fd, address) or self._identify(fd, guest)

    def _identify(self, fd: int, guest: Guest, *, from_proxy: bool = False) -> bool:
        """Count a connection by its client's address; refuse it and return False if there are too many."""
        refusal = self._connections.addresses.register(fd, guest.address, from_proxy=from_proxy)
        if refusal is not None:
            self._refuse(fd, refusal)
        return refusal is None

    def _refuse(self, fd: int, refusal: Refusal) -> None:
        self._engine.count_refusal(refusal.code)
        self._connections.hang_up(fd, encode_refusal(refusal))
        try:
            self._connections.watch(fd, READ)
        except OSError:  # the limit of epoll watches, or no memory
            self._connections.close(fd)

    def _admit_some(self) -> bool:
        """Admit some waiting connections; return whether there are more."""
        unadmitted, until = self._unadmitted, perf_counter() + TURN_BUDGET_S
        while unadmitted:
            fd = unadmitted.popleft()
            try:
                self._admit(fd)
                self._connections.expect_login(fd)
            except OSError as error:  # it could not be watched, and was closed
                self._record_accept_error(error)
            except Exception as error:
                self._failed(fd, error)
            if perf_counter() > until:
                break
        self._connections.flush_replies()
        return bool(unadmitted)

    def _resume(self, fd: int) -> None:
        """Continue with a connection of which more of the proxy header has arrived."""
        with self.contained(fd), suppress(OSError):  # closed: it cannot be watched
            self._admit(fd)
        self._connections.flush_replies()

    def _admit(self, fd: int) -> None:
        """Take a connection as far as its received bytes allow, and watch it for the rest.

        Raises:
            OSError: it could not be watched, and was closed.
        """
        connections = self._connections
        try:
            guest = connections.fd_states[fd]
            if fd in self.headers.awaited and not (
                isinstance(guest, Guest) and self._read_proxy_header(fd, guest)
            ):
                return
            if connections.handshake_pending(fd):
                connections.watch_for_handshake(fd)
                return
            if isinstance(guest, Guest):  # if not, its login timed out while it waited
                self._reader.read(fd, guest)
            connections.watch_for_login(fd)
        except OSError:  # the limit of epoll watches, or no memory
            self.headers.stop_awaiting(fd)
            connections.close(fd)
            raise

    def _read_proxy_header(self, fd: int, guest: Guest) -> bool:
        """Read a proxy's header; return whether the client is known, and not refused."""
        client = self.headers.read(fd)
        if client is None:
            return False
        if client:
            guest.address = networks.limit_key(client)
        return self._identify(fd, guest, from_proxy=bool(client))

    def login_timed_out(self, fd: int, guest: Guest) -> None:
        """Handle a login time-out; read first: the login may have arrived while this process paused."""
        connections = self._connections
        if fd in self.headers.awaited:
            with suppress(OSError):  # closed: it cannot be watched
                self._admit(fd)
            if fd in self.headers.awaited:
                connections.counters.login_timeouts += 1
                self.headers.refuse(fd, "it was not complete in time")
            if connections.fd_states[fd] is not guest:
                connections.flush_replies()
                return
        if connections.handshake_pending(fd):
            self.handshakes.step(fd, guest)
        else:
            self._reader.read(fd, guest)
        connections.flush_replies()
        if connections.fd_states[fd] is not guest:
            return
        connections.counters.login_timeouts += 1
        self._engine.count_refusal(Code.LOGIN_TIMEOUT)
        if connections.handshake_pending(fd):
            connections.close(fd)
        else:
            connections.hang_up(fd, LOGIN_TIMED_OUT)
