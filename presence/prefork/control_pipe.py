"""What a supervisor and one of its workers say to each other.

They share a socket pair. The worker writes `READY`, and heartbeats from its event loop; the supervisor writes
`RELOAD` when files are to be read again, `DRAIN` and, if that takes too long for somebody, `END`. `RETIRE` is
`DRAIN` for a worker whose successor is at work. The end of the stream means that the supervisor has died: the
worker drains, as it does on a signal of its own. So a signal that reaches supervisor and workers alike, as a
service manager sends it, is one order and not two.

A process that is watched writes `ALIVE` from its event loop alone: a loop that stands still is silent, and
its process is replaced. Only silence while the watcher itself ran counts, see `SilenceWatch`.
"""

import math
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import trio

ALIVE: Final = b"b"
MAX_INTERVAL_S: Final = 1.0  # between two heartbeats, or two looks; shorter ones cost processor time
HEARTBEATS_PER_TIMEOUT: Final = 10  # at least
FIRST_TIMEOUT_S: Final = 30.0  # for the first heartbeat, at least: a process has to load its modules before


def interval_s(timeout_s: float) -> float:
    """Return the seconds between two heartbeats, and between two looks of the watcher."""
    return min(MAX_INTERVAL_S, timeout_s / HEARTBEATS_PER_TIMEOUT)


class SilenceWatch:
    """How long a process has been silent, in seconds in which its watcher ran.

    Args:
        timeout_s: a process that stands still for no longer than that is left alone; infinity: nobody is
            watched.
        now: monotonic seconds.

    Attributes:
        silent_s: seconds since its last heartbeat.
    """

    def __init__(self, timeout_s: float, now: float) -> None:
        interval = interval_s(timeout_s)
        self._max_gap_s = 2 * interval
        self._limit_s = timeout_s + interval  # what lies between two heartbeats is no silence
        self._first_limit_s = max(self._limit_s, FIRST_TIMEOUT_S)
        self._checked_at = now
        self._had_heartbeat = False
        self.silent_s = 0.0

    def heartbeat(self) -> None:
        """A heartbeat came."""
        self._had_heartbeat = True
        self.silent_s = 0.0

    def is_hung(self, now: float) -> bool:
        """Look, at least each `interval_s`, with all heartbeats read that have come."""
        self.silent_s += min(now - self._checked_at, self._max_gap_s)
        self._checked_at = now
        return self.silent_s > (self._limit_s if self._had_heartbeat else self._first_limit_s)


STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
READY = b"r"
DRAIN = b"d"
RETIRE = b"t"
END = b"e"
RELOAD = b"h"


class ControlPipe:
    """The supervisor as whoever is told that a worker is ready, and gives it orders.

    Args:
        line: the worker's end of the socket pair.
        hang_timeout_s: see `SilenceWatch`; infinity: there are no heartbeats.
    """

    def __init__(self, line: socket.socket, *, hang_timeout_s: float = math.inf) -> None:
        self._line = line
        self._hang_timeout_s = hang_timeout_s

    def send_ready(self, _host: str = "", _port: int = 0) -> None:
        """Say that this worker is at work; the supervisor knows where."""
        with suppress(OSError):  # the supervisor is gone, which `stop_requests` notices
            self._line.send(READY)

    @asynccontextmanager
    async def stop_requests(
        self, reload: Callable[[], None] | None = None, retire: Callable[[], None] = lambda: None
    ) -> AsyncIterator[AsyncIterator[None]]:
        """Open the source of orders: the first asks for a drain, the second for an end at once.

        Args:
            reload: called when files are to be read again; None where there are none.
            retire: called before a drain for which there is a successor already.
        """
        self._line.setblocking(False)
        sender, requests = trio.open_memory_channel[None](2)
        handled = (*STOP_SIGNALS, signal.SIGHUP) if reload else STOP_SIGNALS
        with trio.open_signal_receiver(*handled) as signals:
            async with trio.open_nursery() as nursery:
                once = _OnceEach(sender, reload)
                nursery.start_soon(_follow_signals, signals, once)
                nursery.start_soon(self._follow_supervisor, once, retire)
                if self._hang_timeout_s < math.inf:
                    nursery.start_soon(self._send_heartbeats)
                yield requests
                nursery.cancel_scope.cancel()

    async def _send_heartbeats(self) -> None:
        while True:
            with suppress(OSError):  # a supervisor that is stopped, and will know that it was; or none
                self._line.send(ALIVE)
            await trio.sleep(interval_s(self._hang_timeout_s))

    async def _follow_supervisor(self, once: "_OnceEach", retire: Callable[[], None]) -> None:
        line = trio.socket.from_stdlib_socket(self._line)
        while True:
            try:
                order = await line.recv(1)
            except OSError:
                order = b""
            if order == RELOAD:
                once.reload()
                continue
            if order == RETIRE:
                retire()
            once.drain()
            if order == END:
                once.end()
            if not order:
                return


class _OnceEach:
    """Turns what comes from two sides into at most one order to drain, and one to end."""

    def __init__(self, sender: "trio.MemorySendChannel[None]", reload: Callable[[], None] | None) -> None:
        self._sender = sender
        self._reload = reload
        self._draining = self._ending = False

    def drain(self) -> None:
        if not self._draining:
            self._draining = True
            self._sender.send_nowait(None)

    def end(self) -> None:
        if not self._ending:
            self._ending = True
            self._sender.send_nowait(None)

    def reload(self) -> None:
        if self._reload is not None and not self._draining:
            self._reload()


async def _follow_signals(signals: AsyncIterator[int], once: _OnceEach) -> None:
    async for number in signals:
        if number == signal.SIGHUP:
            once.reload()
        else:
            once.drain()
