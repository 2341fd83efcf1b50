"""The way in: from the accept to a connection that is watched as a guest.

A connection is accepted and counted; if a proxy made it, its header tells for whom; its address is counted;
if it is to be TLS, its handshake is made; its login is read, which is here as a rule. Whoever is turned away
is told so in plain words, except before a handshake, when there are none.

The time for all of this together is that for the login: it runs from the accept and is never prolonged.
"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import trio

from presence import networks
from presence.admission import FULL_RETRY_S, Admission, Refusal
from presence.buckets import RETRY_MIN_S, spread
from presence.clock import Clock
from presence.core import Core
from presence.registry import Guest, Link
from presence.transports import tcp
from presence.transports.accepting import WAITING_MAX, Acceptor
from presence.transports.connections import READ, Connections
from presence.transports.handshakes import Handshakes
from presence.transports.limits import LOGIN_TIMED_OUT, TOO_MANY_CONNECTIONS, told
from presence.transports.proxy_headers import ProxyHeaders
from presence.transports.reading import Reading
from presence.transports.tls import TlsListening
from protocol import Code


@dataclass(frozen=True, slots=True)
class Listening:
    """Where connections come from.

    Attributes:
        listeners: bound, listening sockets, for plain TCP; owned by whoever gets this from now on.
        tls: where TLS is served, too; None: nowhere.
        proxies: networks from which each connection must begin with a header of the PROXY protocol.
    """

    listeners: Sequence[socket.socket]
    tls: TlsListening | None = None
    proxies: tuple[networks.Network, ...] = ()


class Entrance:
    """Whoever comes in, until the login is read.

    Args:
        core: told of new connections.
        link: what it knows their transport by.
        connections: where they are entered.
        reading: reads their logins.
        listening: where they come from.
        admission: says who is welcome.
        clock: monotonic time.

    Attributes:
        acceptor, headers, handshakes: the stages of the way.
    """

    def __init__(
        self,
        core: Core,
        link: Link,
        connections: Connections,
        reading: Reading,
        listening: Listening,
        *,
        admission: Admission,
        clock: Clock,
    ) -> None:
        self._core = core
        self._link = link
        self._connections = connections
        self._reading = reading
        self._admission = admission
        self._clock = clock
        tls = listening.tls
        secured = () if tls is None else tls.listeners
        self.acceptor = Acceptor(
            listening.listeners,
            secured,
            lambda: admission.has_room(connections.counted.connections),
            self._enter,
            self._admit,
            counted=connections.counted,
        )
        self.headers = ProxyHeaders(listening.proxies, connections.close, self._go_on, connections.counted)
        self.handshakes = Handshakes(connections, tls, self._let_in, reading.serve_other, self.contained)

    async def run(self) -> None:
        """Let connections in until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.handshakes.run)
            nursery.start_soon(self.headers.run)
            nursery.start_soon(self.acceptor.run)

    @contextmanager
    def contained(self, fd: int) -> Iterator[None]:
        """Let a mistake in what is done for a connection end that connection only."""
        try:
            yield
        except Exception as error:
            self.headers.forget(fd)
            self._reading.failed(fd, error)

    def close(self) -> None:
        """Close what is neither a connection nor one of their sets."""
        self.acceptor.close()
        self.headers.close()

    def _enter(self, fd: int, secured: bool, address: str) -> bool:
        """A connection was accepted; return whether it is welcome, and so waits to be admitted."""
        with self.contained(fd):
            if self._is_welcome(fd, secured, address):
                return True
        return False

    def _is_welcome(self, fd: int, secured: bool, address: str) -> bool:
        connections = self._connections
        retry_after = self._admission.connection(connections.counted.connections, self._clock.now())
        if retry_after is None and self.acceptor.waiting >= WAITING_MAX:
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

    def _admit(self, fds: list[int]) -> None:
        """Let connections in that were accepted.

        Raises:
            OSError: one or more could not be watched, and are closed.
        """
        failed = None
        for fd in fds:
            with self.contained(fd):
                try:
                    self._let_in(fd)
                except OSError as error:
                    failed = error
        self._connections.pay()
        if failed is not None:
            raise failed

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
        with tcp.borrowed(fd) as sock:
            proxy = tcp.peer_address(sock)
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
