"""One TLS connection of the epoll transport, with `read` and `write` in place of `os.read` and `os.write`.

The TLS library works on memory buffers, never on the descriptor. Letting it read the descriptor would save 2
KB per connection; but then a client that renews its keys without end, for which it has to do no work itself,
keeps the library reading and all other connections waiting: more than a second was measured. So a read gives
the library a bounded number of bytes. They go in and out in pieces, because a buffer never shrinks.

A fresh connection is only a descriptor: a silent client costs what it does on a plain port. The library's 16
KB come with the first byte, if that can begin a handshake.
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
# Reading a slow reader goes on until the library's own messages to it are as long as a piece.
MAX_UNSENT_BYTES = 2 * PIECE_BYTES
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

    # _unsent: encrypted bytes that the kernel did not take; _ahead: how many of the caller's bytes they hold,
    # which the caller counts as unsent; _silent_bytes: bytes received since the last content.
    __slots__ = (
        "_ahead",
        "_ended",
        "_fd",
        "_incoming",
        "_outgoing",
        "_silent_bytes",
        "_tls",
        "_unsent",
        "fresh",
        "ready",
    )

    _incoming: ssl.MemoryBIO
    _outgoing: ssl.MemoryBIO
    _tls: ssl.SSLObject

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unsent = b""
        self._ahead = self._silent_bytes = 0
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
        self._tls = certificate.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.fresh = False

    def handshake(self) -> bool:
        """Continue the handshake with a piece of what has arrived; return whether it is over.

        Raises:
            BlockingIOError: nothing has arrived.
            ssl.SSLWantWriteError: the kernel takes no more at present.
            OSError: it failed; an alert was sent, or the connection is lost.
        """
        if not self.ready and not self._unsent:
            piece = os.read(self._fd, PIECE_BYTES)
            if not piece:
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            self._incoming.write(piece)
            try:
                self._tls.do_handshake()
                self.ready = True
            except ssl.SSLWantReadError:
                pass
            finally:
                self._collect()
        self._must_flush()
        return self.ready

    def peer_certificate(self) -> bytes | None:
        """Return the verified certificate of the client, as DER; None without one, or while not `ready`."""
        return self._tls.getpeercert(binary_form=True) if self.ready else None

    def read(self, limit: int) -> bytes:
        """As `os.read`: b"" at the end, with or without TLS's close notification.

        Everything that the library has decrypted is returned, because epoll would not report it: that may be
        a record more than `limit`.

        Raises:
            BlockingIOError: no complete record has arrived.
            ssl.SSLWantWriteError: the library must write first, and the kernel takes no more at present.
            OSError: the connection is broken.
        """
        if self._unsent:
            self._collect()
            if len(self._unsent) > MAX_UNSENT_BYTES:
                raise ssl.SSLWantWriteError
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
        if self._outgoing.pending:
            self._collect()
        return data

    def _end(self) -> None:
        """Handle the peer's close notification; shutting its side makes epoll report it even behind data."""
        self._ended = True
        with suppress(OSError), sockets.borrowed(self._fd) as sock:
            sock.shutdown(socket.SHUT_RD)

    def write(self, data: bytes | bytearray) -> int:
        """As `os.write`; what was not taken must be offered again, with or without more behind it.

        Raises:
            BlockingIOError: the kernel takes nothing at present.
            OSError: the connection is broken.
        """
        if self._unsent and not self._flush():
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        sent, self._ahead = self._ahead, 0
        while sent < len(data):
            piece = data[sent : sent + PIECE_BYTES]
            self._tls.write(piece)
            self._unsent = self._outgoing.read()
            if not self._flush():
                self._ahead = len(piece)
                break
            sent += len(piece)
        if not sent:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return sent

    def close_send(self) -> None:
        """Send the close notification, without waiting for the peer's."""
        if self.ready:
            self.ready = False
            with suppress(OSError, ValueError):  # the peer has not closed its side yet
                self._tls.unwrap()
            self._collect()

    def _collect(self) -> None:
        """Send the library's output, as far as the kernel takes it."""
        self._unsent += self._outgoing.read()
        with suppress(OSError):  # lost: the next read reports it
            self._flush()

    def _flush(self) -> bool:
        """Send encrypted bytes; return whether the kernel took all of them."""
        if self._unsent:
            with suppress(BlockingIOError):
                self._unsent = self._unsent[os.write(self._fd, self._unsent) :]
        return not self._unsent

    def _must_flush(self) -> None:
        if not self._flush():
            raise ssl.SSLWantWriteError
