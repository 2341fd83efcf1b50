"""A socket that never blocks, and the waiting that goes with it, for the blocking client's thread."""

import os
import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from errno import EINPROGRESS
from typing import Any

from presence.client.verbs import READ_BYTES

READABLE = select.POLLIN
WRITABLE = select.POLLOUT
_WAIT_MAX_S = 3600.0  # poll takes no arbitrarily large number
_TRY_AGAIN = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Interrupted(Exception):
    """The wait was ended by `Waiter.interrupt`."""


class Waiter:
    """Waits for a socket; any other thread can end the wait."""

    def __init__(self) -> None:
        self._inside, self._outside = socket.socketpair()
        self._inside.setblocking(False)
        self._outside.setblocking(False)

    def interrupt(self) -> None:
        """End the present wait, or the next one if there is none."""
        with suppress(BlockingIOError):  # it is full of wishes that it end
            self._outside.send(b"!")

    def wait(self, sock: socket.socket | None, events: int, deadline: float) -> None:
        """Wait until `sock` is ready for any of `events`.

        Raises:
            TimeoutError: `deadline`, of the monotonic clock, has come.
            Interrupted: somebody wants that the wait ends.
        """
        poll = select.poll()
        poll.register(self._inside, READABLE)
        if sock is not None:
            poll.register(sock, events)
        while True:
            left_s = deadline - time.monotonic()
            ready = poll.poll(min(_WAIT_MAX_S, max(0.0, left_s)) * 1000)
            if any(fd == self._inside.fileno() for fd, _ in ready):
                with suppress(BlockingIOError):
                    self._inside.recv(READ_BYTES)
                raise Interrupted
            if ready:
                return
            if left_s <= 0:
                raise TimeoutError

    def close(self) -> None:
        """Free both ends."""
        self._inside.close()
        self._outside.close()


Wait = Callable[[socket.socket, int], None]


def open_socket(host: str, port: int, ssl_context: ssl.SSLContext | None, wait: Wait) -> socket.socket:
    """Connect to the first address of `host` that answers. The look-up of the name cannot be interrupted.

    Raises:
        OSError, UnicodeError: no address could be connected to, or the last one's handshake failed.
    """
    failure: OSError | None = None
    for family, kind, proto, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, proto)
        try:
            _connect(sock, address, wait)
            if ssl_context is not None:
                sock = ssl_context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
                _shake_hands(sock, wait)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure or OSError(f"{host} has no address")


def _connect(sock: socket.socket, address: Any, wait: Wait) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    code = sock.connect_ex(address)
    if code == EINPROGRESS:
        wait(sock, WRITABLE)
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def _shake_hands(sock: ssl.SSLSocket, wait: Wait) -> None:
    while True:
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            wait(sock, READABLE)
        except ssl.SSLWantWriteError:
            wait(sock, WRITABLE)
        else:
            return


def receive(sock: socket.socket) -> bytes | None:
    """Return what lies there, ``b""`` at the end of the stream, None if there is nothing yet.

    Raises:
        OSError: the connection broke.
    """
    try:
        return sock.recv(READ_BYTES)
    except _TRY_AGAIN:
        return None


def send(sock: socket.socket, data: bytearray) -> None:
    """Send as much as goes without waiting, and remove it from `data`.

    Raises:
        OSError: the connection broke.
    """
    with suppress(*_TRY_AGAIN):
        while data:
            del data[: sock.send(data)]
