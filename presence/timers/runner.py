"""A worker of `presence timers run`: claims due events, calls the handler, and reports each result.

    claim ─→ handlers (up to `concurrency`) ─→ reports: done, retry, give back

Four tasks: one claims while handlers are free, one reports, one extends leases, one logs the counters; and
one per running handler. Blocking calls run in one thread for Redis, and in one per plain handler.

At least once: an event is reported after its handler has returned, so if the worker dies in between, another
worker gets the event once the lease has ended. While a handler runs, its lease is extended each time a third
of it has passed. Reports after the end of a lease are ignored.

A handler that exceeds the time-out has failed. An ``async def`` is cancelled. A plain function cannot be
stopped, so its process is: the worker drains, and ends with `STUCK`. Events whose plain functions are still
running, then or after the drain, are reported last, right before the process ends (`report_last`): so no
function runs on while its event is handled again.
"""

import math
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Thread
from typing import Final, NamedTuple

import structlog
import trio

from presence.common import logs
from presence.common.backoff import jittered
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.faults import LOG_INTERVAL_S
from presence.common.outage import Outage
from presence.common.redis_url import redacted
from presence.common.runtime import Caller, TrioThreadCaller, TrioWakeEvent, run_in_thread
from presence.common.scarcity import fault_fields
from presence.common.threads import NoThread
from presence.prefork.control_pipe import ControlPipe
from presence.timers import handlers
from presence.timers.handlers import Handler, HandlerError, RetryLater
from presence.timers.interface import Due, LeasedTimer, TimerError
from presence.timers.kinds import TimerLocation
from presence.timers.leases import MAX_IN_FLIGHT, TIMER_FAILURES, Leases
from presence.timers.shared_timer import Leasing

OK: Final = 0  # exit statuses of a worker
FAILED: Final = 1
REFUSED: Final = 2  # invalid handler or settings
STUCK: Final = 3  # it ended because a plain handler timed out
START_TIMEOUT_S: Final = 6.0  # for Redis at the start, so that the operator has an error within 10 s
POLL_INTERVAL_S: Final = 0.1  # while a handler is free
RETRY_FIRST_S: Final = 0.1  # between two attempts while Redis is unreachable
RETRY_MAX_S: Final = 2.0
COUNTERS_LOG_INTERVAL_S: Final = 60.0  # between two log lines of counters
FINAL_REPORT_TIMEOUT_S: Final = 1.0  # for reports after the drain; the supervisor kills two seconds later
THREAD_REPORT_TIMEOUT_S: Final = 0.5  # for events of handlers that are still running

