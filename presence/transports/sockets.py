"""TCP sockets: open listeners, and ask the kernel about connections.

Tests: `tests/server/test_listeners.py`, `tests/transports/test_connections.py`.
"""

import _socket
import fcntl
import os
import socket
import struct
import sys
import termios

import trio

from presence.common.clock import Clock

BACKLOG = 4096  # connections waiting to be accepted; Linux caps it at net.core.somaxconn
_TCP_INFO_BYTES = 104
_BYTES_ACKED = struct.Struct("B119xQ")  # the same: tcpi_state, tcpi_bytes_acked, from Linux 4.1 on
_ESTABLISHED = 1  # linux/tcp_states.h: neither side has ended the connection
_LAST_DATA_RECV = struct.Struct("52xI")  # linux/tcp.h, struct tcp_info: tcpi_last_data_recv, ms
_MAX_CALL_S = 0.005  # the kernel is asked again if the call took longer
_MAX_TRIES = 3


def open_listeners(host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    """Return a listening socket for every address of `host`.

    Args:
        host: name or address; a name may stand for several.
        port: 0 picks a free one, the same for all addresses.
        shared: allow other processes of this user to listen there; the kernel spreads the connections.

    Raises:
        OSError: the name is unknown, or an address cannot be bound.
    """
    listeners = _bind(host, port, shared=shared)
    for listener in listeners:
        listener.listen(BACKLOG)
    return listeners


def reserve(host: str, port: int) -> list[socket.socket]:
    """Return bound sockets that reserve an address for listeners that share it; they do not listen.

    A process that listens there already is detected; two that reserve in the same instant are not.

    Raises:
        OSError: the name is unknown, or another process has the address, shared or not.
    """
    for sock in _bind(host, port, shared=False):
        port = sock.getsockname()[1]
        sock.close()
    return _bind(host, port, shared=True)


def _bind(host: str, port: int, *, shared: bool) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        has_ipv4 = any(family == socket.AF_INET for family, *_ in infos)  # a listener of its own
        for family, kind, proto, _name, address in infos:
            listener = socket.socket(family, kind, proto)
            listeners.append(listener)
            if os.name == "posix":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # Accepted connections inherit it: an answer must not wait for the acknowledgement of the previous
            # one.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(has_ipv4))
            listener.bind((address[0], port, *address[2:]))
            port = port or listener.getsockname()[1]
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


class borrowed:
    """Wraps a descriptor in a socket for the length of a ``with`` block, without owning it.

    In the hot path, so it is no generator, and its socket is that of C.
    """

    __slots__ = ("_sock",)

    def __init__(self, fd: int) -> None:
        # The family only says how long an address may be: that of IPv6 has room for all.
        self._sock = _socket.socket(_socket.AF_INET6, _socket.SOCK_STREAM, 0, fd)

    def __enter__(self) -> _socket.socket:
        return self._sock

    def __exit__(self, *_: object) -> None:
        self._sock.detach()


def peer_address(sock: "_socket.socket | trio.socket.SocketType") -> str:
    """Return the address of the peer without its port; "" if the connection is lost."""
    try:
        peer = sock.getpeername()
    except OSError:
        return ""
    return peer[0] if isinstance(peer, tuple) else ""


def receive_queue_age_s(sock: "_socket.socket | trio.socket.SocketType", now: float, clock: Clock) -> float:
    """Return for how many seconds, at `now`, the last data had been here; 0.0 where no kernel tells.

    Args:
        sock: a connected socket.
        now: the time of a moment ago. This process may have been off the CPU since; that time is
            subtracted from what the kernel says.
        clock: whose time that is.
    """
    if not sys.platform.startswith("linux"):
        return 0.0
    for _ in range(_MAX_TRIES):
        asked = clock.now()
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        if clock.now() - asked < _MAX_CALL_S:  # no pause of this process in between
            break
    unread: int = _LAST_DATA_RECV.unpack_from(info)[0]
    return max(0.0, unread / 1000 - (asked - now))


def acknowledged_bytes(sock: "_socket.socket", unsent_bytes: int) -> tuple[int, int] | None:
    """Return how many bytes the peer's kernel has acknowledged since the accept, and how many it will have
    when it has acknowledged all that is on its way, `unsent_bytes` included, which the kernel does not have.

    None where no kernel tells, and for a connection that has ended.
    """
    if not sys.platform.startswith("linux"):
        return None
    fd = sock.fileno()
    for _ in range(_MAX_TRIES):  # an acknowledgement in between belongs to neither number, or to both
        before = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size)
        in_kernel = int.from_bytes(fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        after = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size)
        if len(after) == _BYTES_ACKED.size and before[120:] == after[120:] and after[0] == _ESTABLISHED:
            acked: int = _BYTES_ACKED.unpack(after)[1]
            return acked, acked + in_kernel + unsent_bytes
    return None
