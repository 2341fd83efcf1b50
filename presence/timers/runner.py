"""A worker of `presence timers run`: claims due events, has them handled, and reports how each ended.

    claim ─→ handlers (`concurrency` at once) ─→ reports: done, retry, give back

Four tasks: one claims while handlers are free, one reports, one extends leases, and one logs the figures; and
one for each handler that runs. All that blocks runs in one thread for Redis, and in one for each plain
handler.

At least once: an event is reported when its handler has returned, so a worker that dies between the two
leaves it to another, once its lease has ended. While a handler runs its lease is extended, from a third of
it on. What is said of an event too late is void.

A handler that takes longer than the time-out has failed. An ``async def`` is cancelled. A plain function
cannot be ended, so its process is: the worker drains, and ends with `STUCK`. The events of plain functions
that go on, these and those that outlast a drain, are reported as the very last thing before the process ends
(`say_last`): so none goes on beside the one that handles its event anew.
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
from presence.common.redis_url import redacted
from presence.common.runtime import ThreadCaller, TrioThreadCaller, TrioWakeEvent
from presence.outbox.outage_log import Outage
from presence.prefork.control_pipe import ControlPipe
from presence.timers import handlers
from presence.timers.handing import Leasing
from presence.timers.handlers import Handler, HandlerError, RetryLater
from presence.timers.interface import Due, LeasedTimer, TimerError
from presence.timers.kinds import TimerLocation
from presence.timers.reporting import FAILURES, MAX_HELD, Leases

OK: Final = 0  # exit statuses of a worker
FAILED: Final = 1
REFUSED: Final = 2  # what was asked for cannot be had
STUCK: Final = 3  # it ended because a plain handler would not
START_TIMEOUT_S: Final = 6.0  # Redis is given so long at the start: within 10 s an operator knows
POLL_INTERVAL_S: Final = 0.1  # while a handler is free
OUTAGE_FIRST_S: Final = 0.1  # between two attempts while Redis is away
OUTAGE_MAX_S: Final = 2.0
FIGURES_INTERVAL_S: Final = 60.0  # between two lines of figures
LAST_WORDS_S: Final = 1.0  # for reports after the drain; a supervisor waits for two more before it kills
SAY_LAST_S: Final = 0.5  # for those of handlers that go on

log = structlog.get_logger("presence.timers")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker handles events.

    Attributes:
        leasing: how the timer hands them out, as it was told.
        concurrency: how many handlers run at once.
        timeout_s: how long a handler may take before it counts as failed.
        drain_timeout_s: how long those that run may take once the worker is to stop.
    """

    leasing: Leasing = field(default_factory=Leasing)
    concurrency: int = 1
    timeout_s: float = 300.0
    drain_timeout_s: float = 10.0


