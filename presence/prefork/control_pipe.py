"""The control pipe between the supervisor and one of its workers: commands, readiness and heartbeats.

They share a socket pair. The worker writes `READY`, and heartbeats from its event loop; the supervisor writes
`RELOAD` to have files read again, `DRAIN`, and `END` to cut a drain short. `RETIRE` is `DRAIN` for a worker
whose successor is ready. End of file means that the supervisor has died: the worker drains, as it does on a
signal of its own. A signal that reaches supervisor and workers alike, as service managers send it, therefore
counts once and not twice.

A watched process writes `ALIVE` from its event loop only: a loop that hangs is silent, and its process is
replaced. Only silence while the watcher itself ran counts, see `SilenceWatch`.
"""

import math
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import structlog
import trio

log = structlog.get_logger("presence.server.supervisor")

ALIVE: Final = b"b"
MAX_INTERVAL_S: Final = 1.0  # between two heartbeats or checks; shorter ones cost processor time
HEARTBEATS_PER_TIMEOUT: Final = 10  # at least
FIRST_TIMEOUT_S: Final = 30.0  # minimum for the first heartbeat, before which a process loads its modules


def interval_s(timeout_s: float) -> float:
    """Return the seconds between two heartbeats, and between two checks of the watcher."""
    return min(MAX_INTERVAL_S, timeout_s / HEARTBEATS_PER_TIMEOUT)


class SilenceWatch:
    """Measures the silence of a process, counting only time in which the watcher ran.

    `timeout_s`: how long the process may hang; infinity: it is not watched. `silent_s`: seconds since its
    last heartbeat. Times are monotonic seconds.
    """

    def __init__(self, timeout_s: float, now: float) -> None:
        interval = interval_s(timeout_s)
        self._max_gap_s = 2 * interval
        self._limit_s = timeout_s + interval  # the pause between two heartbeats is no silence
        self._first_limit_s = max(self._limit_s, FIRST_TIMEOUT_S)
        self._checked_at = now
        self._had_heartbeat = False
        self.silent_s = 0.0

    def heartbeat(self) -> None:
        self._had_heartbeat = True
        self.silent_s = 0.0

    def is_hung(self, now: float) -> bool:
        """Whether the process hangs; call it at least every `interval_s`, after reading all heartbeats."""
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
    """The worker's end of the control pipe, a socket pair; see `presence.server.process.Lifecycle`.

    If `hang_timeout_s` is infinite, no heartbeats are sent; see `SilenceWatch`.
    """

    def __init__(self, pipe: socket.socket, *, hang_timeout_s: float = math.inf) -> None:
        self._socket = pipe
        self._hang_timeout_s = hang_timeout_s

    def send_ready(self, _host: str = "", _port: int = 0) -> None:
        """Report that this worker is ready; the supervisor knows its address."""
        with suppress(OSError):  # the supervisor has died, which `stop_requests` notices
            self._socket.send(READY)

    @asynccontextmanager
    async def stop_requests(
        self, reload: Callable[[], None] | None = None, retire: Callable[[], None] = lambda: None
    ) -> AsyncIterator[AsyncIterator[None]]:
        """Open the stream of stop requests: the first asks for a drain, the second for an immediate exit.

        `reload` is called to read files again (None: there are none), `retire` before a drain if a successor
        is ready.
        """
        self._socket.setblocking(False)
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
        every_s = interval_s(self._hang_timeout_s)
        while True:
            with suppress(OSError):  # the supervisor is suspended, which it will notice, or dead
                self._socket.send(ALIVE)
            # At whole intervals, as the ticker of a server: one wake of the loop for both.
            await trio.sleep_until((trio.current_time() // every_s + 1) * every_s)

    async def _follow_supervisor(self, once: "_OnceEach", retire: Callable[[], None]) -> None:
        stream = trio.socket.from_stdlib_socket(self._socket)
        while True:
            try:
                command = await stream.recv(1)
            except OSError:
                command = b""
            if command == RELOAD:
                once.reload()
                continue
            if command == RETIRE:
                retire()
            if not command and not once.is_draining:
                log.warning("supervisor is gone, draining")
            once.drain()
            if command == END:
                once.end()
            if not command:
                return


class _OnceEach:
    """Merges requests from signals and supervisor: at most one to drain, and one to exit."""

    def __init__(self, sender: "trio.MemorySendChannel[None]", reload: Callable[[], None] | None) -> None:
        self._sender = sender
        self._reload = reload
        self.is_draining = self._ending = False

    def drain(self) -> None:
        if not self.is_draining:
            self.is_draining = True
            self._sender.send_nowait(None)

    def end(self) -> None:
        if not self._ending:
            self._ending = True
            self._sender.send_nowait(None)

    def reload(self) -> None:
        if self._reload is not None and not self.is_draining:
            self._reload()


async def _follow_signals(signals: AsyncIterator[int], once: _OnceEach) -> None:
    async for number in signals:
        if number == signal.SIGHUP:
            once.reload()
        else:
            once.drain()