log = structlog.get_logger("presence.timers")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker handles events."""

    leasing: Leasing = field(default_factory=Leasing)  # how the timer hands them out
    concurrency: int = 1  # maximum of running handlers
    timeout_s: float = 300.0  # seconds after which a handler has failed
    drain_timeout_s: float = 10.0  # seconds that running handlers have once the worker is to stop


class Runner:
    """A worker on one timer, which is used from one thread at a time.

    Attributes:
        counters: results so far.
        is_drained: whether the drain has ended.
        failure: why it could not start, or None.
        is_stuck: whether it ends because a plain handler timed out.
    """

    def __init__(
        self, timer: LeasedTimer, handler: Handler, options: WorkerOptions, caller: Caller | None = None
    ) -> None:
        self._timer = timer
        self._handler = handler
        self._options = options
        # An abandoned call ends with the process.
        self._redis = caller or TrioThreadCaller(lambda: None)
        self._thread_limiter = trio.CapacityLimiter(options.concurrency)
        self._outage = Outage(
            log,
            unreachable="Redis unreachable, retrying",
            refused="Redis refused, retrying",
            failed_otherwise="Redis refused, retrying",
            recovered="Redis reachable again",
            first_s=RETRY_FIRST_S,
            limit_s=RETRY_MAX_S,
        )
        self._lack_log = logs.RateLimited(log, interval_s=LOG_INTERVAL_S)
        self._capacity_freed = TrioWakeEvent()
        self._leases = Leases(
            timer, options.leasing.lease_s, self._redis, self._outage, self._capacity_freed.set
        )
        self.counters = self._leases.counters
        self._claiming = trio.CancelScope()
        self._stopped_at: float | None = None
        self._running = 0
        # Events whose plain handlers are still running, and when to retry them; None: give them back.
        self._running_threads: list[tuple[Due, float | None]] = []
        self._has_begun = False
        self.is_drained = self.is_stuck = False
        self.failure: Exception | None = None

    @property
    def has_running_threads(self) -> bool:
        """Whether plain handlers are still running: call `report_last`, then end the process immediately."""
        return bool(self._running_threads)

    def report_last(self, timer: LeasedTimer) -> None:
        """Return the events of running plain handlers to the timer; blocks; for the end of the process.

        The timer needs connections of its own: an abandoned call may occupy those of the worker.
        """
        with suppress(*TIMER_FAILURES):
            for due, delay_s in self._running_threads:
                if delay_s is None:
                    timer.give_back([due])
                else:
                    timer.retry(due, delay_s)

    async def run(self, ready: Callable[[], None] = lambda: None, *, is_first: bool = True) -> None:
        """Work until `stop`, then drain; cancel it to end immediately. Calls `ready` once Redis has answered.

        `is_first`: give up if Redis is unreachable at first, see `failure`; else wait for it.
        """
        async with trio.open_nursery() as background:
            background.start_soon(self._leases.report)
            background.start_soon(self._leases.extend)
            background.start_soon(self._log_counters)
            async with trio.open_nursery() as self._handlers:
                with self._claiming:
                    await self._claim_until_stopped(ready, START_TIMEOUT_S if is_first else math.inf)
                self._handlers.cancel_scope.deadline = self._drained_by()
            await self._leases.finish(FINAL_REPORT_TIMEOUT_S)
            background.cancel_scope.cancel()
        self.counters.unsaid += self._leases.unreported
        self.is_drained = True

    def stop(self) -> None:
        """Claim no more events; running handlers may finish within the drain time-out."""
        if self._stopped_at is None:
            self._stopped_at = trio.current_time()
            # A pending claim may still be answered: its events are given back.
            self._claiming.deadline = self._drained_by()
            self._capacity_freed.set()

    def _drained_by(self) -> float:
        return math.inf if self._stopped_at is None else self._stopped_at + self._options.drain_timeout_s

    async def _claim_until_stopped(self, ready: Callable[[], None], start_timeout_s: float) -> None:
        give_up_at = trio.current_time() + start_timeout_s
        while self._stopped_at is None:
            free = self._options.concurrency - self._running
            asked = min(free, MAX_IN_FLIGHT - len(self._leases))
            if asked <= 0:
                await self._capacity_freed.wait(math.inf)
                continue
            try:
                await self._claim_once(asked, ready)
            except TIMER_FAILURES as error:
                is_late = trio.current_time() >= give_up_at or not isinstance(error, StoreUnavailable)
                if is_late and not self._has_begun:
                    self.failure = error
                    self.stop()
                else:
                    await self._pause(self._outage.failed("due", error))

    async def _claim_once(self, asked: int, ready: Callable[[], None]) -> None:
        """Claim due events and start their handlers; wait if there are none."""
        asked_at = trio.current_time()
        dues = await self._redis.call(partial(self._timer.due, asked))
        self._outage.worked("due")
        self.counters.add_claimed(dues)
        if self._stopped_at is not None:
            self.counters.returned += len(dues)
            self._leases.give_back(dues)
        elif self._leases.claim(dues, asked_at):
            for due in dues:
                self._running += 1
                self._handlers.start_soon(self._handle, due)
        else:  # the process was suspended for so long that others may have them
            self.counters.lapsed += len(dues)
        if not self._has_begun:
            self._has_begun = True
            ready()
        if not dues:  # fewer than requested may be a part: of large events, or of many slots
            await self._pause(jittered(POLL_INTERVAL_S))  # spreads workers that were woken together

    async def _pause(self, seconds: float) -> None:
        """Wait, until `stop` at most."""
        until = trio.current_time() + seconds
        while self._stopped_at is None and (left_s := until - trio.current_time()) > 0:
            await self._capacity_freed.wait(left_s)

    async def _handle(self, due: Due) -> None:
        try:
            with trio.move_on_after(self._options.timeout_s) as limit:
                if self._handler.is_async:
                    await self._handler.function(due)
                else:
                    await run_in_thread(partial(self._handler.call, due), self._thread_limiter)
        except BaseException as error:  # also a handler that exits or cancels itself has failed
            if _is_cancelled(error):  # the drain has timed out: return the event
                self.counters.returned += 1
                if self._handler.is_async:
                    self._leases.give_back([due])
                else:
                    self._running_threads.append((due, None))
                raise
            if isinstance(error, NoThread) and not self._handler.is_async:
                # It was not called, which is no attempt. Others may take the event; this worker waits first.
                self.counters.returned += 1
                self._leases.give_back([due])
                self._lack_log.warning("handler lacks a thread", **fault_fields(error))
                await trio.sleep(jittered(RETRY_FIRST_S))
                return
            self._leases.retry(due, self._note_failure(due, error))
        else:
            if not limit.cancelled_caught:
                self.counters.handled += 1
                self._leases.done(due)
            else:
                self._handle_timeout(due)
        finally:
            self._running -= 1
            self._capacity_freed.set()

    def _handle_timeout(self, due: Due) -> None:
        """Fail an event whose handler timed out."""
        delay_s = self._note_failure(
            due, TimeoutError(f"{self._handler.name} took {self._options.timeout_s:g} s")
        )
        if self._handler.is_async:
            self._leases.retry(due, delay_s)
            return
        log.error("handler stuck, replacing its process", id=due.id)
        self._running_threads.append((due, delay_s))
        self.is_stuck = True
        self.stop()

    def _note_failure(self, due: Due, error: BaseException) -> float:
        """Count and log a failed event; return the seconds until its next attempt."""
        fields = {"id": due.id, "attempt": due.attempt, "handler": self._handler.name}
        delay_s = self._options.leasing.pause_s(due.attempt)
        if isinstance(error, RetryLater):
            self.counters.put_off += 1
            delay_s = delay_s if error.delay_s is None else error.delay_s
        else:
            self.counters.failed += 1
        # Attempts that were given back do not count, which only Redis knows: then there is one more.
        if due.attempt >= self._options.leasing.attempts_max:
            self.counters.dead += 1
            log.error("attempts exhausted, moved to dead letters", **fields, exc_info=error)
        elif not isinstance(error, RetryLater):
            log.warning("handler failed", **fields, retry_s=round(delay_s, 3), exc_info=error)
        return delay_s

    async def _log_counters(self) -> None:
        while True:
            await trio.sleep(COUNTERS_LOG_INTERVAL_S)
            log.info("statistics", **self.counters.for_log(), running=self._running)


def _is_cancelled(error: BaseException) -> bool:
    """Whether trio or a signal has cancelled a handler, and no other error happened."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_cancelled(each) for each in error.exceptions)
    return isinstance(error, trio.Cancelled | KeyboardInterrupt)


