"""Sockets to Redis for calls on the event loop, see `presence/common/loop_calls.py`.

`LoopConnect` goes before a connection class of redis-py. In a call on the loop its sockets never block: they
let the task wait. In any other call, such as in a command or a thread, they are ordinary sockets.
"""

import errno
import math
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from presence.common.loop_calls import InThread, Pacer, Wait, ask_loop, is_on_loop


class LoopConnect:
    """Connects in a thread if the call runs on the loop, because names are resolved there too."""

    def _connect(self) -> Any:
        connect = super()._connect  # type: ignore[misc]  # of redis-py's class
        return LoopSocket(_connected_in_thread(connect)) if is_on_loop() else connect()


def _connected_in_thread(connect: Callable[[], socket.socket]) -> socket.socket:
    """Return what `connect` returns; if the call is cancelled meanwhile, the socket is closed."""
    made: list[socket.socket] = []
    is_cancelled = False

    def close_unwanted() -> None:
        with suppress(IndexError):  # the other thread does it
            made.pop().close()

    def connect_in_thread() -> None:
        made.append(connect())
        if is_cancelled:
            close_unwanted()

    try:
        ask_loop(InThread(connect_in_thread))
    except BaseException:
        is_cancelled = True
        close_unwanted()
        raise
    return made.pop()


class LoopSocket:
    """A connected socket; what redis-py waits for, the task of the call waits for.

    While more of a long answer has arrived than redis-py can decode in a moment, other tasks get turns.

    Args:
        sock: owned from now on.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._timeout_s = sock.gettimeout()
        self._pacer = Pacer()
        sock.setblocking(False)
        # no other method waits
        self.fileno, self.recv, self.shutdown, self.close = sock.fileno, sock.recv, sock.shutdown, sock.close
        if isinstance(sock, ssl.SSLSocket):
            self.pending = sock.pending

    def settimeout(self, seconds: float | None) -> None:
        """Set for how long one wait may last; None: for ever."""
        self._timeout_s = seconds

    def recv_into(self, buffer: bytearray) -> int:
        """Receive something, at most as much as fits."""
        while True:
            try:
                received = self._sock.recv_into(buffer)
            except (BlockingIOError, ssl.SSLWantReadError):
                self._wait(is_read=True)
            except ssl.SSLWantWriteError:
                self._wait(is_read=False)
            else:
                if self._timeout_s != 0:
                    self._pacer.note(received)
                return received

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._sock.send(rest) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait(is_read=False)
            except ssl.SSLWantReadError:
                self._wait(is_read=True)

    def _wait(self, *, is_read: bool) -> None:
        timeout_s = math.inf if self._timeout_s is None else self._timeout_s
        if timeout_s == 0:
            raise BlockingIOError(errno.EWOULDBLOCK, "nothing has arrived")  # redis-py looks at the number
        self._pacer.rested()
        if not ask_loop(Wait(self._sock, is_read, timeout_s)):
            raise TimeoutError("timed out")
