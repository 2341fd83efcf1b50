"""The supervisor of worker processes: starts, watches, replaces, restarts and drains them.

Workers are forked: modules are loaded once, and their memory is shared. A fork copies one thread only, so
this process must have one thread: it runs no event loop and writes its log directly.

A worker that exits unexpectedly is replaced: immediately after a long life, else after a pause that doubles.
A worker whose event loop hangs is killed and replaced. `presence.prefork.control_pipe` defines what workers
and this process exchange. SIGUSR2 starts a rolling restart: for one worker after the other a successor is
started, and once it is ready the old worker drains. A successor that does not become ready aborts the rolling
restart, and the remaining workers stay. SIGHUP makes all workers reload their files, and a short-lived child
reread the settings: a dead disk or an error there concerns that child alone.

Tests: `tests/admin/test_launcher.py`, `tests/server/test_embedded_supervisor.py`,
`tests/system/end_to_end/test_workers.py`.
"""

import math
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog

from presence.common.backoff import backoff_s
from presence.common.logs import DirectWriter
from presence.common.scarcity import fault_fields
from presence.prefork import control_pipe
from presence.prefork.control_pipe import ALIVE, STOP_SIGNALS, SilenceWatch, interval_s
from presence.prefork.systemd import SILENT, Notifier, Watchdog

# A worker that lived this long is replaced immediately, and earlier failures no longer count.
LONG_LIFE_S: Final = 60.0
STOP_MARGIN_S: Final = 2.0  # beyond the drain time-out, until a worker is killed
ABORT_TIMEOUT_S: Final = 0.5  # for a hung worker to print its stacks; a stopped one cannot
START_TIMEOUT_S: Final = 30.0  # for a successor to become ready: ten seconds for Redis, and slow disks
KILL_TIMEOUT_S: Final = 1.0  # for killed processes to exit: one that waits for a disk may not
REREAD_TIMEOUT_S: Final = 10  # for the settings file, which is read in milliseconds unless its disk hangs
FEW_DESCRIPTORS: Final = 4096  # this process has some tens
READ_BYTES: Final = 4096
BACKOFF_FIRST_S: Final = 0.5
BACKOFF_LIMIT_S: Final = 30.0
HANDLED: Final = (*STOP_SIGNALS, signal.SIGUSR2, signal.SIGCHLD)
FAILED: Final = 1
START_TIMED_OUT: Final = "worker start timed out, killing it"
STOP_TIMED_OUT: Final = "worker stop timed out, killing it"

log = structlog.get_logger("presence.server.supervisor")


class CannotContinue(Exception):
    """A child that all workers need exits at each start."""


Work = Callable[[int, socket.socket, bool], int]
"""Runs a worker, given its number, its end of the control pipe and whether it is among the first; returns the
exit status."""


def exit_fields(status: int) -> dict[str, int | str]:
    """Return the log fields for an exit status; a negative one is the signal that killed the process."""
    if status >= 0:
        return {"status": status}
    names = {each.value: each.name for each in signal.Signals}
    return {"status": status, "signal": names.get(-status, "")}


@dataclass
class WorkerSlot:
    """A worker number, and the process that runs as this worker."""

    number: int  # from 1
    pid: int = 0  # 0: no process
    pipe: socket.socket | None = None  # the supervisor's end of the control pipe
    started_at: float = 0.0  # monotonic seconds
    start_at: float = 0.0  # when the next process is due, while there is none
    failures: int = 0  # consecutive exits after a short life
    is_ready: bool = False  # whether it has reported ready
    is_hung: bool = False  # whether it was aborted because its event loop hung
    kill_at: float = math.inf  # when it is killed unless it has exited
    kill_event: str | None = None  # logged then; None: its reason has been logged
    watch: SilenceWatch = field(default_factory=lambda: SilenceWatch(math.inf, 0.0))  # of its heartbeats

    @property
    def pause_s(self) -> float:
        """Seconds to wait before the next start; 0.0 after a long life."""
        return backoff_s(self.failures - 1, BACKOFF_FIRST_S, BACKOFF_LIMIT_S) if self.failures else 0.0

    def send(self, command: bytes) -> None:
        """Send a command to the process, if there is one that can receive it."""
        if self.pipe is not None:
            with suppress(OSError):
                self.pipe.send(command)