# The process


class Job(NamedTuple):
    """The work of a worker process."""

    location: TimerLocation
    handler: str  # its name, see `handlers.load`
    options: WorkerOptions
    log_format: str = "auto"  # as `presence.common.logs.configure` takes it
    log_level: str = "info"


def run_worker(job: Job, number: int, line: socket.socket, is_first: bool) -> int:
    """Run as worker `number`, from 1, with its end of the control pipe; return the exit status.

    `is_first`: end if Redis is unreachable at first; else wait for it.
    """
    with logs.configure(job.log_format, job.log_level) as writer:
        structlog.contextvars.bind_contextvars(worker=number)
        try:
            handler = handlers.load(job.handler)
            with job.location.open(job.options.leasing) as timer:
                runner = Runner(timer, handler, job.options)
                status = trio.run(_run, runner, ControlPipe(line), is_first, job)
                if runner.has_running_threads and runner.is_drained:
                    writer.close()
                    with job.location.open(job.options.leasing) as own_timer:
                        reporter = Thread(target=runner.report_last, args=[own_timer], daemon=True)
                        reporter.start()
                        reporter.join(THREAD_REPORT_TIMEOUT_S)
                        os._exit(status)
                return status
        except (HandlerError, TimerError) as error:
            log.error("refusing to start", error=str(error))  # noqa: TRY400 - the message says all
            return REFUSED
        except BaseException:
            log.exception("worker failed")
            return FAILED


async def _run(runner: Runner, line: ControlPipe, is_first: bool, job: Job) -> int:
    async with line.stop_requests() as orders, trio.open_nursery() as nursery:
        nursery.start_soon(_follow_orders, orders, runner, nursery.cancel_scope)
        await runner.run(line.send_ready, is_first=is_first)
        nursery.cancel_scope.cancel()
    return _exit_status(runner, job) if runner.is_drained else FAILED


async def _follow_orders(orders: AsyncIterator[None], runner: Runner, everything: trio.CancelScope) -> None:
    """Drain at the first order, end immediately at the second."""
    await anext(orders)
    runner.stop()
    await anext(orders)
    log.warning("second signal received, exiting immediately")
    everything.cancel()


def _exit_status(runner: Runner, job: Job) -> int:
    """Log how a worker ended; return its exit status."""
    error = runner.failure
    if isinstance(error, StoreUnavailable | StoreError):
        log.error("cannot start", redis=redacted(job.location.redis_url), error=str(error))
        return FAILED
    if error is not None:
        log.error("refusing to start", error=str(error))
        return REFUSED
    log.info("stopped", **runner.counters.for_log(), pid=os.getpid())
    return STUCK if runner.is_stuck else OK
