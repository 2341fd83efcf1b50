"""One connection through a proxy: two sockets and the two ways between them."""

import contextlib
import math
import socket
import time
from collections.abc import Callable
from typing import Final

import hiredis

from loadtest.proxy.common import Common, Way
from loadtest.proxy.end import End
from loadtest.proxy.replies import Request
from loadtest.proxy.transit import Mark, Transit

READ_BYTES: Final = 65536
KEPT_BYTES_MAX: Final = 1 << 20  # of one way of one connection, as a large TCP window; then it is not read
QUIET_S: Final = 0.02  # after the last answer; more of the same request would come by then


class Connection:
    """Passes on what two sockets send each other.

    Args:
        near: to whoever has connected.
        far: to the target; it may still be connecting.
        common: what all connections share.
        forget: called when it closes.
    """

    def __init__(self, near: End, far: End, common: Common, forget: Callable[["Connection"], None]) -> None:
        self.near, self.far = near, far
        self.is_closed = False
        self._is_connecting = True
        self._forget = forget
        self.up = Pipe(self, near, far, Way.UP, common)
        self.down = Pipe(self, far, near, Way.DOWN, common)
        self._common = common
        self._request: Request | None = None
        self._last: Way | None = None

    def note(self, fd: int, events: int) -> None:
        """Take note of what the kernel told of one of the sockets, and go on."""
        end = self.near if fd == self.near.fd else self.far
        if end is self.far and self._is_connecting:
            if end.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._common.injected.unreachable += 1
                self.close(reset=True)
                return
            self._is_connecting = False
            self._common.injected.connections += 1
        end.note(events)
        self.take_turns()

    def take_turns(self) -> None:
        """Pass on what can be."""
        self.up.turn()
        self.down.turn()

    def close(self, *, reset: bool) -> None:
        """Close both sockets at once."""
        self.is_closed = True
        self._forget(self)
        self.near.close(reset=reset)
        self.far.close(reset=reset)

    def close_if_over(self) -> None:
        """Close it if nothing can go through any more, either way."""
        if self.up.is_over and self.down.is_over and not self.is_closed:
            self.close(reset=False)

    def intercept(self, way: Way, data: bytes) -> bytes:
        """Look at what came for a request whose reply is to be lost; return what goes on of it."""
        last, self._last = self._last, way
        if self._request is None:
            # While a request is under way it is too late to lose its reply.
            if way is Way.DOWN or last is Way.UP or not self._common.takes(data):
                return data
            self._request = Request()
        request = self._request
        try:
            if way is Way.UP:
                request.asked(data)
                return data
            request.answered(data)
        except hiredis.HiredisError:  # it was no request: others may be
            self._request = None
            return data if way is Way.UP else request.reply
        if request.is_done:
            self._common.at(time.monotonic() + QUIET_S, self._drop)
        return b""

    def _drop(self) -> None:
        self.take_turns()
        if not self.is_closed and self._request and self._request.is_done:
            self._common.injected.replies_dropped += 1
            self.close(reset=True)


class Pipe:
    """One way of a connection.

    Attributes:
        is_over: whether nothing is sent any more: the end was passed on, or there is nobody to send to.
    """

    def __init__(self, connection: Connection, source: End, sink: End, way: Way, common: Common) -> None:
        self.is_over = False
        self._connection = connection
        self._source, self._sink = source, sink
        self._way = way
        self._common = common
        self._transit = Transit()
        self._timer = math.inf
        self._has_turn = False
        self._has_ended = False

    def turn(self) -> None:
        """Read a piece, send what is due, and ask for another turn if there may be more."""
        if self._connection.is_closed:
            return
        self._read()
        if self._transit:
            self._send()
        if self._source.is_readable and self._transit.size < KEPT_BYTES_MAX:
            self._again()

    def _again(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            self._common.soon(self._next_turn)

    def _next_turn(self) -> None:
        self._has_turn = False
        self.turn()

    def _on_time(self) -> None:
        self._timer = math.inf
        self.turn()

    def _read(self) -> None:
        source = self._source
        if not source.is_readable or self._transit.size >= KEPT_BYTES_MAX:
            return
        try:
            data = source.sock.recv(READ_BYTES)
        except BlockingIOError:
            source.is_readable = False
        except OSError:
            self._end(Mark.RESET)
        else:
            if data:
                source.is_readable = source.has_hung_up or len(data) == READ_BYTES
                self._put(data)
            else:
                self._end(Mark.RESET if source.is_broken else Mark.END)

    def _end(self, mark: Mark) -> None:
        self._source.is_readable = False
        if not self._has_ended:
            self._has_ended = True
            self._transit.put(mark, time.monotonic(), self._common.faults[self._way])

    def _put(self, data: bytes) -> None:
        injected, faults = self._common.injected, self._common.faults[self._way]
        injected.bytes += len(data)
        if faults.blackhole:
            injected.held_bytes += len(data)
        elif faults.delays:
            injected.delayed_bytes += len(data)
        if not self.is_over and (data := self._connection.intercept(self._way, data)):
            pieces = self._transit.put(data, time.monotonic(), faults)
            injected.cuts += pieces - 1

    def _send(self) -> None:
        faults, transit, sink = self._common.faults[self._way], self._transit, self._sink
        if faults.blackhole:
            return
        now = time.monotonic()
        while sink.is_writable and transit.due <= now and not self._connection.is_closed:
            data = transit.take()
            if isinstance(data, Mark):
                self._pass_on(data)
                return
            self._write(data)
            if faults.slice_bytes and transit:  # a turn for others, or the pieces arrive together
                break
        if not self._connection.is_closed and transit and sink.is_writable:
            self._wait_for(transit.due, now)

    def _wait_for(self, due: float, now: float) -> None:
        if due <= now:
            self._again()
        elif due < self._timer:
            self._timer = due
            self._common.at(due, self._on_time)

    def _write(self, data: bytes) -> None:
        sink = self._sink
        try:
            sent = sink.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # it is gone: what it sent before, its end among it, takes the other way
            sink.is_broken = True
            sink.is_readable = True
            self._transit.clear()
            self._finish()
            self._connection.take_turns()
            return
        if sent < len(data):
            sink.is_writable = False
            self._transit.put_back(data[sent:])

    def _pass_on(self, mark: Mark) -> None:
        if mark is Mark.RESET:
            self._connection.close(reset=True)
            return
        with contextlib.suppress(OSError):  # it has gone meanwhile
            self._sink.sock.shutdown(socket.SHUT_WR)
        self._finish()

    def _finish(self) -> None:
        self.is_over = True
        self._connection.close_if_over()
