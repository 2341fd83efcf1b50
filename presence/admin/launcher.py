"""The process that serves operators beside a server, seen from the server.

The address is bound here, so that it is known before anything is ready, and that a process which is started
anew listens at the same one. From then on nobody waits for that process, whatever becomes of it: it has the
asking ends of the lines (`presence.server.stats_socket`) and a control line, whose end is its order to end.
`AdminProcess.supervise` starts another when it has ended, or was silent for too long: see
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

from presence.admin.startup import RELOAD, Start
from presence.common.backoff import backoff_s
from presence.config.settings import Settings, admin_host, admin_port
from presence.prefork.arbiter import exit_fields
from presence.prefork.control_pipe import SilenceWatch
from presence.server.listeners import CannotListen, ListenAddress
from presence.server.stats_socket import stats_socket_pair
from presence.transports import sockets

END_S: Final = 0.8  # for requests that are under way; then it is killed, stopped or not
BACKLOG: Final = 128
_CONTROL_S: Final = 1.0  # for the start message, which a kernel takes at once
_HEARD_BYTES: Final = 4096
RETRY_S: Final = 1.0  # after no process could be started, at least
LONG_LIFE_S: Final = 60.0  # a process that lived so long is replaced as if it were the first to end
BACKOFF_FIRST_S: Final = 0.5
BACKOFF_LIMIT_S: Final = 30.0

log = structlog.get_logger("presence.admin.launcher")


class AdminProcess:
    """The process, and what it shares with the server.

    Args:
        settings: checked settings.
        redis_url: where Redis is.
        listeners: sockets that listen; they are closed at the end.
        workers: how many there are to ask.
    """

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
        self._watch = SilenceWatch(settings.hang_timeout, 0.0)
        asking = [each.fileno() for each, _ in self._lines]
        heard = tuple(each.fileno() for each in listeners)
        start = Start(settings, redis_url, heard, tuple(asking), self.address, self.url)
        self._message = start.packed()
        self._descriptors = [*heard, *asking]
        self._start()

    def line(self, number: int = 1) -> socket.socket:
        """Return the answering end of a worker's line; workers count from 1."""
        return self._lines[number - 1][1]

    def become_worker(self, number: int) -> socket.socket:
        """Forget, in a process that was forked, all but the end that is returned: that worker's own."""
        own = self.line(number)
        self._hang_up()
        self._close_all_but(own)
        return own

    def supervise(self) -> float | None:
        """Start the process again if it has ended, with a pause if it ends soon again, and end one that
        hangs; waits for nobody. To be called about each second.

        Returns:
            In how many seconds this must be called again at the latest; None: when the process has ended.
        """
        if self._process is not None:
            self._hear()
            status = self._process.poll()
            if status is None:
                if self._watch.is_hung(time.monotonic()):
                    log.error("admin process hung, killing it")
                    self._process.kill()
                    self._watch = SilenceWatch(math.inf, time.monotonic())  # so that it is logged once
                return None
            self._ended(status)
        if time.monotonic() >= self._start_at:
            self._start()
        return None if self._process is not None else max(0.0, self._start_at - time.monotonic())

    def _hear(self) -> None:
        if self._control is not None:
            with suppress(OSError):  # nothing came
                if self._control.recv(_HEARD_BYTES):
                    self._watch.heartbeat()

    def reload(self) -> None:
        """Have the files read again whose content may change."""
        if self._control is not None:
            with suppress(OSError):  # nobody is there, or nobody takes it
                self._control.send(RELOAD)

    def stop(self) -> None:
        """End the process; takes at most `END_S`."""
        self._hang_up()
        if self._process is not None:
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._close_all_but(None)

    def _start(self) -> None:
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            self._put_off(error)
            return
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, *_path_flags(), "-m", "presence.admin"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                pass_fds=self._descriptors,
                start_new_session=True,  # Ctrl-C on the terminal is the server's to act on
            )
        except OSError as error:  # no memory, or no room for one more process: users come first
            ours.close()
            self._put_off(error)
            return
        finally:
            theirs.close()
        self._started_at, self._control = time.monotonic(), ours
        self._watch = SilenceWatch(self._hang_timeout_s, self._started_at)
        try:
            ours.settimeout(_CONTROL_S)
            ours.sendall(self._message)
            ours.setblocking(False)  # from here on nothing waits for the other end
        except OSError:
            self._hang_up()  # so it ends, if it has not, and another is started

    def _ended(self, status: int) -> None:
        uptime_s = time.monotonic() - self._started_at
        self._process = None
        self._hang_up()
        self._failures = 1 if uptime_s >= LONG_LIFE_S else self._failures + 1
        self._start_at = time.monotonic() + pause_s(self._failures)
        log.error(
            "admin process exited, restarting",
            **exit_fields(status),
            uptime_s=round(uptime_s, 1),
            pause_s=pause_s(self._failures),
        )

    def _put_off(self, error: OSError) -> None:
        self._failures += 1
        self._start_at = time.monotonic() + max(RETRY_S, pause_s(self._failures))
        log.error("cannot start admin process", error=error.strerror or str(error))

    def _close_all_but(self, own: socket.socket | None) -> None:
        for each in (*self._listeners, *(end for line in self._lines for end in line)):
            if each is not own:
                each.close()

    def _hang_up(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None


@contextmanager
def serving(
    settings: Settings, redis_url: str, *, asked_for: bool, workers: int = 1
) -> Iterator[AdminProcess]:
    """Serve operators for the length of a ``with`` block.

    Args:
        settings: checked settings.
        redis_url: where Redis is.
        asked_for: whether `settings.admin` is what somebody wants. Else another port will do.
        workers: how many there are to ask.

    Raises:
        CannotListen: the address that was asked for cannot be had.
    """
    admin_process = AdminProcess(settings, redis_url, _listening(settings, asked_for), workers)
    log.info("admin HTTP server starting", url=admin_process.url)
    try:
        yield admin_process
    finally:
        admin_process.stop()


def pause_s(ends: int) -> float:
    """Return how long to wait after so many ends in a row: the first is made good immediately."""
    return backoff_s(ends - 2, BACKOFF_FIRST_S, BACKOFF_LIMIT_S) if ends > 1 else 0.0


def _listening(settings: Settings, asked_for: bool) -> list[socket.socket]:
    host, port = admin_host(settings.admin), admin_port(settings.admin)
    try:
        listeners = sockets.open_listeners(host, port)
    except OSError as error:
        if asked_for:
            raise CannotListen(settings.admin, error) from error
        log.warning("admin port in use, using another", address=settings.admin, error=error.strerror)
        listeners = sockets.open_listeners(host, 0)
    for each in listeners:
        each.listen(BACKLOG)
    return listeners


def _address_of(listeners: list[socket.socket]) -> ListenAddress:
    host, port = listeners[0].getsockname()[:2]
    return ListenAddress(host, port)


def _path_flags() -> list[str]:
    """Return what keeps a process from loading modules of the working directory, unless we do."""
    return [] if os.getcwd() in sys.path or "" in sys.path else ["-P"]
