"""Several workers on one port.

Each worker is a server process of its own; the kernel distributes connections among their listeners
(`SO_REUSEPORT`), in rotation (see `presence.transports.accept_rotation`). The supervisor reserves the
addresses with sockets that are bound and never listen, and handles no connection. The users of a worker that
dies do not go offline: they log in again at another one.

Tests: `tests/server/test_reload.py`, `tests/system/end_to_end/test_workers.py`.
"""

import secrets
import socket
from collections.abc import Callable
from functools import partial
from typing import Protocol

import structlog

from presence.common import logs
from presence.common.logs import DirectWriter
from presence.common.scarcity import fault_fields
from presence.config.settings import Settings
from presence.prefork.arbiter import Arbiter
from presence.prefork.control_pipe import ControlPipe
from presence.prefork.systemd import SILENT, Notifier
from presence.server import credentials, listeners, process

log = structlog.get_logger("presence.server.supervisor")


class AdminSupervision(Protocol):
    """The admin process as its parent sees it."""

    def become_worker(self, number: int) -> socket.socket:
        """In a forked worker, close all stats sockets but the worker's own; return that."""

    def reload(self) -> None:
        """Make the process reread its files; never raises."""


def run(
    settings: Settings,
    redis_url: str,
    writer: DirectWriter,
    reread: Callable[[], None],
    notifier: Notifier = SILENT,
    *,
    admin_process: AdminSupervision | None = None,
    supervise_others: Callable[[], float | None] = lambda: None,
    announce: Callable[[str, int], None] = lambda _host, _port: None,
) -> int:
    """Run `settings.workers` workers until a stop signal or a worker cannot start; return the exit status.

    `reread` logs settings that SIGHUP cannot change, and may block or fail; `announce` gets host and port
    once all workers are ready, and never raises. `admin_process` is already running;
    for `supervise_others`, which includes it, see `Arbiter`.
    """
    try:
        reserved = listeners.reserve_addresses(settings)
    except listeners.CannotListen as error:
        log.error("cannot listen", address=error.address, error=error.problem)  # noqa: TRY400 - the error is complete
        return process.FAILED
    settings, family = listeners.with_actual_ports(settings, reserved), secrets.token_hex(4)
    credentials.load_modules(settings)
    process.tune_interpreter()

    def serve(number: int, pipe: socket.socket, _is_first: bool) -> int:
        reserved.close()
        stats_socket = admin_process.become_worker(number) if admin_process else None
        return _work(settings, redis_url, number, family, pipe, stats_socket=stats_socket)

    try:
        return Arbiter(
            settings.workers,
            serve,
            ready_line=process.ready_line(*reserved.address),
            drain_timeout_s=settings.drain_timeout,
            writer=writer,
            reread=reread,
            reload_others=admin_process.reload if admin_process else lambda: None,
            notifier=notifier,
            hang_timeout_s=settings.hang_timeout,
            supervise_others=supervise_others,
            announce=partial(announce, *reserved.address),
        ).run()
    finally:
        reserved.close()


def _work(
    settings: Settings,
    redis_url: str,
    number: int,
    family: str,
    pipe: socket.socket,
    *,
    stats_socket: socket.socket | None = None,
) -> int:
    """Run as worker `number`, from 1, on the port of all workers; return the exit status."""
    lifecycle = ControlPipe(pipe, hang_timeout_s=settings.hang_timeout)
    with logs.configure(settings.log_format, settings.log_level):
        structlog.contextvars.bind_contextvars(worker=number)
        try:
            return process.run(
                settings, redis_url, lifecycle, family=family, stats_socket=stats_socket, worker=number
            )
        except Exception as error:
            structlog.get_logger().error("server failed", **fault_fields(error))
            return process.FAILED