class Runner:
    """A worker on one timer.

    Args:
        timer: used from one thread at a time.
        handler: what is called with each event.
        terms: how.
        caller: makes the calls of the timer; in a thread by default.

    Attributes:
        figures: what happened so far.
        has_ended: whether it was drained to the end.
        failure: why it could not begin; None if it could.
        is_stuck: whether it ends because a plain handler would not.
    """

    def __init__(
        self, timer: LeasedTimer, handler: Handler, terms: WorkerOptions, caller: ThreadCaller | None = None
    ) -> None:
        self._timer = timer
        self._handler = handler
        self._terms = terms
        # A call that is left behind ends with the process.
        self._redis = caller or TrioThreadCaller(lambda: None)
        self._threads = trio.CapacityLimiter(terms.concurrency)
        self._outage = Outage(
            log,
            away="Redis unreachable, retrying",
            refused="Redis refused, retrying",
            back="Redis reachable again",
            first_s=OUTAGE_FIRST_S,
            limit_s=OUTAGE_MAX_S,
        )
        self._room = TrioWakeEvent()
        self._leases = Leases(timer, terms.leasing.lease_s, self._redis, self._outage, self._room.ring)
        self.figures = self._leases.figures
        self._claiming = trio.CancelScope()
        self._stopped_at: float | None = None
        self._running = 0
        self._go_on: list[tuple[Due, float | None]] = []  # in threads; when to retry, None: give back
        self._has_begun = False
        self.has_ended = self.is_stuck = False
        self.failure: Exception | None = None

    @property
    def goes_on(self) -> bool:
        """Whether plain handlers go on at the end: call `say_last`, and end the process at once."""
        return bool(self._go_on)

    def say_last(self, timer: LeasedTimer) -> None:
        """Leave the events of handlers that go on to others; blocks, and is for the end of the process.

        Args:
            timer: the same over connections of its own: a call may have been left behind on the others.
        """
        with suppress(*FAILURES):
            for due, delay_s in self._go_on:
                if delay_s is None:
                    timer.give_back([due])
                else:
                    timer.retry(due, delay_s)

    async def run(self, ready: Callable[[], None] = lambda: None, *, is_first: bool = True) -> None:
        """Work until `stop`, then drain; cancel it to end at once.

        Args:
            ready: called once Redis has answered.
            is_first: give up if Redis cannot be reached at first, see `failure`; else wait for it.
        """
        async with trio.open_nursery() as beside:
            beside.start_soon(self._leases.report)
            beside.start_soon(self._leases.extend)
            beside.start_soon(self._log_figures)
            async with trio.open_nursery() as self._handlers:
                with self._claiming:
                    await self._claim(ready, START_TIMEOUT_S if is_first else math.inf)
                self._handlers.cancel_scope.deadline = self._drained_by()
            await self._leases.finish(LAST_WORDS_S)
            beside.cancel_scope.cancel()
        self.figures.unsaid += self._leases.unreported
        self.has_ended = True

    def stop(self) -> None:
        """Take no more events; what runs may finish within the drain time-out."""
        if self._stopped_at is None:
            self._stopped_at = trio.current_time()
            # An answer that is under way is worth this: whatever it hands out is given back.
            self._claiming.deadline = self._drained_by()
            self._room.ring()

    def _drained_by(self) -> float:
        return math.inf if self._stopped_at is None else self._stopped_at + self._terms.drain_timeout_s

    async def _claim(self, ready: Callable[[], None], start_timeout_s: float) -> None:
        give_up_at = trio.current_time() + start_timeout_s
        while self._stopped_at is None:
            free = self._terms.concurrency - self._running
            asked = min(free, MAX_HELD - len(self._leases))
            if asked <= 0:
                await self._room.wait(math.inf)
                continue
            try:
                await self._look(asked, ready)
            except FAILURES as error:
                is_late = trio.current_time() >= give_up_at or not isinstance(error, StoreUnavailable)
                if is_late and not self._has_begun:
                    self.failure = error
                    self.stop()
                else:
                    await self._pause(self._outage.failed("due", error))

    async def _look(self, asked: int, ready: Callable[[], None]) -> None:
        """Claim what is due, and begin with it; wait if nothing is."""
        asked_at = trio.current_time()
        dues = await self._redis.call(partial(self._timer.due, asked))
        self._outage.worked("due")
        self.figures.claimed(dues)
        if self._stopped_at is not None:
            self.figures.returned += len(dues)
            self._leases.give_back(dues)
        elif self._leases.claim(dues, asked_at):
            for due in dues:
                self._running += 1
                self._handlers.start_soon(self._handle, due)
        else:  # the process was stopped for so long: they are another's by now
            self.figures.lapsed += len(dues)
        if not self._has_begun:
            self._has_begun = True
            ready()
        if not dues:  # fewer than asked for may be a part: of large ones, or of many slots
            await self._pause(jittered(POLL_INTERVAL_S))  # workers that were woken together come apart

    async def _pause(self, seconds: float) -> None:
        """Wait, unless it is to stop."""
        until = trio.current_time() + seconds
        while self._stopped_at is None and (left_s := until - trio.current_time()) > 0:
            await self._room.wait(left_s)

    async def _handle(self, due: Due) -> None:
        try:
            with trio.move_on_after(self._terms.timeout_s) as limit:
                if self._handler.is_async:
                    await self._handler.function(due)
                else:
                    await trio.to_thread.run_sync(
                        self._handler.call, due, limiter=self._threads, abandon_on_cancel=True
                    )
        except BaseException as error:  # a handler that exits, or cancels itself, has failed like any other
            if _is_cancelled(error):  # the drain is over: others may have the event
                self.figures.returned += 1
                if self._handler.is_async:
                    self._leases.give_back([due])
                else:
                    self._go_on.append((due, None))
                raise
            self._leases.retry(due, self._failed(due, error))
        else:
            if not limit.cancelled_caught:
                self.figures.handled += 1
                self._leases.done(due)
            else:
                self._time_out(due)
        finally:
            self._running -= 1
            self._room.ring()

    def _time_out(self, due: Due) -> None:
        """Its handler took too long."""
        delay_s = self._failed(due, TimeoutError(f"{self._handler.name} took {self._terms.timeout_s:g} s"))
        if self._handler.is_async:
            self._leases.retry(due, delay_s)
            return
        log.error("handler stuck, replacing its process", id=due.id)
        self._go_on.append((due, delay_s))
        self.is_stuck = True
        self.stop()

    def _failed(self, due: Due, error: BaseException) -> float:
        """Count and log that an event was not handled; return after how many seconds it is to come again."""
        facts = {"id": due.id, "attempt": due.attempt, "handler": self._handler.name}
        delay_s = self._terms.leasing.pause_s(due.attempt)
        if isinstance(error, RetryLater):
            self.figures.put_off += 1
            delay_s = delay_s if error.delay_s is None else error.delay_s
        else:
            self.figures.failed += 1
        # An attempt that was given back does not count, of which only Redis knows: then there is one more.
        if due.attempt >= self._terms.leasing.attempts_max:
            self.figures.dead += 1
            log.error("attempts exhausted, moved to dead letters", **facts, exc_info=error)
        elif not isinstance(error, RetryLater):
            log.warning("handler failed", **facts, retry_s=round(delay_s, 3), exc_info=error)
        return delay_s

    async def _log_figures(self) -> None:
        while True:
            await trio.sleep(FIGURES_INTERVAL_S)
            log.info("statistics", **self.figures.shown(), running=self._running)


