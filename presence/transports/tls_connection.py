"""TLS of one connection of the epoll transport: `read` in place of `os.read`, and `encode` before a write.

What is sent is encrypted immediately, and only records wait for a slow reader: the owner of the connection
keeps them, as it keeps the bytes of a plain one. After `read` and `handshake` the library may have something
to say by itself, which `take_output` returns.

The TLS library works on memory buffers, never on the descriptor. Letting it read the descriptor would save 2
KB per connection; but then a client that renews its keys without end, for which it has to do no work itself,
keeps the library reading and all other connections waiting: more than a second was measured. So a read gives
the library a bounded number of bytes. They go in and out in pieces, because a buffer of the library never
shrinks.

A fresh connection is only a descriptor: a silent client costs what it does on a plain port. The library's 16
KB come with the first byte, if that can begin a handshake.

Tests: `tests/transports/test_tls.py`.
"""

import errno
import os
import socket
import ssl
from contextlib import suppress

from presence.transports import sockets
from presence.transports.tls import Certificate

PIECE_BYTES = 2048
RECORD_BYTES = 16_384  # what one record holds at most, RFC 8446, section 5.1
# A record takes at most these bytes (section 5.2): so many without any content will never yield content.
MAX_SILENT_BYTES = RECORD_BYTES + 256 + 5
_QUICK_BYTES = 64  # any keepalive; an object this small needs no system allocation
_HANDSHAKE = b"\x16"  # type of the first record of a client, section 4


class NotTls(Exception):
    """The connection does not begin with a TLS handshake."""


class TlsConnectionState:
    """A TLS connection, before, during and after its handshake.

    Args:
        fd: the descriptor, non-blocking; owned by the caller.

    Attributes:
        fresh: whether `begin` is still to be called.
        ready: whether data can be sent: the handshake is over, and the sending side is open.
    """

    __slots__ = ("_ended", "_fd", "_incoming", "_outgoing", "_silent_bytes", "_tls", "fresh", "ready")

    _incoming: ssl.MemoryBIO
    _outgoing: ssl.MemoryBIO
    _tls: ssl.SSLObject

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._silent_bytes = 0  # received since the last content
        self._ended = False
        self.fresh = True
        self.ready = False

    def begin(self, certificate: Certificate) -> None:
        """Create the library's state; the first byte has arrived.

        Raises:
            NotTls: the connection does not speak TLS; nothing was read.
            BlockingIOError: nothing has arrived.
            OSError: the connection is lost.
        """
        with sockets.borrowed(self._fd) as sock:
            first = sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        if not first:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        if first != _HANDSHAKE:
            raise NotTls
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = certificate.ticket_context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._tls.context = certificate.context
        self.fresh = False

    def handshake(self) -> bool:
        """Continue the handshake with a piece of what has arrived; return whether it is over.

        Raises:
            BlockingIOError: nothing has arrived.
            OSError: it failed, and the output says why; or the connection is lost.
        """
        piece = os.read(self._fd, PIECE_BYTES)
        if not piece:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        self._incoming.write(piece)
        with suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
            self.ready = True
        return self.ready

    @property
    def has_output(self) -> bool:
        """Whether the library has something to say by itself: handshakes, alerts, new keys."""
        return not self.fresh and self._outgoing.pending > 0

    def take_output(self) -> bytes:
        """Return what the library says by itself, as records to send."""
        return self._outgoing.read()

    @property
    def is_resumed(self) -> bool:
        """Whether the handshake, now over, began with a session ticket."""
        return self._tls.session_reused is True

    def peer_certificate(self) -> bytes | None:
        """Return the verified certificate of the client, as DER; None without one, or while not `ready`."""
        return self._tls.getpeercert(binary_form=True) if self.ready else None

    def read(self, limit: int) -> bytes:
        """As `os.read`: b"" at the end, with or without TLS's close notification.

        Everything that the library has decrypted is returned, because epoll would not report it: that may be
        a record more than `limit`.

        Raises:
            BlockingIOError: no complete record has arrived.
            OSError: the connection is broken.
        """
        data, taken = self._decrypt() if self._incoming.pending else b"", 0
        while not self._ended and len(data) < limit and taken < limit:
            try:
                piece = os.read(self._fd, PIECE_BYTES)
            except BlockingIOError:
                break
            if not piece:
                self._ended = True
                break
            taken += len(piece)
            self._incoming.write(piece)
            data += self._decrypt()
            if len(piece) < PIECE_BYTES:
                break
        if data or self._ended:
            self._silent_bytes = 0
            return data
        self._silent_bytes += taken
        if self._silent_bytes > MAX_SILENT_BYTES:
            raise ConnectionAbortedError(errno.ECONNABORTED, os.strerror(errno.ECONNABORTED))
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def _decrypt(self) -> bytes:
        data = b""
        try:
            while part := self._tls.read(RECORD_BYTES if data else _QUICK_BYTES):
                data += part
                if len(part) < _QUICK_BYTES and not self._incoming.pending:
                    break
            else:
                self._end()
        except ssl.SSLWantReadError:
            pass
        return data

    def _end(self) -> None:
        """Handle the peer's close notification; shutting its side makes epoll report it even behind data."""
        self._ended = True
        with suppress(OSError), sockets.borrowed(self._fd) as sock:
            sock.shutdown(socket.SHUT_RD)

    def encode(self, data: bytes | bytearray) -> bytes | bytearray:
        """Return records with the data, behind the output.

        Raises:
            OSError: the connection is broken.
        """
        if len(data) <= PIECE_BYTES:
            self._tls.write(data)
            return self._outgoing.read()
        records = bytearray()
        for start in range(0, len(data), PIECE_BYTES):
            self._tls.write(data[start : start + PIECE_BYTES])
            records += self._outgoing.read()
        return records

    def end(self) -> bytes:
        """End the sending side; return the close notification, if the handshake is over."""
        if not self.ready:
            return b""
        self.ready = False
        with suppress(OSError, ValueError):  # the peer has not closed its side yet
            self._tls.unwrap()
        return self._outgoing.read()
