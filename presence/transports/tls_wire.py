"""One TLS connection of the epoll transport: what `os.read`, `os.write` and `os.close` are to a plain one.

The TLS library reads and writes the descriptor by itself. With buffers in memory between them each connection
would keep what its handshake put into these, 2 KB more; either way a keepalive costs the same.

A fresh wire is a descriptor and nothing else: whoever connects and is silent costs what he does on a plain
port. The library's 14 KB come with the first byte, if that can be the beginning of a handshake.
"""

import errno
import os
import socket
import ssl
from contextlib import suppress

from presence.transports.tls import Certificate

RECORD_BYTES = 16_384  # what one record holds at most, RFC 8446, section 5.1
_HANDSHAKE = b"\x16"  # what the first record of a client is, section 4


class NotTls(Exception):
    """The connection does not begin with a handshake."""


class TlsWire:
    """A connection that is TLS, or is to be. Owns the descriptor.

    Args:
        fd: the descriptor, non-blocking.

    Attributes:
        fresh: whether the library knows nothing of the connection yet.
        ready: whether something can be said: the handshake is over, and the sending side is open.
    """

    __slots__ = ("_fd", "_socket", "fresh", "ready")

    _socket: ssl.SSLSocket

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.fresh = True
        self.ready = False

    def begin(self, certificate: Certificate) -> None:
        """Let the library take the connection over; the first byte is here.

        Raises:
            NotTls: the connection is none of TLS, and as it was.
            BlockingIOError: nothing is here after all.
            OSError: the peer is gone.
        """
        sock = socket.socket(fileno=self._fd)
        try:
            first = _first_byte(sock)
        except OSError:
            sock.detach()
            raise
        if first != _HANDSHAKE:
            sock.detach()
            raise NotTls
        self._fd = -1  # closed by the library if it cannot take it
        context = certificate.context
        self._socket = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self.fresh = False

    def shake(self) -> bool:
        """Take the handshake as far as what has arrived allows; return whether it is over.

        Raises:
            ssl.SSLWantWriteError: the kernel takes no more at present.
            OSError: it failed; the peer was told why, or is gone.
        """
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.ready = True
        return True

    def read(self, limit: int) -> bytes:
        """As `os.read`: b"" at the end, with or without the peer's goodbye. Takes from one record only.

        What is left of a record is nothing that epoll would tell of: whoever got `limit` bytes reads on.

        Raises:
            BlockingIOError: no complete record is here.
            ssl.SSLWantWriteError: the library must write first, and the kernel takes no more at present.
            OSError: the connection is broken.
        """
        try:
            return self._socket.read(limit)
        except ssl.SSLWantReadError:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None

    def write(self, data: bytes | bytearray) -> int:
        """As `os.write`; what was not taken must be offered again, more behind it or not.

        Raises:
            BlockingIOError: the kernel takes nothing at present.
            OSError: the connection is broken.
        """
        sent = 0
        try:
            while sent < len(data):
                sent += self._socket.write(data[sent : sent + RECORD_BYTES])
        except ssl.SSLWantWriteError:
            if not sent:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
        return sent

    def shut(self) -> None:
        """Say that nothing more is coming; the peer's own goodbye is not waited for."""
        if self.ready:
            self.ready = False
            with suppress(OSError, ValueError):  # he has gone, or has not answered yet
                self._socket.unwrap()

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        self.shut()
        if not self.fresh:
            self._socket.close()
        elif self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _first_byte(sock: socket.socket) -> bytes:
    sock.setblocking(False)  # it is; this object does not know
    first = sock.recv(1, socket.MSG_PEEK)
    if not first:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    sock.getpeername()  # that he has gone would else be found out when there is no way back
    return first
