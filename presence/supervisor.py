"""Several workers on one port: started, watched, replaced, drained.

Each worker is a process that serves by itself; the kernel spreads the connections over their listeners
(`SO_REUSEPORT`). The supervisor holds the address, by a socket that is bound and never listens, and touches
no connection.

Workers are forked, not started anew: everything is loaded once, and what is loaded is shared memory. A fork
copies one thread only, so this process must have one: it runs no event loop and writes its log by itself.

A worker that ends unasked is replaced, at once if it had lived for a while, else after a pause that doubles.
Its users are not told about: they log in again, at another worker.

SIGUSR2 renews the workers, one after the other: each drains, and the next one's turn comes when its successor
accepts.
"""

import math
import os
import secrets
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from presence import orders, process, worker
from presence.logs import DirectWriter
from presence.settings import Settings
from presence.transports import tcp
from presence.wakeups import HANDLED, Wakeups

BACKOFF_FIRST_S = 0.5
BACKOFF_LIMIT_S = 30.0
LONG_LIFE_S = (
    60.0  # a worker that lived so long is replaced at once, and its predecessors' failures forgotten
)
STOP_MARGIN_S = 2.0  # beyond the drain time-out, before a worker that hangs is killed

log = structlog.get_logger("presence.supervisor")

Work = Callable[[Settings, str, int, str, socket.socket], int]


@dataclass
class _Worker:
    """A place for a worker, and the process that fills it.

    Attributes:
        number: from 1.
        pid: 0 while there is none.
        line: our end of the socket pair.
        started_at: monotonic seconds.
        start_at: when the next one is due, while there is none.
        failures: ends in a row, each after a short life.
        is_ready: whether it has said that it accepts connections.
        is_renewed: whether it was asked to make room for its successor.
        kill_at: when it is killed, if it was.
    """

    number: int
    pid: int = 0
    line: socket.socket | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    failures: int = 0
    is_ready: bool = False
    is_renewed: bool = False
    kill_at: float = math.inf

    @property
    def pause_s(self) -> float:
        """How long to wait before the next start; 0.0 after a long life."""
        if not self.failures:
            return 0.0
        return min(BACKOFF_LIMIT_S, BACKOFF_FIRST_S * 2.0 ** min(self.failures - 1, 16))


