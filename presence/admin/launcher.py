"""Starts and supervises the admin process from the server.

The address is bound here, so that it is known before anything is ready, and a restarted process listens on
the same one. The server never waits for that process: it has the requesting ends of the lines
(`presence.server.stats_socket`) and a control connection, whose closing tells it to stop.
`AdminProcess.supervise` starts another when it has exited, or was silent for too long: see
`presence.prefork.control_pipe`.
"""

import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import structlog

from presence.admin.start_message import RELOAD, StartMessage
from presence.common.backoff import backoff_s
from presence.common.scarcity import scarcity
from presence.config.settings import Settings, admin_host, admin_port
from presence.prefork.arbiter import exit_fields
from presence.prefork.control_pipe import SilenceWatch, interval_s
from presence.server.listeners import CannotListen, ListenAddress
from presence.server.stats_socket import stats_socket_pair
from presence.transports import sockets

STOP_TIMEOUT_S: Final = 0.8  # for requests in progress; then it is killed
LISTEN_BACKLOG: Final = 128
_START_TIMEOUT_S: Final = 1.0  # for sending the start message, which the kernel buffers
_HEARTBEAT_BYTES: Final = 4096
RETRY_S: Final = 1.0  # at least, after a process could not be started
STABLE_AFTER_S: Final = 60.0  # after so long a run the restart delay starts over
BACKOFF_FIRST_S: Final = 0.5
BACKOFF_LIMIT_S: Final = 30.0

log = structlog.get_logger("presence.admin.launcher")


class AdminProcess:
    """The admin process, and the sockets that it shares with the server; `stop` closes them."""

    def __init__(
        self, settings: Settings, redis_url: str, listeners: list[socket.socket], workers: int
    ) -> None:
        self.address = _address_of(listeners)
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        self.url = f"http://{host}:{self.address.port}/"
        self._lines = [stats_socket_pair() for _ in range(workers)]
        self._listeners = listeners
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = self._start_at = 0.0
        self._failures = 0
        self._hang_timeout_s = settings.hang_timeout
        self._interval_s = interval_s(settings.hang_timeout)
        self._watch = SilenceWatch(settings.hang_timeout, 0.0)
        asking = [each.fileno() for each, _ in self._lines]
        listening = tuple(each.fileno() for each in listeners)
        start = StartMessage(settings, redis_url, listening, tuple(asking), self.address, self.url)
        self._message = start.packed()
        self._descriptors = [*listening, *asking]
        self._start()

    def line(self, number: int = 1) -> socket.socket:
        """Return the answering end of a worker's line; numbers start at 1."""
        return self._lines[number - 1][1]

    def become_worker(self, number: int) -> socket.socket:
        """In a forked worker, close everything except its own end of a line, and return that."""
        own = self.line(number)
        self._close_control()
        self._close_all_but(own)
        return own

    def supervise(self) -> float:
        """Restart the process if it has exited, with a delay if it keeps exiting, and kill it if it hangs.

        Does not block. Call it also when the process has exited.

        Returns:
            Within how many seconds to call this again.
        """
        if self._process is not None:
            self._read_heartbeats()
            status = self._process.poll()
            if status is None:
                if self._watch.is_hung(time.monotonic()):
                    log.error("admin process hung, killing it")
                    self._process.kill()
                    self._watch = SilenceWatch(math.inf, time.monotonic())  # log it only once
                return self._interval_s
            self._restart_later(status)
        if time.monotonic() >= self._start_at:
            self._start()
        return self._interval_s if self._process is not None else max(0.0, self._start_at - time.monotonic())

    def _read_heartbeats(self) -> None:
        if self._control is not None:
            with suppress(OSError):  # nothing to read
                if self._control.recv(_HEARTBEAT_BYTES):
                    self._watch.heartbeat()

    def reload(self) -> None:
        """Make the process reread its files."""
        if self._control is not None:
            with suppress(OSError):  # it is gone, or does not read
                self._control.send(RELOAD)

    def stop(self) -> None:
        """Stop the process; takes at most `STOP_TIMEOUT_S`."""
        self._close_control()
        if self._process is not None:
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._close_all_but(None)

    def _start(self) -> None:
        try:
            ours, theirs = socket.socketpair()
        except (OSError, MemoryError) as error:
            self._defer_start(error)
            return
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, *_path_flags(), "-m", "presence.admin"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                pass_fds=self._descriptors,
                start_new_session=True,  # Ctrl-C on the terminal is handled by the server
            )
        except (OSError, MemoryError) as error:  # out of memory or processes: clients have priority
            ours.close()
            self._defer_start(error)
            return
        finally:
            theirs.close()
        self._started_at, self._control = time.monotonic(), ours
        self._watch = SilenceWatch(self._hang_timeout_s, self._started_at)
        try:
            ours.settimeout(_START_TIMEOUT_S)
            ours.sendall(self._message)
            ours.setblocking(False)  # from here on sends do not block
        except OSError:
            self._close_control()  # this stops it, and another is started

    def _restart_later(self, status: int) -> None:
        uptime_s = time.monotonic() - self._started_at
        self._process = None
        self._close_control()
        self._failures = 1 if uptime_s >= STABLE_AFTER_S else self._failures + 1
        self._start_at = time.monotonic() + restart_delay_s(self._failures)
        log.error(
            "admin process exited, restarting",
            **exit_fields(status),
            uptime_s=round(uptime_s, 1),
            pause_s=restart_delay_s(self._failures),
        )

    def _defer_start(self, error: Exception) -> None:
        self._failures += 1
        self._start_at = time.monotonic() + max(RETRY_S, restart_delay_s(self._failures))
        log.error("cannot start admin process", error=scarcity(error) or str(error))

    def _close_all_but(self, own: socket.socket | None) -> None:
        for each in (*self._listeners, *(end for line in self._lines for end in line)):
            if each is not own:
                each.close()

    def _close_control(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None


@contextmanager
def running_admin_process(
    settings: Settings, redis_url: str, *, asked_for: bool, workers: int = 1
) -> Iterator[AdminProcess]:
    """Run the admin process for the duration of a ``with`` block.

    `asked_for`: whether `settings.admin` was given; otherwise another port may be used.

    Raises:
        CannotListen: the given address is not available.
    """
    admin_process = AdminProcess(settings, redis_url, _open_listeners(settings, asked_for), workers)
    log.info("admin HTTP server starting", url=admin_process.url)
    try:
        yield admin_process
    finally:
        admin_process.stop()


def restart_delay_s(ends: int) -> float:
    """Return the delay after so many consecutive exits; the first restart is immediate."""
    return backoff_s(ends - 2, BACKOFF_FIRST_S, BACKOFF_LIMIT_S) if ends > 1 else 0.0


def _open_listeners(settings: Settings, asked_for: bool) -> list[socket.socket]:
    host, port = admin_host(settings.admin), admin_port(settings.admin)
    try:
        listeners = sockets.open_listeners(host, port)
    except OSError as error:
        if asked_for:
            raise CannotListen(settings.admin, error) from error
        log.warning("admin port in use, using another", address=settings.admin, error=error.strerror)
        listeners = sockets.open_listeners(host, 0)
    for each in listeners:
        each.listen(LISTEN_BACKLOG)
    return listeners


def _address_of(listeners: list[socket.socket]) -> ListenAddress:
    host, port = listeners[0].getsockname()[:2]
    return ListenAddress(host, port)


def _path_flags() -> list[str]:
    """Return the flags that prevent loading modules from the working directory, unless we do."""
    return [] if os.getcwd() in sys.path or "" in sys.path else ["-P"]
