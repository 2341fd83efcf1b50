"""One server in this process: open file limit, memory, signals, exit status.

Tests: `tests/server/test_serve.py`, `tests/cli/test_serve.py`.
"""

import faulthandler
import gc
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import structlog
import trio

from presence.common import files
from presence.common.clock import Clock
from presence.common.errors import StoreError, StoreMismatch, StoreUnavailable
from presence.common.logs import LogWriter
from presence.common.redis_url import redacted
from presence.common.runtime import AbandonableThread, ThreadTimeout
from presence.common.scarcity import fault_fields
from presence.config.settings import Settings
from presence.prefork.arbiter import CannotContinue
from presence.prefork.control_pipe import STOP_SIGNALS
from presence.prefork.systemd import SILENT, Notifier, Watchdog
from presence.server.credentials import CredentialsError
from presence.server.listeners import CannotListen
from presence.server.server import Server

FAILED = 1
REFUSED = 2  # the settings cannot be satisfied
SUPERVISE_INTERVAL_S = 1.0
STANDARD_ERROR = 2  # file descriptor

log = structlog.get_logger("presence.server.server")


class Lifecycle(Protocol):
    """Learns that the server is ready, and decides when it reloads and stops."""

    def send_ready(self, host: str, port: int) -> None:
        """Report that Redis was reached and connections are accepted."""

    def stop_requests(
        self, reload: Callable[[], None], retire: Callable[[], None]
    ) -> AbstractAsyncContextManager[AsyncIterator[None]]:
        """Open the stream of stop requests: the first asks for a drain, the second for an immediate exit.

        `reload` is called to read files again, `retire` before a drain if a successor is ready.
        """


class Signals:
    """The lifecycle of a single server: signals stop and reload it, ``ready HOST:PORT`` is logged.

    Args:
        writer: of the log.
        reread: run in a thread at SIGHUP, may block or fail.
        reload_others: called at SIGHUP, before the server reloads; never raises.
        notifier: to the service manager.
        supervise_others: called every `SUPERVISE_INTERVAL_S`, or after the seconds that it returns if they
            are fewer, until the server stops; `CannotContinue` stops the server. None: there are no other
            processes.
        announce: called with host and port before the line ``ready``; never raises.

    Attributes:
        has_failed: whether another process that the server needs cannot be started.
    """

    def __init__(
        self,
        writer: LogWriter,
        reread: Callable[[], None],
        *,
        reload_others: Callable[[], None] = lambda: None,
        notifier: Notifier = SILENT,
        supervise_others: Callable[[], float | None] | None = None,
        announce: Callable[[str, int], None] = lambda _host, _port: None,
    ) -> None:
        self._writer = writer
        self._reread_settings = reread
        self._reload_others = reload_others
        self._notifier = notifier
        self._supervise = supervise_others  # None from the stop on
        self._announce = announce
        self._address = ""  # the line ``ready``; "" until it was logged
        self._thread = AbandonableThread()  # for a settings file on a dead disk
        self._is_rereading = False
        self._rereads_again = False  # whether it was asked to while one was under way
        self.has_failed = False

    def send_ready(self, host: str, port: int) -> None:
        self._announce(host, port)
        self._address = ready_line(host, port)
        self._writer.raw_line(self._address)
        self._notifier.ready(self._address)

    @asynccontextmanager
    async def stop_requests(
        self, reload: Callable[[], None], _retire: Callable[[], None]
    ) -> AsyncIterator[AsyncIterator[None]]:
        """Run without a successor: a single server has none."""
        with trio.open_signal_receiver(*STOP_SIGNALS, signal.SIGUSR2, signal.SIGHUP) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._notify_watchdog)
                nursery.start_soon(self._supervise_others)
                yield self._requests(signals, reload, nursery)
                nursery.cancel_scope.cancel()

    async def _notify_watchdog(self) -> None:
        """Ping the service manager's watchdog from this event loop."""
        watchdog = Watchdog(self._notifier)
        while (pause_s := watchdog.notify()) is not None:  # noqa: ASYNC110 - paced by time
            await trio.sleep(pause_s)

    async def _supervise_others(self) -> None:
        while self._supervise is not None:
            try:
                due_s = self._supervise()
            except CannotContinue:  # it has been logged
                self.has_failed = True
                signal.raise_signal(signal.SIGTERM)  # drains as on request
                return
            await trio.sleep(SUPERVISE_INTERVAL_S if due_s is None else min(due_s, SUPERVISE_INTERVAL_S))

    async def _reread(self) -> None:
        self._rereads_again = True  # the file may have changed after a call under way has read it
        if self._is_rereading:
            return
        self._is_rereading = True
        while self._rereads_again:
            self._rereads_again = False
            await self._reread_once()
        self._is_rereading = False

    async def _reread_once(self) -> None:
        try:
            await self._thread.call(self._reread_settings)
        except ThreadTimeout as error:
            log.error("settings not reread", error=str(error))  # noqa: TRY400 - the error is complete
        except Exception as error:
            log.error("settings not reread", **fault_fields(error))  # noqa: TRY400 - it has the error

    async def _requests(
        self, signals: AsyncIterator[int], reload: Callable[[], None], nursery: trio.Nursery
    ) -> AsyncIterator[None]:
        async for number in signals:
            if number == signal.SIGUSR2:
                log.warning("rolling restart ignored", reason="needs --workers 2 or more")
            elif number == signal.SIGHUP:
                if self._address:  # a service manager expects a reload only of a service that is ready
                    self._notifier.reloading()
                nursery.start_soon(self._reread)
                self._reload_others()
                reload()
                if self._address:
                    self._notifier.ready(self._address)
            else:
                self._supervise = None  # a process that exits from now on is not restarted
                self._notifier.stopping("draining")
                yield