class Supervisor:
    """N workers on one port.

    Args:
        settings: checked settings; `workers` says how many.
        redis_url: where Redis is.
        writer: for the line that says ready.
        work: what a worker's process does; it returns the exit status.
    """

    def __init__(
        self, settings: Settings, redis_url: str, writer: DirectWriter, work: Work = worker.run
    ) -> None:
        self._settings = settings
        self._redis_url = redis_url
        self._writer = writer
        self._work = work
        self._family = secrets.token_hex(4)
        self._workers = [_Worker(number) for number in range(1, settings.workers + 1)]
        self._selector = selectors.DefaultSelector()
        self._reserved: list[socket.socket] = []
        self._to_renew: deque[_Worker] = deque()
        self._told_ready = False
        self._stopping = False
        self._kill_at = 0.0
        self._status = 0

    def run(self) -> int:
        """Run until a signal comes, or until a worker cannot start; return the exit status."""
        try:
            self._reserved = tcp.reserve(self._settings.host, self._settings.port)
        except OSError as error:
            where = f"{self._settings.host}:{self._settings.port}"
            log.error("cannot listen", address=where, error=error.strerror or str(error))  # noqa: TRY400
            return process.FAILED
        port = self._reserved[0].getsockname()[1]
        self._settings = replace(self._settings, port=port)
        process.tune_interpreter()
        with Wakeups(self._selector) as wakeups:
            try:
                self._watch(wakeups)
            finally:
                self._kill_all()
                for sock in self._reserved:
                    sock.close()
        return self._status

    def _watch(self, wakeups: Wakeups) -> None:
        while True:
            self._start_due()
            if self._stopping and not any(each.pid for each in self._workers):
                return
            for key, _ in self._selector.select(self._wait_s()):
                if key.data is not None:
                    self._hear(key.data)
            stops, renewals = wakeups.take_orders()
            for _ in range(stops):
                self._stop()
            if renewals:
                self._renew_all()
            self._reap()
            self._renew_next()

    def _wait_s(self) -> float | None:
        due = [self._kill_at] if self._stopping else []
        if not self._stopping:
            due += [each.kill_at if each.pid else each.start_at for each in self._workers]
            due = [at for at in due if at < math.inf]
        return max(0.0, min(due) - time.monotonic()) if due else None

    # Workers

    def _start_due(self) -> None:
        now = time.monotonic()
        if self._stopping:
            if now >= self._kill_at:
                self._kill_all()
            return
        for each in self._workers:
            if not each.pid and now >= each.start_at:
                self._start(each)
            elif each.pid and now >= each.kill_at:
                log.error("worker is killed: it did not drain in time", worker=each.number, pid=each.pid)
                each.kill_at = math.inf
                os.kill(each.pid, signal.SIGKILL)  # and reaped when the signal comes that it has ended

    def _start(self, each: _Worker) -> None:
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            self._put_off(each, error)
            return
        try:
            pid = os.fork()
        except OSError as error:  # no memory, or no room for one more process: the others go on
            ours.close()
            theirs.close()
            self._put_off(each, error)
            return
        if pid == 0:
            self._be_worker(each.number, theirs, ours)
        theirs.close()
        ours.setblocking(False)
        self._selector.register(ours, selectors.EVENT_READ, each)
        each.pid, each.line, each.started_at = pid, ours, time.monotonic()
        each.is_ready = each.is_renewed = False
        each.kill_at = math.inf
        log.info("worker started", worker=each.number, pid=pid)

    def _put_off(self, each: _Worker, error: OSError) -> None:
        """A worker cannot be started now; before all were ready once, that is the end."""
        log.error("cannot start a worker", worker=each.number, error=error.strerror)
        each.failures += 1
        each.start_at = time.monotonic() + each.pause_s
        if not self._told_ready:
            self._status = process.FAILED
            self._stop()

    def _be_worker(self, number: int, theirs: socket.socket, ours: socket.socket) -> None:
        """The forked process: it must never return into what the supervisor was doing."""
        status = process.FAILED
        try:
            os.setsid()  # Ctrl-C on the terminal is the supervisor's to pass on
            signal.set_wakeup_fd(-1)
            for number_ in HANDLED:
                signal.signal(number_, signal.SIG_DFL)
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            # A sibling must see the end of its line when the supervisor dies, not when we do.
            for key in list(self._selector.get_map().values()):
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()
            self._selector.close()
            ours.close()
            for sock in self._reserved:
                sock.close()
            status = self._work(self._settings, self._redis_url, number, self._family, theirs)
        finally:
            os._exit(status)

    def _hear(self, each: _Worker) -> None:
        if each.line is None:
            return
        try:
            said = each.line.recv(1)
        except OSError:
            said = b""
        if not said:
            self._selector.unregister(each.line)  # it ends; the process is reaped when it has
            each.line.close()
            each.line = None
        elif said == orders.READY:
            each.is_ready = True
            if not self._told_ready and all(other.is_ready for other in self._workers):
                self._told_ready = True
                host, port = self._reserved[0].getsockname()[:2]
                self._writer.raw_line(process.ready_line(host, port))

    def _reap(self) -> None:
        for each in self._workers:
            if each.pid:
                pid, code = os.waitpid(each.pid, os.WNOHANG)
                if pid:
                    self._ended(each, os.waitstatus_to_exitcode(code))

    def _ended(self, each: _Worker, status: int) -> None:
        """A process has ended; `status` is negative if a signal killed it."""
        lived_s, was_ready = time.monotonic() - each.started_at, each.is_ready
        each.pid, each.is_ready = 0, False
        if each.line is not None:
            self._selector.unregister(each.line)
            each.line.close()
            each.line = None
        if self._stopping:
            if status not in (0, -signal.SIGTERM):  # of a worker that was about to handle it, or past that
                self._status = self._status or process.FAILED
                log.error("worker did not end cleanly", worker=each.number, status=status)
            return
        if not self._told_ready and not was_ready:
            # What keeps one from starting keeps all: Redis away, no file limit, an address in use.
            self._status = status if status > 0 else process.FAILED
            self._stop()
            return
        if status == 0:  # as it was asked to, by us or by a signal of its own
            each.failures, each.start_at = 0, 0.0
            log.info("worker drained, and is renewed", worker=each.number)
            return
        each.failures = 0 if lived_s >= LONG_LIFE_S else each.failures + 1
        each.start_at = time.monotonic() + each.pause_s
        log.error(
            "worker ended, and is replaced",
            worker=each.number,
            status=status,
            lived_s=round(lived_s, 1),
            pause_s=each.pause_s,
        )

    # Renewal

    def _renew_all(self) -> None:
        if self._stopping or not self._told_ready:
            log.warning("workers are not renewed: the server is starting or stopping")
            return
        log.info("renewing the workers, one after the other", workers=len(self._workers))
        self._to_renew = deque(self._workers)

    def _renew_next(self) -> None:
        """Ask the next worker to drain once all others accept, and so the one renewed before it."""
        if self._stopping or not self._to_renew:
            return
        if all(each.is_ready and not each.is_renewed for each in self._workers):
            each = self._to_renew.popleft()
            each.is_renewed = True
            each.kill_at = time.monotonic() + self._settings.drain_timeout + STOP_MARGIN_S
            if each.line is not None:
                with suppress(OSError):
                    each.line.send(orders.DRAIN)

    # The end

    def _stop(self) -> None:
        """Drain at the first call, end at once at the second."""
        order = orders.END if self._stopping else orders.DRAIN
        if not self._stopping:
            self._stopping = True
            self._kill_at = time.monotonic() + self._settings.drain_timeout + STOP_MARGIN_S
            log.info("stopping", workers=sum(bool(each.pid) for each in self._workers))
        else:
            log.warning("ended by a second signal")
            self._status = self._status or process.FAILED
            self._kill_at = min(self._kill_at, time.monotonic() + STOP_MARGIN_S)
        for each in self._workers:
            if each.line is not None:
                with suppress(OSError):
                    each.line.send(order)

    def _kill_all(self) -> None:
        """End what is left; nothing is lost by it that a crash would not lose too."""
        for each in self._workers:
            if each.pid:
                log.error("worker is killed: it did not end in time", worker=each.number, pid=each.pid)
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
                os.waitpid(each.pid, 0)
                self._ended(each, -signal.SIGKILL)


def run(settings: Settings, redis_url: str, writer: DirectWriter) -> int:
    """Run `settings.workers` workers until a signal comes; return the exit status."""
    return Supervisor(settings, redis_url, writer).run()