def _is_cancelled(error: BaseException) -> bool:
    """Whether trio, or a signal, has ended a handler, and nothing else happened."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_cancelled(each) for each in error.exceptions)
    return isinstance(error, trio.Cancelled | KeyboardInterrupt)


# The process


class Job(NamedTuple):
    """What a worker does.

    Attributes:
        place: of the timer.
        handler: its name, see `handlers.load`.
        terms: how events are handled.
        log_format, log_level: as `presence.common.logs.configure` takes them.
    """

    place: TimerLocation
    handler: str
    terms: WorkerOptions
    log_format: str = "auto"
    log_level: str = "info"


def run_worker(job: Job, number: int, line: socket.socket, is_first: bool) -> int:
    """Be worker `number`; return the exit status.

    Args:
        job: what to do.
        number: from 1, for the log.
        line: the worker's end of the socket pair.
        is_first: end if Redis cannot be reached at first; else wait until it can.
    """
    with logs.configure(job.log_format, job.log_level) as writer:
        structlog.contextvars.bind_contextvars(worker=number)
        try:
            handler = handlers.load(job.handler)
            with job.place.open(job.terms.leasing) as timer:
                runner = Runner(timer, handler, job.terms)
                status = trio.run(_run, runner, ControlPipe(line), is_first, job)
                if runner.goes_on and runner.has_ended:
                    writer.close()
                    with job.place.open(job.terms.leasing) as timer_of_its_own:
                        speaker = Thread(target=runner.say_last, args=[timer_of_its_own], daemon=True)
                        speaker.start()
                        speaker.join(SAY_LAST_S)
                        os._exit(status)
                return status
        except (HandlerError, TimerError) as error:
            log.error("refusing to start", error=str(error))  # noqa: TRY400 - the message says all
            return REFUSED
        except BaseException:
            log.exception("worker failed")
            return FAILED


async def _run(runner: Runner, line: ControlPipe, is_first: bool, job: Job) -> int:
    async with line.stop_requests() as told, trio.open_nursery() as nursery:
        nursery.start_soon(_obey, told, runner, nursery.cancel_scope)
        await runner.run(line.send_ready, is_first=is_first)
        nursery.cancel_scope.cancel()
    return _status(runner, job) if runner.has_ended else FAILED


async def _obey(told: AsyncIterator[None], runner: Runner, everything: trio.CancelScope) -> None:
    """Drain at the first order, end at once at the second."""
    await anext(told)
    runner.stop()
    await anext(told)
    log.warning("second signal received, exiting immediately")
    everything.cancel()


def _status(runner: Runner, job: Job) -> int:
    """Say how a worker ended; return its exit status."""
    error = runner.failure
    if isinstance(error, StoreUnavailable | StoreError):
        log.error("cannot start", redis=redacted(job.place.redis_url), error=str(error))
        return FAILED
    if error is not None:
        log.error("refusing to start", error=str(error))
        return REFUSED
    log.info("stopped", **runner.figures.shown(), pid=os.getpid())
    return STUCK if runner.is_stuck else OK