class SignalPipe:
    """Makes signals selectable for the length of a ``with`` block (a self-pipe).

    The pipe is registered with None as data. Without `reloads` the handler of SIGHUP stays.
    """

    def __init__(self, selector: selectors.BaseSelector, *, reloads: bool = False) -> None:
        self._selector = selector
        self._handled = (*HANDLED, signal.SIGHUP) if reloads else HANDLED
        self._before: dict[int, object] = {}

    def __enter__(self) -> "SignalPipe":
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._selector.register(self._reader, selectors.EVENT_READ)
        for number in self._handled:
            self._before[number] = signal.signal(number, lambda *_: None)  # the pipe has its number
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, *exc_info: object) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type] # what signal.signal returned
        self._selector.unregister(self._reader)
        self._reader.close()
        self._writer.close()

    def take(self) -> bytes:
        """Return the numbers of the signals that arrived since the last call."""
        with suppress(BlockingIOError):
            return self._reader.recv(READ_BYTES)
        return b""


class Arbiter:
    """Supervises worker processes.

    Args:
        number: how many.
        work: run in each worker process.
        ready_line: printed once, when all workers are ready for the first time.
        drain_timeout_s: how long workers may take to stop.
        writer: of the log, for `ready_line`.
        reread: run in a child at SIGHUP, may block or fail; None: SIGHUP is not handled.
        reload_others: called at SIGHUP, before the workers reload; never raises.
        notifier: to the service manager.
        hang_timeout_s: how long the event loop of a worker may hang; infinity: not watched.
        supervise_others: supervises other children: called whenever a child exits, until the stop; returns
            the seconds until the next call at the latest, None: no limit; `CannotContinue` stops everything,
            with status 1.
        announce: called before `ready_line` is printed; never raises.
    """

    def __init__(
        self,
        number: int,
        work: Work,
        *,
        ready_line: str,
        drain_timeout_s: float,
        writer: DirectWriter,
        reread: Callable[[], None] | None = None,
        reload_others: Callable[[], None] = lambda: None,
        notifier: Notifier = SILENT,
        hang_timeout_s: float = math.inf,
        supervise_others: Callable[[], float | None] = lambda: None,
        announce: Callable[[], None] = lambda: None,
    ) -> None:
        self._work = work
        self._ready_line = ready_line
        self._drain_timeout_s = drain_timeout_s
        self._writer = writer
        self._reread_settings = reread
        self._reload_others = reload_others
        self._notifier = notifier
        self._hang_timeout_s = hang_timeout_s
        self._check_others = supervise_others
        self._announce = announce
        self._check_interval_s = interval_s(hang_timeout_s) if hang_timeout_s < math.inf else None
        self._watchdog = Watchdog(notifier)
        self._workers = [WorkerSlot(n) for n in range(1, number + 1)]
        self._selector = selectors.DefaultSelector()
        self._to_restart: deque[WorkerSlot] = deque()
        self._restart_began_at: float | None = None
        self._successor: WorkerSlot | None = None  # started, and not ready yet
        self._draining: list[WorkerSlot] = []  # their successors are ready
        self._rereader = 0  # the process that rereads the settings; 0: none
        self._rereads_again = False  # whether it was asked to while one was under way
        self._all_were_ready = False
        self._stopping = False
        self._kill_at = 0.0
        self._status = 0

    def run(self) -> int:
        """Run until a stop signal arrives or a worker cannot start; return the exit status."""
        with SignalPipe(self._selector, reloads=self._reread_settings is not None) as signal_pipe:
            try:
                self._supervise(signal_pipe)
            finally:
                self._kill_all()
        return self._status

    def _supervise(self, signal_pipe: SignalPipe) -> None:
        while True:
            self._start_due()
            if self._stopping and not any(each.pid for each in self._slots):
                return
            others_s = self._supervise_others()
            for key, _ in self._selector.select(
                self._wait_s(self._watchdog.notify(), others_s, self._check_interval_s)
            ):
                if key.data is not None:
                    self._read_pipe(key.data)
            pending = signal_pipe.take()  # SIGCHLD only wakes
            for number in pending:
                if number in STOP_SIGNALS:
                    self._stop()
            if signal.SIGHUP in pending:
                self._reload()
            if signal.SIGUSR2 in pending:
                self._begin_rolling_restart()
            self._reap()
            self._abort_hung()
            self._restart_next()

    def _supervise_others(self) -> float | None:
        if self._stopping:
            return None
        try:
            return self._check_others()
        except CannotContinue:  # it has been logged
            self._status = FAILED
            self._stop()
            return None

    def _wait_s(self, *at_most_s: float | None) -> float | None:
        due = [self._kill_at] if self._stopping else []
        due += [time.monotonic() + each for each in at_most_s if each is not None]
        if not self._stopping:
            due += [each.kill_at for each in self._slots if each.pid]
            due += [each.start_at for each in self._workers if not each.pid]
            due = [at for at in due if at < math.inf]
        return max(0.0, min(due) - time.monotonic()) if due else None

    # Workers

    @property
    def _slots(self) -> list[WorkerSlot]:
        return [*self._workers, *self._draining, *([self._successor] if self._successor else [])]

    def _start_due(self) -> None:
        now = time.monotonic()
        if self._stopping:
            if now >= self._kill_at:
                self._kill_all()
            return
        for each in self._workers:
            if not each.pid and now >= each.start_at:
                self._start(each)
        for each in self._slots:
            if each.pid and now >= each.kill_at:
                if each.kill_event is not None:
                    log.error(each.kill_event, worker=each.number, pid=each.pid)
                each.kill_at = math.inf
                os.kill(each.pid, signal.SIGKILL)  # reaped after SIGCHLD

    def _start(self, each: WorkerSlot) -> None:
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            self._postpone_start(each, error)
            return
        try:
            pid = os.fork()
        except OSError as error:  # out of memory or processes: the other workers continue
            ours.close()
            theirs.close()
            self._postpone_start(each, error)
            return
        if pid == 0:
            self._run_worker(each.number, theirs, ours)
        theirs.close()
        ours.setblocking(False)
        self._selector.register(ours, selectors.EVENT_READ, each)
        each.pid, each.pipe, each.started_at = pid, ours, time.monotonic()
        each.is_ready = each.is_hung = False
        each.kill_at = math.inf
        each.watch = SilenceWatch(self._hang_timeout_s, each.started_at)
        log.info("worker started", worker=each.number, pid=pid)

    def _postpone_start(self, each: WorkerSlot, error: OSError) -> None:
        """Retry the start of a worker later; stop everything if not all workers were ready yet."""
        log.error("cannot start worker", worker=each.number, error=error.strerror)
        each.failures += 1
        each.start_at = time.monotonic() + each.pause_s
        if not self._all_were_ready:
            self._status = FAILED
            self._stop()

    def _run_worker(self, number: int, theirs: socket.socket, ours: socket.socket) -> None:
        """Run in the forked process, which must never return into the code of its parent."""
        status = FAILED
        try:
            ours.close()
            self._detach()
            status = self._work(number, theirs, not self._all_were_ready)
        finally:
            os._exit(status)  # also ends threads that are stuck

    def _detach(self) -> None:
        """In a forked process, give up the signals and pipes of the parent."""
        os.setsid()  # so that the parent alone receives Ctrl-C, and passes it on
        signal.set_wakeup_fd(-1)
        for number in HANDLED:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        if self._reread_settings is not None:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it handles it; its files are read later
        # The pipe of a sibling must close when the parent dies, not when this process does.
        for each in self._slots:
            if each.pipe is not None:
                each.pipe.close()
        self._selector.close()

    def _read_pipe(self, each: WorkerSlot) -> None:
        if each.pipe is None:
            return
        try:
            data = each.pipe.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close_pipe(each)  # the process is exiting; it is reaped later
        if ALIVE in data:
            each.watch.heartbeat()
        if control_pipe.READY in data:
            each.is_ready = True
            self._selector.unregister(each.pipe)  # heartbeats wait for the next check
            if each is self._successor:
                self._hand_over(each)
            if not self._all_were_ready and all(other.is_ready for other in self._workers):
                self._all_were_ready = True
                self._announce()
                self._writer.raw_line(self._ready_line)
                self._notifier.ready(self._ready_line)

    def _abort_hung(self) -> None:
        """Read heartbeats, and abort workers whose event loop hangs; a stop has a time-out of its own."""
        now = time.monotonic()
        for each in self._slots:
            self._read_pipe(each)
            if each.pid and each.watch.is_hung(now) and not self._stopping and not each.is_hung:
                each.is_hung = True
                silent_s = round(each.watch.silent_s, 1)
                log.error("worker hung, killing it", worker=each.number, pid=each.pid, silent_s=silent_s)
                os.kill(each.pid, signal.SIGABRT)  # prints its stacks, if it can
                each.kill_at, each.kill_event = now + ABORT_TIMEOUT_S, None

    def _close_pipe(self, each: WorkerSlot) -> None:
        if each.pipe is not None:
            if not each.is_ready:
                self._selector.unregister(each.pipe)
            each.pipe.close()
            each.pipe = None

    def _reap(self) -> None:
        for each in self._slots:
            if each.pid:
                pid, code = os.waitpid(each.pid, os.WNOHANG)
                if pid:
                    self._on_exit(each, os.waitstatus_to_exitcode(code))
        if self._rereader:
            pid, code = os.waitpid(self._rereader, os.WNOHANG)
            if pid:
                self._rereader = 0
                if status := os.waitstatus_to_exitcode(code):
                    log.error("settings not reread", **exit_fields(status))
                if self._rereads_again and self._reread_settings is not None and not self._stopping:
                    self._rereads_again = False
                    self._reread(self._reread_settings)

    def _on_exit(self, each: WorkerSlot, status: int) -> None:
        """Handle the exit of a process; `status` is negative if a signal killed it."""
        uptime_s, was_ready = time.monotonic() - each.started_at, each.is_ready
        self._close_pipe(each)
        each.pid, each.is_ready = 0, False
        if self._stopping:
            # SIGTERM kills a worker that does not handle it yet, or no longer.
            if status not in (0, -signal.SIGTERM):
                self._status = self._status or FAILED
                log.error("worker exited uncleanly", worker=each.number, **exit_fields(status))
            return
        if not self._all_were_ready and not was_ready:
            # What prevents one start prevents all: Redis unreachable, a low file limit, an address in use.
            self._status = status if status > 0 else FAILED
            self._stop()
            return
        if each is self._successor:
            self._successor = None
            self._abort_rolling_restart(**exit_fields(status))
            return
        if each in self._draining:
            self._draining.remove(each)
            if status == 0:
                log.info("worker drained and replaced", worker=each.number)
            else:
                log.error("worker exited uncleanly", worker=each.number, **exit_fields(status))
            return
        if status == 0:  # it received a stop signal of its own
            each.failures, each.start_at = 0, 0.0
            log.info("worker drained and replaced", worker=each.number)
            return
        each.failures = 0 if uptime_s >= LONG_LIFE_S else each.failures + 1
        each.start_at = time.monotonic() + each.pause_s
        log.error(
            "worker exited, restarting",
            worker=each.number,
            **exit_fields(status),
            uptime_s=round(uptime_s, 1),
            pause_s=each.pause_s,
        )

    # Rolling restart

    def _begin_rolling_restart(self) -> None:
        if self._stopping or not self._all_were_ready:
            log.warning("rolling restart ignored", reason="workers are starting or stopping")
            return
        log.info("rolling restart started", workers=len(self._workers))
        self._to_restart = deque(self._workers)
        self._restart_began_at = time.monotonic()

    def _restart_next(self) -> None:
        """Start the next successor once all workers are ready and the last replaced worker has exited."""
        if self._stopping or self._restart_began_at is None or self._successor or self._draining:
            return
        if not all(each.is_ready for each in self._workers):
            return
        if not self._to_restart:
            duration_s = round(time.monotonic() - self._restart_began_at, 1)
            log.info("rolling restart finished", workers=len(self._workers), duration_s=duration_s)
            self._restart_began_at = None
            return
        self._successor = WorkerSlot(self._to_restart.popleft().number)
        self._start(self._successor)
        self._successor.kill_at = time.monotonic() + START_TIMEOUT_S
        self._successor.kill_event = START_TIMED_OUT
        if not self._successor.pid:
            self._successor = None
            self._abort_rolling_restart()

    def _hand_over(self, successor: WorkerSlot) -> None:
        """Let the old worker drain, because its successor is ready."""
        before, self._workers[successor.number - 1] = self._workers[successor.number - 1], successor
        self._successor = None
        successor.kill_at = math.inf
        if before.pid:
            before.kill_at = time.monotonic() + self._drain_timeout_s + STOP_MARGIN_S
            before.kill_event = STOP_TIMED_OUT
            before.send(control_pipe.RETIRE)
            self._draining.append(before)

    def _abort_rolling_restart(self, **why: object) -> None:
        log.error("rolling restart aborted, successor not ready", **why)
        self._to_restart.clear()
        self._restart_began_at = None

    def _reload(self) -> None:
        if self._reread_settings is not None and not self._stopping:
            if self._all_were_ready:  # a service manager expects a reload only of a service that is ready
                self._notifier.reloading()
            self._reread(self._reread_settings)
            self._reload_others()
            for each in self._slots:
                each.send(control_pipe.RELOAD)
            if self._all_were_ready:
                self._notifier.ready(self._ready_line)

    def _reread(self, reread: Callable[[], None]) -> None:
        """Reread the settings in a child, which the kernel ends if that takes too long."""
        if self._rereader:
            self._rereads_again = True  # the file may have changed after it was read
            return
        try:
            self._rereader = os.fork()
        except OSError as error:
            log.error("settings not reread", error=error.strerror)  # noqa: TRY400 - the error is complete
            return
        if self._rereader == 0:
            status = FAILED
            try:
                self._detach()
                # A dead disk may hold this process, and must not hold a port.
                os.closerange(3, FEW_DESCRIPTORS)
                signal.alarm(REREAD_TIMEOUT_S)  # SIGALRM ends it, also when this process has ended
                reread()
                status = 0
            except Exception as error:
                log.error("settings not reread", **fault_fields(error))  # noqa: TRY400 - it has the error
                status = 0  # it has been logged
            finally:
                os._exit(status)

    # Stop

    def _stop(self) -> None:
        """Drain at the first call, exit immediately at the second."""
        command = control_pipe.END if self._stopping else control_pipe.DRAIN
        if not self._stopping:
            self._stopping = True
            self._kill_at = time.monotonic() + self._drain_timeout_s + STOP_MARGIN_S
            self._notifier.stopping("draining")
            log.info("stopping", workers=sum(bool(each.pid) for each in self._slots))
        else:
            log.warning("second signal received, exiting immediately")
            self._status = self._status or FAILED
            self._kill_at = min(self._kill_at, time.monotonic() + STOP_MARGIN_S)
        for each in self._slots:
            each.send(command)

    def _kill_all(self) -> None:
        """Kill the remaining workers; this loses no more than a crash would."""
        for each in self._slots:
            if each.pid:
                log.error(STOP_TIMED_OUT, worker=each.number, pid=each.pid)
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
        if self._rereader:
            os.kill(self._rereader, signal.SIGKILL)  # its parent will not wait: a dead disk may hold it
        give_up_at = time.monotonic() + KILL_TIMEOUT_S
        self._reap()
        while any(each.pid for each in self._slots) and time.monotonic() < give_up_at:
            time.sleep(0.01)
            self._reap()
        for each in self._slots:
            each.pid = 0
