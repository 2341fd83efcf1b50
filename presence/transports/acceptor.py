"""The way in: from the kernel's queue of new connections to a connection that is watched as a guest.

The kernel's queue is short (`net.core.somaxconn`), and what it drops comes back a second later. So
connections are taken out of it quickly, and wait here for their turn to be let in, which costs more: as a
rule their login has come along. Both happen in bites, between which others are read. No more than
`WAITING_MAX` wait; a crowd beyond is sent away. Being sent away takes a descriptor, too, for a second: where
many are, others stay in the kernel's queue.

A connection is accepted and counted; if a proxy made it, its header tells for whom; its address is counted;
if it is to be TLS, its handshake is made; its login is read, which is here as a rule. Whoever is turned away
is told so in plain words, except before a handshake, when there are none.

The time for all of this together is that for the login: it runs from the accept and is never prolonged.
"""

import errno
import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import structlog
import trio

from presence.common import networks
from presence.common.clock import Clock
from presence.common.logs import RateLimited
from presence.common.rate_limit import RETRY_MIN_S, spread
from presence.core.admission import FULL_RETRY_S, Admission, Refusal
from presence.core.engine import Engine
from presence.core.registry import Guest, Link
from presence.protocol import Code
from presence.transports import sockets
from presence.transports.connections import READ, Connections
from presence.transports.limits import LOGIN_TIMED_OUT, TOO_MANY_CONNECTIONS, told
from presence.transports.proxy_protocol import ProxyHeaders
from presence.transports.reader import Reading
from presence.transports.tls import TlsListening
from presence.transports.tls_handshake import Handshakes

