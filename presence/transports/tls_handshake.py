"""TLS handshakes, a few at a time: each costs as much as a hundred keepalives.

A connection to a TLS port is in a separate epoll set until its handshake is over. A task of its own serves
that set, a few steps per turn, so that many handshakes delay other connections only by the time of a few
steps. A handshake has to finish within the login time-out, which starts at the accept: sending a byte now and
then gains a client nothing.

The number of handshakes under way is limited, because each holds memory. A handshake is under way from the
client's first byte, so silent clients take no place. Beyond the limit the oldest is dropped for the new one:
an honest handshake takes two round trips, so the oldest are stalled ones, and a flood locks no client out.
"""

import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import structlog
import trio

from presence import protocol
from presence.common.logs import RateLimited
from presence.core.registry import Guest
from presence.protocol import Code
from presence.transports.connections import WRITE, Connections, LatencyClass
from presence.transports.tls import TlsListening
from presence.transports.tls_connection import NotTls, TlsConnectionState

MAX_STEPS_PER_TURN = 8  # some milliseconds, even with a large RSA key
_NOT_TLS = protocol.encode(protocol.error(None, Code.PROTOCOL_ERROR, "this port is for TLS"))


class Handshakes:
    """Connections whose handshake is not over.

    Args:
        connections: their state.
        tls: the certificate, and how many may be under way; None without TLS.
        admit: called after each finished handshake, to read the login. May raise `OSError` for lack of
            resources.
        serve_other: called with descriptor and mask of connections that were hung up meanwhile.
        contained: lets an error close one connection only.
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
        self._log = RateLimited(structlog.get_logger("presence.transport"))

    async def run(self) -> None:
        epoll = self._connections.sets[LatencyClass.HANDSHAKING]
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
            self._connections.flush(fd)
        self.step(fd, guest)

    def step(self, fd: int, guest: Guest) -> None:
        """Continue the handshake of a connection with what has arrived."""
        connections = self._connections
        tls = connections.tls[fd]
        try:
            if tls.fresh:
                self._begin(fd, tls)
            try:
                is_over = tls.handshake()
            finally:
                connections.send_output(fd, tls)
            if is_over:
                del connections.handshaking[fd]
                self._finish(fd)
        except BlockingIOError:
            pass
        except NotTls:
            connections.counters.handshakes_failed += 1
            del connections.tls[fd]  # so the refusal is sent unencrypted
            connections.hang_up(fd, _NOT_TLS)
        except OSError as error:
            connections.counters.handshakes_failed += 1
            if isinstance(error, ssl.SSLCertVerificationError):
                self._log.info("client certificate refused", reason=error.verify_message)
            if tls.fresh:
                connections.close(fd)
            else:
                connections.hang_up(fd, b"")  # after the alert that says what is wrong

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
        with suppress(OSError):  # closed: it cannot be watched
            self._admit(fd)
