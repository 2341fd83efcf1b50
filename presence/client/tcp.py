"""Connections over TCP, with or without TLS.

A client that returns resumes its TLS session, if the server still has the keys of its ticket: it sends and
verifies no certificate again. The stream that connects offers no way to give it a session, so the context
makes objects of a class that takes it from the task that connects (`sslobject_class` is there for that). All
other connections of the same context are as before.

Tests: `tests/client/test_tcp.py`, `tests/system/client/test_tls.py`, `tests/system/client/test_addresses.py`.
"""

import ssl
from contextvars import ContextVar
from typing import Final

import anyio
from anyio.abc import ByteStream
from anyio.streams.tls import TLSAttribute

# Each resumption gives a new ticket, so that a client that returns often would never see whether the server
# still has a valid certificate. RFC 8446, section 4.6.1, recommends a limit.
MAX_UNVERIFIED_S: Final = 86_400.0

_offered: ContextVar[ssl.SSLSession | None] = ContextVar("offered", default=None)


class ResumingObject(ssl.SSLObject):
    """One side of a TLS connection that begins with the session which its task offers, if there is one."""

    def do_handshake(self) -> None:
        if (session := _offered.get()) is not None:
            _offered.set(None)  # this is called again and again until the handshake is over
            self.session = session
        super().do_handshake()


class TcpConnector:
    """Opens the connections of one client, one after another.

    Args:
        host, port: the server.
        context: for TLS; None: without. If it has a class of its own for its connections, none is resumed.
    """

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        self._host = host
        self._port = port
        self._context = context
        self._last: ssl.SSLObject | None = None  # of the last connection: it has the newest session
        self._verified_at = 0.0  # when the server last showed its certificate, by the loop's clock
        if context is not None and context.sslobject_class is ssl.SSLObject:
            context.sslobject_class = ResumingObject

    async def open(self) -> ByteStream:
        """Connect, and over TLS make the handshake.

        Raises:
            OSError, UnicodeError, anyio.BrokenResourceError, anyio.EndOfStream: no address could be connected
                to.
        """
        if self._context is None:
            return await anyio.connect_tcp(self._host, self._port)
        before = _offered.set(self._session())
        try:
            stream = await anyio.connect_tcp(
                self._host, self._port, tls=True, ssl_context=self._context, tls_standard_compatible=False
            )
        except ssl.SSLError:
            self._last = None  # should the session be the reason, the next attempt succeeds without it
            raise
        finally:
            _offered.reset(before)
        self._last = stream.extra(TLSAttribute.ssl_object)  # noqa: S610 - anyio's
        if not self._last.session_reused:
            self._verified_at = anyio.current_time()
        return stream

    def _session(self) -> ssl.SSLSession | None:
        """Return the session to offer; None if the server must show its certificate."""
        if self._last is None or anyio.current_time() - self._verified_at > MAX_UNVERIFIED_S:
            return None
        return self._last.session
