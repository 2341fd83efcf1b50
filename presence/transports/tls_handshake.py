"""Handshakes of TLS, a few at a time: each costs as much as a hundred keepalives.

Who connects to a TLS port waits in an epoll set of his own until his handshake is over. A task of its own
serves it, a few steps a turn, so that a crowd that shakes hands keeps nobody else waiting for longer than
these take. The time for a handshake is the time for the login, which runs from the accept: whoever sends a
byte now and then gains nothing.

Only so many handshakes are under way at once, for each holds memory that its client has not earned yet. One
is under way from the client's first byte, so the silent take nobody's place. Beyond that number the oldest is
given up for the new one: an honest handshake is over in two round trips, so those that grow old are stalled,
and a crowd of them shuts nobody out.
"""

import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import trio

from presence import protocol
from presence.core.registry import Guest
from presence.protocol import Code
from presence.transports.connections import HANDSHAKING, READ, WRITE, Connections
from presence.transports.tls import TlsListening
from presence.transports.tls_connection import NotTls, TlsConnectionState

MAX_STEPS_PER_TURN = 8  # steps: some milliseconds, with a large RSA key too
_NOT_TLS = protocol.encode(protocol.error(None, Code.PROTOCOL_ERROR, "this port is for TLS"))


class Handshakes:
    """The connections whose handshake is not over.

    Args:
        connections: whose they are.
        tls: the certificate, and how many may be under way at once; None: nobody comes.
        admit: called for each that is over, to read its login. May raise `OSError` for lack of resources.
        serve_other: called with descriptor and mask of those that were hung up meanwhile.
        contained: lets a mistake end one connection only.
    """

    def __init__(
        self,
        connections: Connections,
        tls: TlsListening | None,
        admit: Callable[[int], None],
        serve_other: Callable[[int, int], None],
        contained: Callable[[int], AbstractContextManager[None]],
    ) -> None:
        self._contained = contained
        self._connections = connections
        self._tls = tls
        self._admit = admit
        self._serve_other = serve_other

    async def run(self) -> None:
        """Serve until cancelled."""
        epoll = self._connections.sets[HANDSHAKING]
        while True:
            events = epoll.poll(0, MAX_STEPS_PER_TURN)
            if not events:
                await trio.lowlevel.wait_readable(epoll.fileno())
                continue
            for fd, mask in events:
                with self._contained(fd):
                    self._serve(fd, mask)
            self._connections.flush_replies()
            await trio.lowlevel.checkpoint()

    def _serve(self, fd: int, mask: int) -> None:
        guest = self._connections.fd_states[fd]
        if not isinstance(guest, Guest):
            self._serve_other(fd, mask)
            return
        if mask & WRITE:
            self._connections.watch(fd, READ)
        self.step(fd, guest)

    def step(self, fd: int, guest: Guest) -> None:
        """Take a connection's handshake on, as far as what has arrived allows."""
        connections = self._connections
        tls = connections.tls[fd]
        try:
            if tls.fresh:
                self._begin(fd, tls)
            if tls.handshake():
                del connections.handshaking[fd]
                self._finish(fd)
        except BlockingIOError:
            pass
        except ssl.SSLWantWriteError:
            connections.watch(fd, WRITE)
        except NotTls:
            connections.counters.handshakes_failed += 1
            del connections.tls[fd]  # so it is told in plain words
            connections.hang_up(fd, _NOT_TLS)
        except OSError:
            connections.counters.handshakes_failed += 1
            if tls.fresh:
                connections.close(fd)
            else:
                connections.hang_up(fd, b"")  # behind the alert that says what is wrong

    def _begin(self, fd: int, tls: TlsConnectionState) -> None:
        """Begin a handshake; raises what `TlsConnectionState.begin` does."""
        if self._tls is None:
            raise NotTls
        tls.begin(self._tls.certificate)
        handshaking = self._connections.handshaking
        if len(handshaking) >= self._tls.handshakes:
            self._connections.counters.handshakes_refused += 1
            self._connections.close(next(iter(handshaking)))
        handshaking[fd] = None

    def _finish(self, fd: int) -> None:
        self._connections.counters.handshakes += 1
        with suppress(OSError):  # closed, for it cannot be watched
            self._admit(fd)
