"""One of the two sockets of a connection.

It is watched edge by edge: an event says that a socket has become readable or writable, and it counts as
that until a call says otherwise. So nothing need be told to the kernel while bytes are kept.
"""

import contextlib
import select
import socket
import struct
from typing import Final

EVENTS: Final = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_HUNG_UP: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s


class End:
    """One of the two sockets.

    Attributes:
        sock, fd: the socket and its descriptor.
        is_readable, is_writable: whether it is worth a try.
        has_hung_up: whether the other side sends no more than what is there.
        is_broken: whether something could not be sent to it.
    """

    def __init__(self, sock: socket.socket, *, is_writable: bool) -> None:
        self.sock, self.fd = sock, sock.fileno()
        self.is_readable = False
        self.is_writable = is_writable
        self.has_hung_up = False
        self.is_broken = False
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def note(self, events: int) -> None:
        """Take note of what the kernel told."""
        if events & (select.EPOLLIN | _HUNG_UP):
            self.is_readable = True
            self.has_hung_up |= bool(events & _HUNG_UP)
        if events & select.EPOLLOUT:
            self.is_writable = True

    def close(self, *, reset: bool) -> None:
        """Close it; with `reset` the other side is told so, where the kind of socket can."""
        if reset:
            with contextlib.suppress(OSError):
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.sock.close()
