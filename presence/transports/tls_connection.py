"""One TLS connection of the epoll transport: what `os.read` and `os.write` are to a plain one.

The library works on buffers in memory, and never on the descriptor. It would save 2 KB a connection to let it
read by itself; but then a client that renews its keys without end, for which it owes nothing, keeps the
library reading, and everybody else waiting, for as long as it likes: a second and more was measured. So a
read hands the library a bounded number of bytes. They go in and out in pieces, for a buffer never shrinks.

A fresh wire is a descriptor and nothing else: whoever connects and is silent costs what he does on a plain
port. The library's 16 KB come with the first byte, if that can be the beginning of a handshake.
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
# Nor does any take more than these (section 5.2): whoever sends so many and says nothing will say nothing.
MAX_SILENT_BYTES = RECORD_BYTES + 256 + 5
# A slow reader is read all the same, until what the library itself says to it is as much as a piece.
MAX_UNSENT_BYTES = 2 * PIECE_BYTES
_QUICK_BYTES = 64  # any keepalive; such a small object costs no system allocation
_HANDSHAKE = b"\x16"  # what the first record of a client is, section 4


class NotTls(Exception):
    """The connection does not begin with a handshake."""


class TlsConnectionState:
    """A connection that is TLS, or is to be.

    Args:
        fd: the descriptor, non-blocking; it belongs to the caller.

    Attributes:
        fresh: whether the library knows nothing of the connection yet.
        ready: whether something can be said: the handshake is over, and the sending side is open.
    """

    # _rest: encrypted bytes that the kernel did not take; _ahead: how many of the caller's bytes are among
    # them, who holds them for unsent; _mute: bytes that came since the last that meant something.
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
        """Let the library come in; the first byte is here.

        Raises:
            NotTls: the connection is none of TLS, and as it was.
            BlockingIOError: nothing is here after all.
            OSError: the peer is gone.
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
        """Take the handshake as far as a piece of what has arrived allows; return whether it is over.

        Raises:
            BlockingIOError: nothing has arrived.
            ssl.SSLWantWriteError: the kernel takes no more at present.
            OSError: it failed; the peer was told why, or is gone.
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

    def read(self, limit: int) -> bytes:
        """As `os.read`: b"" at the end, with or without TLS's goodbye.

        What the library has decrypted is never left behind, for epoll would not tell of it: so it may be as
        much as a record more than `limit`.

        Raises:
            BlockingIOError: no complete record is here.
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
        """The peer said goodbye; with its side shut, epoll tells of that though data came with it."""
        self._ended = True
        with suppress(OSError), sockets.borrowed(self._fd) as sock:
            sock.shutdown(socket.SHUT_RD)

    def write(self, data: bytes | bytearray) -> int:
        """As `os.write`; what was not taken must be offered again, more behind it or not.

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
        """Say that nothing more is coming; the peer's own goodbye is not waited for."""
        if self.ready:
            self.ready = False
            with suppress(OSError, ValueError):  # he has not said goodbye yet
                self._tls.unwrap()
            self._collect()

    def _collect(self) -> None:
        """Send what the library has to say, as far as the kernel takes it."""
        self._unsent += self._outgoing.read()
        with suppress(OSError):  # gone: the next read says so
            self._flush()

    def _flush(self) -> bool:
        """Send what is encrypted; return whether all of it left."""
        if self._unsent:
            with suppress(BlockingIOError):
                self._unsent = self._unsent[os.write(self._fd, self._unsent) :]
        return not self._unsent

    def _must_flush(self) -> None:
        if not self._flush():
            raise ssl.SSLWantWriteError
