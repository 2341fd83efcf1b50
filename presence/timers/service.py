"""Timers inside the event loop: callbacks by the million, driven by one task, at ticks of 10 ms.

    async with open_timer_service() as timers:
        handle = timers.schedule(30.0, connection.time_out)
        timers.cancel(handle)

Time is trio's clock. Tick n begins at start + n · tick_s, so nothing drifts. The task sleeps until the next
tick with a due timer, so an idle service costs nothing. A late service catches up, oldest first, and skips
nothing. After `SLICE_S` of callbacks it yields to the event loop.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog
import trio

from presence.core.slots import SlotClock
from presence.timers.interface import MAX_DELAY_S, MAX_EVENTS, TimerError, TimerFull, check_delay
from presence.timers.levels import Levels, TimerEntry

Callback = Callable[..., object]
ErrorHandler = Callable[[Exception, Callback], None]

TICK_S: Final = 0.01
MIN_TICK_S: Final = 0.001  # trio's own sleeps are no finer
SLICE_S: Final = 0.002  # a fifth of a tick: other tasks wait this long, plus a few callbacks
TIMERS_PER_STEP: Final = 256  # timers taken from the wheel, or moved in it, per call
MOVES_PER_S: Final = 200_000  # timers that may cascade in the wheel: a fifth of a core
MAX_ASYNC_TASKS: Final = 1_000  # concurrent tasks of async callbacks: some 5 MB
CALLBACKS_PER_CLOCK_READ: Final = 8  # callbacks per reading of the clock
AWAKE: Final = -1  # no tick is before it, so `schedule` need not wake the task
ASLEEP: Final = 1 << 62
NO_ROOM: Final = 1 << 62  # subtracted when the service closes; the pending count stays correct

_log = structlog.get_logger(__name__)


def log_error(error: Exception, callback: Callback) -> None:
    """Log what a callback raised, with its traceback."""
    _log.error("timer callback failed", callback=_name(callback), exc_info=error)


class TimerHandle(TimerEntry):
    """A scheduled timer, for `cancel` and `reschedule` of the service that returned it.

    Its constructor takes no values: filling it in place makes scheduling cheap.

    Attributes:
        deadline: when it is to fire, by trio's clock.
        fn, args: the callback; None and () once fired or cancelled, so that nothing is kept alive.
    """

    __slots__ = ("args", "deadline", "fn")

    deadline: float
    fn: Callback | None
    args: tuple[Any, ...]


@dataclass(slots=True)
class TimerStatistics:
    """Counters of a service."""

    pending: int = 0  # waiting timers, including queued async callbacks
    fired: int = 0  # timers so far
    cancelled: int = 0
    running: int = 0  # async callbacks that run as tasks
    held: int = 0  # async callbacks that are queued
    errors: int = 0  # exceptions of callbacks
    handler_errors: int = 0  # exceptions of `on_error` itself
    slice_max_s: float = 0.0  # the longest time for which callbacks occupied the event loop
    late_sum_s: float = 0.0  # callback after deadline; one reading of the clock serves some callbacks
    late_max_s: float = 0.0


@asynccontextmanager
async def open_timer_service(
    *,
    tick_s: float = TICK_S,
    pending_max: int = MAX_EVENTS,
    async_max: int = MAX_ASYNC_TASKS,
    on_error: ErrorHandler = log_error,
) -> AsyncIterator[TimerService]:
    """Run a `TimerService` for the length of the block.

    At the end of the block no timer fires any more: waiting ones are dropped (`statistics().pending` has
    their number), running async callbacks are cancelled. Errors leave it in an `ExceptionGroup`, as from
    every nursery.

    Args:
        tick_s: resolution in seconds; at least `MIN_TICK_S`.
        pending_max: maximum of waiting timers.
        async_max: maximum of concurrent tasks of async callbacks. Others are queued in order: late, but never
            lost.
        on_error: gets the `Exception` that a callback raised, and the callback; by default it is logged. Its
            own exceptions are logged and counted. A `BaseException` propagates to the nursery.

    Raises:
        ValueError: `tick_s` is too small.
    """
    if not tick_s >= MIN_TICK_S:
        raise ValueError(f"a tick of {tick_s} s is shorter than {MIN_TICK_S} s")
    async with trio.open_nursery() as nursery:
        service = TimerService(nursery, tick_s, pending_max, async_max, on_error)
        nursery.start_soon(service.run)
        try:
            yield service
        finally:
            service.close()
            nursery.cancel_scope.cancel()


class TimerService:
    """Runs callbacks after delays. Made by `open_timer_service`; call its methods in the event loop only.

    From another thread: ``trio.from_thread.run_sync(timers.schedule, 30.0, fn)``.

    A timer fires once, in the first tick that begins at or after its deadline, and never before. Timers
    of an earlier tick fire before those of a later one, those of one tick in the order of scheduling. One
    that is cancelled before its turn does not fire, even if a callback of the same tick cancels it.

    A callback is a plain function, or an async one, which runs as a task of its own. Its exceptions go to
    `on_error` and do not affect other timers. A callback may schedule, cancel and reschedule; its new timers
    fire in a later tick, even with delay 0, so that no chain of callbacks can block the loop.

    About 0.15 kB per timer besides its arguments. Schedule, cancel and reschedule are O(1).
    """

    def __init__(
        self, nursery: trio.Nursery, tick_s: float, pending_max: int, async_max: int, on_error: ErrorHandler
    ) -> None:
        self._now = trio.lowlevel.current_clock().current_time
        self._ticks = SlotClock(tick_s, self._now())
        self._wheel: Levels[TimerHandle] = Levels(moves_per_tick=max(1, int(MOVES_PER_S * tick_s)))
        self._pending_max = self._free = pending_max
        self._closed = False
        self._nursery = nursery
        self._async_max = async_max
        self._on_error = on_error
        self._queue: deque[tuple[Callback, Coroutine[Any, Any, object]]] = deque()
        self._sleeps_until = AWAKE
        self._sleep = trio.CancelScope()
        self._slice_began = 0.0
        self._statistics = TimerStatistics()

    def schedule(self, delay_s: float, fn: Callback, *args: Any) -> TimerHandle:
        """Call `fn(*args)` after `delay_s` seconds; return a handle to cancel it.

        Raises:
            TimerFull: `pending_max` timers wait.
            TimerError: the delay is out of bounds, or the service is closed.
        """
        if self._free <= 0 or not 0.0 <= delay_s <= MAX_DELAY_S:
            self._check_acceptable(1, delay_s)
        handle = TimerHandle()
        handle.fn = fn
        handle.args = args
        handle.deadline = self._now() + delay_s
        self._free -= 1
        self._add(handle)
        return handle

    def schedule_many(self, timers: Iterable[tuple[float, Callback, *tuple[Any, ...]]]) -> list[TimerHandle]:
        """Schedule a ``(delay_s, fn, *args)`` each, all from the same moment; return the handles in order.

        All or none. Takes about 1 µs each.

        Raises:
            TimerFull, TimerError: see `schedule`.
        """
        many = list(timers)
        self._check_acceptable(len(many), *(each[0] for each in many))
        now, handles = self._now(), []
        for delay_s, fn, *args in many:
            handle = TimerHandle()
            handle.fn, handle.args, handle.deadline = fn, tuple(args), now + delay_s
            self._add(handle)
            handles.append(handle)
        self._free -= len(many)
        return handles

    def cancel(self, handle: TimerHandle) -> bool:
        """Cancel a timer; return False if it has begun to fire or was cancelled."""
        if handle.fn is None:
            return False
        self._wheel.remove(handle)
        self._free += 1
        handle.fn = None
        handle.args = ()
        self._statistics.cancelled += 1
        return True

    def reschedule(self, handle: TimerHandle, delay_s: float) -> bool:
        """Make a waiting timer fire `delay_s` from now instead; return False if it is not waiting.

        Raises:
            TimerError: the delay is out of bounds, or the service is closed.
        """
        if self._closed or not 0.0 <= delay_s <= MAX_DELAY_S:
            self._check_acceptable(0, delay_s)
        if handle.fn is None:
            return False
        handle.deadline = self._now() + delay_s
        self._wheel.remove(handle)
        self._add(handle)
        return True

    def statistics(self) -> TimerStatistics:
        """Return the counters, which continue to change."""
        statistics = self._statistics
        statistics.pending, statistics.held = self._pending_max - self._free, len(self._queue)
        return statistics

    async def run(self) -> None:
        """Fire timers until cancelled; `open_timer_service` starts it."""
        while True:
            self._slice_began = self._now()
            while (
                due := self._wheel.step(self._ticks.at_or_before(self._now()), TIMERS_PER_STEP)
            ) is not None:
                await self._fire(due)
                if self._now() - self._slice_began >= SLICE_S:
                    await self._yield_to_loop()
            self._end_slice()
            await self._sleep_until_due()

    def close(self) -> None:
        """Accept no more timers; `open_timer_service` calls it, and cancels the task."""
        self._closed = True
        self._free -= NO_ROOM
        self._pending_max -= NO_ROOM
        while self._queue:  # a running async callback may still end, and must not start another
            self._queue.pop()[1].close()

    def _add(self, handle: TimerHandle) -> None:
        tick = self._ticks.at_or_after(handle.deadline)
        self._wheel.add(handle, tick)
        if tick < self._sleeps_until:
            self._sleeps_until = tick
            self._sleep.deadline = self._ticks.start_of(tick)

    def _check_acceptable(self, count: int, *delays_s: float) -> None:
        """Raise if `count` timers with these delays cannot be accepted."""
        if self._closed:
            raise TimerError("the timer service is closed")
        for delay_s in delays_s:
            check_delay(delay_s)
        if count > self._free:
            raise TimerFull(f"{self._pending_max} timers may wait; {count} more do not fit")

    # The task

    async def _sleep_until_due(self) -> None:
        tick = self._wheel.next_tick()
        self._sleeps_until = ASLEEP if tick is None else tick
        deadline = math.inf if tick is None else self._ticks.start_of(tick)
        with trio.CancelScope(deadline=deadline) as self._sleep:
            await trio.sleep_forever()
        self._sleeps_until = AWAKE

    async def _fire(self, due: Sequence[TimerHandle]) -> None:
        position = 0
        while (position := self._fire_slice(due, position)) < len(due):
            await self._yield_to_loop()

    def _fire_slice(self, due: Sequence[TimerHandle], position: int) -> int:
        """Run callbacks from `position` on until the slice is over; return the new position."""
        ends = self._slice_began + SLICE_S
        statistics = self._statistics
        while position < len(due) and (now := self._now()) < ends:
            for handle in due[position : position + CALLBACKS_PER_CLOCK_READ]:
                fn = handle.fn
                if fn is None or handle.slot is not None:
                    continue  # cancelled or rescheduled since it was taken
                args = handle.args
                handle.fn = None
                handle.args = ()
                statistics.fired += 1
                self._free += 1
                late_s = now - handle.deadline
                statistics.late_sum_s += late_s
                statistics.late_max_s = max(statistics.late_max_s, late_s)
                try:
                    result = fn(*args)
                except Exception as error:
                    self._report_error(error, fn)
                else:
                    if result is not None and isinstance(result, Coroutine):
                        self._start_async(fn, result)
            position += CALLBACKS_PER_CLOCK_READ
        return position

    def _start_async(self, fn: Callback, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run the coroutine of an async callback, or queue it."""
        if self._statistics.running < self._async_max:
            self._statistics.running += 1
            self._nursery.start_soon(self._run_async, fn, coroutine, name=_name(fn))
        else:
            self._queue.append((fn, coroutine))
            self._free -= 1

    async def _run_async(self, fn: Callback, coroutine: Coroutine[Any, Any, object]) -> None:
        try:
            await coroutine
        except Exception as error:
            self._report_error(error, fn)
        except BaseExceptionGroup as group:
            errors, rest = group.split(Exception)
            if errors is not None:
                self._report_error(errors, fn)
            if rest is not None:
                raise rest from None
        finally:
            self._statistics.running -= 1
        if self._queue:
            self._free += 1
            self._start_async(*self._queue.popleft())

    def _report_error(self, error: Exception, fn: Callback) -> None:
        """Pass an exception of a callback to `on_error`; never raises."""
        self._statistics.errors += 1
        try:
            self._on_error(error, fn)
        except Exception as second:
            self._statistics.handler_errors += 1
            with suppress(Exception):
                _log.error("timer error handler failed", callback=_name(fn), exc_info=second)

    async def _yield_to_loop(self) -> None:
        """Let other tasks run."""
        self._end_slice()
        await trio.lowlevel.checkpoint()
        self._slice_began = self._now()

    def _end_slice(self) -> None:
        self._statistics.slice_max_s = max(self._statistics.slice_max_s, self._now() - self._slice_began)


def _name(callback: Callback) -> str:
    return getattr(callback, "__qualname__", None) or repr(callback)