ACCEPTS_A_TURN = 256  # out of the kernel's queue: a few milliseconds
WAITING_MAX = 20_000  # a burst that is welcome, and little more than a second of work; beyond, busy
ADMISSIONS_A_TURN = 64  # each with its login, as a rule: some milliseconds
ACCEPT_PAUSE_S = 0.25  # without descriptors, accepting rests: the listener would spin
_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Acceptor:
    """Whoever comes in, until the login is read.

    Args:
        core: told of new connections.
        link: what it knows their transport by.
        connections: where they are entered.
        reading: reads their logins.
        listeners: bound, listening sockets, for plain TCP; owned by the acceptor from now on.
        tls: where TLS is served, too; None: nowhere.
        proxies: networks from which each connection must begin with a header of the PROXY protocol.
        admission: says who is welcome.
        clock: monotonic time.

    Attributes:
        headers, handshakes: stages of the way.
    """

    def __init__(
        self,
        core: Engine,
        link: Link,
        connections: Connections,
        reading: Reading,
        listeners: Sequence[socket.socket],
        *,
        tls: TlsListening | None,
        proxies: tuple[networks.Network, ...],
        admission: Admission,
        clock: Clock,
    ) -> None:
        self._core = core
        self._link = link
        self._connections = connections
        self._reading = reading
        self._admission = admission
        self._clock = clock
        secured = () if tls is None else tls.listeners
        self._listeners = [*listeners, *secured]
        self._secured = frozenset(secured)
        for listener in self._listeners:
            listener.setblocking(False)
        self._waiting: deque[int] = deque()  # accepted, and not let in yet
        self._log = RateLimited(structlog.get_logger("presence.transport"))
        self.headers = ProxyHeaders(proxies, connections.close, self._go_on, connections.counted)
        self.handshakes = Handshakes(connections, tls, self._let_in, reading.serve_other, self.contained)

    async def run(self) -> None:
        """Let connections in until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.handshakes.run)
            nursery.start_soon(self.headers.run)
            for listener in self._listeners:
                nursery.start_soon(self._accept_from, listener)

    @contextmanager
    def contained(self, fd: int) -> Iterator[None]:
        """Let a mistake in what is done for a connection end that connection only."""
        try:
            yield
        except Exception as error:
            self.headers.forget(fd)
            self._reading.failed(fd, error)

    # Out of the kernel's queue

    async def _accept_from(self, listener: socket.socket) -> None:
        while listener.fileno() >= 0:
            try:
                if self._waiting:
                    await trio.lowlevel.checkpoint()
                else:
                    await trio.lowlevel.wait_readable(listener)
            except trio.ClosedResourceError:  # closed while it waited
                return
            accept_again_at = trio.current_time()
            if not self._accept(listener):
                accept_again_at += ACCEPT_PAUSE_S
            while self._admit_some() and trio.current_time() < accept_again_at:
                await trio.lowlevel.checkpoint()  # who was accepted comes in, though nobody else can be
            await trio.sleep_until(accept_again_at)

    def _accept(self, listener: socket.socket) -> bool:
        """Take some connections out of the kernel's queue; False: there is no room for more."""
        # What `accept` calls; the socket object that it makes for each costs as much as the call.
        accept = listener._accept  # type: ignore[attr-defined] # typeshed has it on the base class only
        secured, counted = listener in self._secured, self._connections.counted
        for _ in range(ACCEPTS_A_TURN if listener.fileno() >= 0 else 0):
            if not self._admission.has_room(counted.connections):
                return False
            try:
                fd, address = accept()
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._note(error)
                    return False
                continue  # the client went away while it was queueing
            os.set_blocking(fd, False)
            counted.accepted += 1
            with self.contained(fd):
                if self._is_welcome(fd, secured, address[0] if isinstance(address, tuple) else ""):
                    self._waiting.append(fd)
        return True

    def _note(self, error: OSError) -> None:
        counted = self._connections.counted
        counted.accept_errors += 1
        self._log.error("accept failed", error=error.strerror, accepted=counted.accepted)

    async def stop(self) -> None:
        """Take in what waits already, which closing would reset, and close the listeners."""
        for listener in self._listeners:
            for _ in range(0, sockets.BACKLOG + 1, ACCEPTS_A_TURN):
                before = self._connections.counted.accepted
                self._accept(listener)
                while self._admit_some():
                    await trio.lowlevel.checkpoint()
                if self._connections.counted.accepted == before:
                    break
        self._close_listeners()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            trio.lowlevel.notify_closing(listener)
            listener.close()
        self._listeners = []

    def close(self) -> None:
        """Close what is neither a connection nor one of their sets."""
        self._close_listeners()
        self.headers.close()

    # In

    def _is_welcome(self, fd: int, secured: bool, address: str) -> bool:
        """A connection was accepted; return whether it is welcome, and so waits to be admitted."""
        connections = self._connections
        retry_after = self._admission.connection(connections.counted.connections, self._clock.now())
        if retry_after is None and len(self._waiting) >= WAITING_MAX:
            retry_after = spread(RETRY_MIN_S, FULL_RETRY_S)
        connections.enter(fd, self._core.opened(self._link, fd), secured=secured)
        if retry_after is not None:
            self._turn_away(fd, Refusal(Code.BUSY, TOO_MANY_CONNECTIONS, retry_after))
            return False
        return self.headers.expect(fd, address) or self._settle(fd, address)

    def _settle(self, fd: int, address: str, *, told: bool = False) -> bool:
        """It is known whose a connection is; return whether it is welcome."""
        refusal = self._connections.addresses.settle(fd, address, told=told)
        if refusal is not None:
            self._turn_away(fd, refusal)
        return refusal is None

    def _turn_away(self, fd: int, refusal: Refusal) -> None:
        self._core.note_refusal(refusal.code)
        self._connections.hang_up(fd, told(refusal))
        try:
            self._connections.watch(fd, READ)
        except OSError:  # the user's limit of watches, or no memory
            self._connections.close(fd)

    def _admit_some(self) -> bool:
        """Let some of those in who wait; return whether more do."""
        waiting, failed = self._waiting, None
        for _ in range(min(ADMISSIONS_A_TURN, len(waiting))):
            with self.contained(fd := waiting.popleft()):
                try:
                    self._let_in(fd)
                except OSError as error:  # it could not be watched, and is closed
                    failed = error
        self._connections.pay()
        if failed is not None:
            self._note(failed)
        return bool(waiting)

    def _go_on(self, fd: int) -> None:
        """More of a header has arrived, and what is behind it, too."""
        with self.contained(fd), suppress(OSError):  # closed, for it cannot be watched
            self._let_in(fd)
        self._connections.pay()

    def _let_in(self, fd: int) -> None:
        """Take a connection on as far as what has arrived allows, and watch it if that is not all the way.

        Raises:
            OSError: it could not be watched, and is closed.
        """
        connections = self._connections
        try:
            if fd in self.headers.awaited and not self._identify(fd):
                return
            if connections.is_mute(fd):
                connections.await_handshake(fd)
                return
            guest = connections.occupants[fd]
            if isinstance(guest, Guest):  # else its time was up while it waited
                self._reading.read(fd, guest)
            connections.await_login(fd)
        except OSError:  # the user's limit of watches, or no memory
            self.headers.forget(fd)
            connections.close(fd)
            raise

    def _identify(self, fd: int) -> bool:
        """Read who a proxy's connection is for; return whether that is known, and welcome."""
        client = self.headers.read(fd)
        if client is None:
            return False
        if client:
            return self._settle(fd, client, told=True)
        with sockets.borrowed(fd) as sock:
            proxy = sockets.peer_address(sock)
        return self._settle(fd, proxy)

    def time_is_up(self, fd: int, guest: Guest) -> None:
        """The time for a login is over; after a pause of ours it may have been waiting."""
        connections = self._connections
        if fd in self.headers.awaited:
            with suppress(OSError):  # closed, for it cannot be watched
                self._let_in(fd)
            if fd in self.headers.awaited:
                connections.counted.login_timeouts += 1
                self.headers.refuse(fd, "it was not complete in time")
            if connections.occupants[fd] is not guest:
                connections.pay()
                return
        if connections.is_mute(fd):
            self.handshakes.step(fd, guest)
        else:
            self._reading.read(fd, guest)
        connections.pay()
        if connections.occupants[fd] is not guest:
            return
        connections.counted.login_timeouts += 1
        self._core.note_refusal(Code.LOGIN_TIMEOUT)
        if connections.is_mute(fd):
            connections.close(fd)
        else:
            connections.hang_up(fd, LOGIN_TIMED_OUT)