def ready_line(host: str, port: int) -> str:
    """Return the line on standard error that reports where clients can log in."""
    return f"ready [{host}]:{port}" if ":" in host else f"ready {host}:{port}"


def tune_interpreter() -> None:
    """Tune the interpreter for very many long-lived objects and one busy thread.

    Objects loaded so far are never freed, so garbage collections skip them. A young collection is bounded to
    about a millisecond (100,000 logins: 1.2 ms instead of 7.6 with a threshold of 50,000), and a full one,
    which walks every session (15 ms for 100,000), is made rare. Threads that connect or write the log wait
    half a millisecond for the interpreter instead of five, because they need little.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 100, 50)
    sys.setswitchinterval(0.0005)


def run(
    settings: Settings,
    redis_url: str,
    lifecycle: Lifecycle,
    *,
    family: str = "",
    stats_socket: socket.socket | None = None,
    worker: int = 0,
) -> int:
    """Run the server until `lifecycle` requests a stop; for the other arguments see `Server`.

    Returns:
        The exit status: 0 after a clean stop, 2 if the settings cannot be satisfied, 1 otherwise.
    """
    try:
        limit = files.raise_file_limit(settings.max_connections)
    except files.FileLimitError as error:
        log.error("refusing to start", error=str(error))  # noqa: TRY400 - the message is complete
        return REFUSED
    faulthandler.enable(STANDARD_ERROR)  # at SIGABRT from the supervisor, every thread prints its stack
    log.info("open file limit set", files=limit.files, max_connections=limit.max_connections)
    tune_interpreter()

    def make() -> Server:
        return Server(
            settings,
            redis_url,
            limit.max_connections,
            Clock(),
            family=family,
            stats_socket=stats_socket,
            worker=worker,
        )

    try:
        return trio.run(_run, make, lifecycle, redis_url)
    except CredentialsError as error:  # the file was valid a moment ago
        log.error("refusing to start", error=str(error))  # noqa: TRY400 - as above
        return REFUSED


async def _run(make: Callable[[], Server], lifecycle: Lifecycle, redis_url: str) -> int:
    server = make()
    async with (
        lifecycle.stop_requests(server.reload, server.retire) as requests,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_stop_on_request, requests, server, nursery.cancel_scope)
        try:
            host, port = await nursery.start(server.serve)
        except (StoreUnavailable, StoreMismatch, StoreError) as error:
            log.error("cannot start", redis=redacted(redis_url), error=str(error))  # noqa: TRY400
            nursery.cancel_scope.cancel()
        except CannotListen as error:
            log.error("cannot listen", address=error.address, error=error.problem)  # noqa: TRY400
            nursery.cancel_scope.cancel()
        else:
            lifecycle.send_ready(host, port)
    return 0 if server.stopped else FAILED


async def _stop_on_request(requests: AsyncIterator[None], server: Server, scope: trio.CancelScope) -> None:
    """Drain at the first request, exit immediately at the second."""
    await anext(requests)
    async with trio.open_nursery() as nursery:

        async def exit_immediately() -> None:
            await anext(requests)
            log.warning(
                "second signal received, exiting immediately", left_in_outbox=server.node.outbox.pending
            )
            scope.cancel()

        nursery.start_soon(exit_immediately)
        log.info("stopping", sessions=len(server.node.engine.registry))
        left = await server.stop()
        (log.warning if left else log.info)("stopped", left_in_outbox=left, **server.report())
        scope.cancel()
