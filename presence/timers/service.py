"""Timers inside the event loop: callbacks by the million, driven by one task, at ticks of 10 ms.

    async with open_timer_service() as timers:
        handle = timers.schedule(30.0, connection.time_out)
        timers.cancel(handle)

Time is trio's clock. Tick n begins at start + n · tick_s, whatever happened before: nothing drifts. The task
sleeps until the next tick at which something is due, so an idle service costs nothing. One that was late
catches up, oldest first, and skips nothing. After `SLICE_S` of callbacks everybody else has a turn.
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

from presence.core.ticks import Ticks
from presence.timers.interface import DELAY_S_MAX, EVENTS_MAX, TimerError, TimerFull, check_delay
from presence.timers.levels import Levels, TimerEntry

Callback = Callable[..., object]
ErrorHandler = Callable[[Exception, Callback], None]

TICK_S: Final = 0.01
TICK_S_MIN: Final = 0.001  # trio's own sleeps are no finer
SLICE_S: Final = 0.002  # a fifth of a tick: so long, and a few callbacks more, others wait
STEP: Final = 256  # timers taken from the wheel, or moved in it, at once
MOVES_PER_S: Final = 200_000  # timers that may go down a level of the wheel: a fifth of a core
ASYNC_MAX: Final = 1_000  # tasks of async callbacks at once: some 5 MB
CLOCK_EVERY: Final = 8  # callbacks between two looks at the clock
AWAKE: Final = -1  # no tick is before it: nobody has to wake the task
ASLEEP: Final = 1 << 62
NO_ROOM: Final = 1 << 62  # taken from what there is when the service closes; what is pending stays known

_log = structlog.get_logger(__name__)


def log_error(error: Exception, callback: Callback) -> None:
    """Log what a callback raised, with its traceback."""
    _log.error("timer callback failed", callback=_name(callback), exc_info=error)


class TimerHandle(TimerEntry):
    """A timer that was scheduled; names it to `cancel` and `reschedule` of the service that returned it.

    It has no constructor that takes its values: to fill it in place is what makes scheduling cheap.

    Attributes:
        deadline: when it is to fire, by trio's clock.
        fn, args: the callback; None and () once it fires or was cancelled, so that nothing is kept alive.
    """

    __slots__ = ("args", "deadline", "fn")

    deadline: float
    fn: Callback | None
    args: tuple[Any, ...]


@dataclass(slots=True)
class TimerStatistics:
    """What a service has done.

    Attributes:
        pending: timers that wait, async callbacks in line among them.
        fired, cancelled: timers so far.
        running, held: async callbacks that run as tasks, and that wait in line for others to end.
        errors, handler_errors: callbacks that raised, and how often `on_error` itself did.
        slice_max_s: the longest time for which callbacks kept the loop from everybody else.
        late_sum_s, late_max_s: callback after deadline; a look at the clock counts for some callbacks.
    """

    pending: int = 0
    fired: int = 0
    cancelled: int = 0
    running: int = 0
    held: int = 0
    errors: int = 0
    handler_errors: int = 0
    slice_max_s: float = 0.0
    late_sum_s: float = 0.0
    late_max_s: float = 0.0


@asynccontextmanager
async def open_timer_service(
    *,
    tick_s: float = TICK_S,
    pending_max: int = EVENTS_MAX,
    async_max: int = ASYNC_MAX,
    on_error: ErrorHandler = log_error,
) -> AsyncIterator[TimerService]:
    """Run a `TimerService` for the length of the block.

    At the end of the block no timer fires any more: those that wait are forgotten (`statistics().pending`
    says how many), async callbacks that run are cancelled. Errors leave it in an `ExceptionGroup`, as they
    leave every nursery.

    Args:
        tick_s: how fine time is, seconds; at least `TICK_S_MIN`.
        pending_max: timers that may wait.
        async_max: tasks of async callbacks at once. At the limit others wait in line, first come first
            served: they are late, and never lost.
        on_error: gets the `Exception` that a callback raised, and the callback; by default it is logged. What
            it raises itself is logged and counted. Whatever is no `Exception` goes to the nursery.

    Raises:
        ValueError: `tick_s` is too small.
    """
    if not tick_s >= TICK_S_MIN:
        raise ValueError(f"a tick of {tick_s} s is shorter than {TICK_S_MIN} s")
    async with trio.open_nursery() as nursery:
        service = TimerService(nursery, tick_s, pending_max, async_max, on_error)
        nursery.start_soon(service.run)
        try:
            yield service
        finally:
            service.close()
            nursery.cancel_scope.cancel()


class TimerService:
    """Calls back when a time has come. Made by `open_timer_service`; the verbs belong to its event loop.

    Another thread asks the loop: ``trio.from_thread.run_sync(timers.schedule, 30.0, fn)``.

    A timer fires once, in the first tick that begins at or after its deadline, and never before. Timers
    of an earlier tick fire before those of a later one, those of one tick in the order of scheduling. One
    that is cancelled before its turn does not fire, even if a callback of the same tick cancels it.

    A callback is a plain function, or an async one: that runs as a task of its own. What it raises goes to
    `on_error` and harms nobody. A callback may schedule, cancel and reschedule; what it schedules comes in a
    later tick, delay 0 too, so that no chain of callbacks can hold the loop.

    About 0.15 kB a timer beside its arguments. Schedule, cancel and reschedule are O(1).
    """

    def __init__(
        self, nursery: trio.Nursery, tick_s: float, pending_max: int, async_max: int, on_error: ErrorHandler
    ) -> None:
        self._now = trio.lowlevel.current_clock().current_time
        self._ticks = Ticks(tick_s, self._now())
        self._wheel: Levels[TimerHandle] = Levels(moves_per_tick=max(1, int(MOVES_PER_S * tick_s)))
        self._pending_max = self._room = pending_max
        self._closed = False
        self._nursery = nursery
        self._async_max = async_max
        self._on_error = on_error
        self._line: deque[tuple[Callback, Coroutine[Any, Any, object]]] = deque()
        self._sleeps_until = AWAKE
        self._sleep = trio.CancelScope()
        self._slice_began = 0.0
        self._figures = TimerStatistics()

    def schedule(self, delay_s: float, fn: Callback, *args: Any) -> TimerHandle:
        """Call `fn(*args)` after `delay_s` seconds; return the handle with which to cancel it.

        Raises:
            TimerFull: `pending_max` timers wait.
            TimerError: the delay is out of bounds, or the service is closed.
        """
        if self._room <= 0 or not 0.0 <= delay_s <= DELAY_S_MAX:
            self._refuse(1, delay_s)
        handle = TimerHandle()
        handle.fn = fn
        handle.args = args
        handle.deadline = self._now() + delay_s
        self._room -= 1
        self._add(handle)
        return handle

    def schedule_many(self, timers: Iterable[tuple[float, Callback, *tuple[Any, ...]]]) -> list[TimerHandle]:
        """Schedule a (delay_s, fn, *args) each, all from the same moment; return the handles in that order.

        All or none. Keeps the loop for about 1 µs each.

        Raises:
            TimerFull, TimerError: see `schedule`.
        """
        many = list(timers)
        self._refuse(len(many), *(each[0] for each in many))
        now, handles = self._now(), []
        for delay_s, fn, *args in many:
            handle = TimerHandle()
            handle.fn, handle.args, handle.deadline = fn, tuple(args), now + delay_s
            self._add(handle)
            handles.append(handle)
        self._room -= len(many)
        return handles

    def cancel(self, handle: TimerHandle) -> bool:
        """Let a timer not fire; return False if it has begun to fire or was cancelled."""
        if handle.fn is None:
            return False
        self._wheel.remove(handle)
        self._room += 1
        handle.fn = None
        handle.args = ()
        self._figures.cancelled += 1
        return True

    def reschedule(self, handle: TimerHandle, delay_s: float) -> bool:
        """Let a timer that waits fire `delay_s` from now instead; False if it waits no more.

        Raises:
            TimerError: the delay is out of bounds, or the service is closed.
        """
        if self._closed or not 0.0 <= delay_s <= DELAY_S_MAX:
            self._refuse(0, delay_s)
        if handle.fn is None:
            return False
        handle.deadline = self._now() + delay_s
        self._wheel.remove(handle)
        self._add(handle)
        return True

    def statistics(self) -> TimerStatistics:
        """Return the figures so far; they go on counting."""
        figures = self._figures
        figures.pending, figures.held = self._pending_max - self._room, len(self._line)
        return figures

    async def run(self) -> None:
        """Fire timers until cancelled; `open_timer_service` starts it."""
        while True:
            self._slice_began = self._now()
            while (due := self._wheel.step(self._ticks.begun(self._now()), STEP)) is not None:
                await self._fire(due)
                if self._now() - self._slice_began >= SLICE_S:
                    await self._turn()
            self._end_slice()
            await self._sleep_until_due()

    def close(self) -> None:
        """Take no more timers; `open_timer_service` calls it, and cancels the task."""
        self._closed = True
        self._room -= NO_ROOM
        self._pending_max -= NO_ROOM
        while self._line:  # an async callback that runs may still end, and must find no other
            self._line.pop()[1].close()

    def _add(self, handle: TimerHandle) -> None:
        tick = self._ticks.at_or_after(handle.deadline)
        self._wheel.add(handle, tick)
        if tick < self._sleeps_until:
            self._sleeps_until = tick
            self._sleep.deadline = self._ticks.starts(tick)

    def _refuse(self, count: int, *delays_s: float) -> None:
        """Say why so many timers cannot be taken, if they cannot."""
        if self._closed:
            raise TimerError("the timer service is closed")
        for delay_s in delays_s:
            check_delay(delay_s)
        if count > self._room:
            raise TimerFull(f"{self._pending_max} timers may wait; {count} more do not fit")

    # The task

    async def _sleep_until_due(self) -> None:
        tick = self._wheel.next_tick()
        self._sleeps_until = ASLEEP if tick is None else tick
        deadline = math.inf if tick is None else self._ticks.starts(tick)
        with trio.CancelScope(deadline=deadline) as self._sleep:
            await trio.sleep_forever()
        self._sleeps_until = AWAKE

    async def _fire(self, due: Sequence[TimerHandle]) -> None:
        position = 0
        while (position := self._fire_slice(due, position)) < len(due):
            await self._turn()

    def _fire_slice(self, due: Sequence[TimerHandle], position: int) -> int:
        """Call back from `position` on until the slice is over; return the new position."""
        ends = self._slice_began + SLICE_S
        figures = self._figures
        while position < len(due) and (now := self._now()) < ends:
            for handle in due[position : position + CLOCK_EVERY]:
                fn = handle.fn
                if fn is None or handle.slot is not None:
                    continue  # cancelled or rescheduled since it was taken
                args = handle.args
                handle.fn = None
                handle.args = ()
                figures.fired += 1
                self._room += 1
                late_s = now - handle.deadline
                figures.late_sum_s += late_s
                figures.late_max_s = max(figures.late_max_s, late_s)
                try:
                    result = fn(*args)
                except Exception as error:
                    self._failed(error, fn)
                else:
                    if result is not None and isinstance(result, Coroutine):
                        self._start(fn, result)
            position += CLOCK_EVERY
        return position

    def _start(self, fn: Callback, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run what an async callback returned, or let it wait in line."""
        if self._figures.running < self._async_max:
            self._figures.running += 1
            self._nursery.start_soon(self._run_async, fn, coroutine, name=_name(fn))
        else:
            self._line.append((fn, coroutine))
            self._room -= 1

    async def _run_async(self, fn: Callback, coroutine: Coroutine[Any, Any, object]) -> None:
        try:
            await coroutine
        except Exception as error:
            self._failed(error, fn)
        except BaseExceptionGroup as group:
            errors, rest = group.split(Exception)
            if errors is not None:
                self._failed(errors, fn)
            if rest is not None:
                raise rest from None
        finally:
            self._figures.running -= 1
        if self._line:
            self._room += 1
            self._start(*self._line.popleft())

    def _failed(self, error: Exception, fn: Callback) -> None:
        """Hand over what a callback raised; raise nothing."""
        self._figures.errors += 1
        try:
            self._on_error(error, fn)
        except Exception as second:
            self._figures.handler_errors += 1
            with suppress(Exception):
                _log.error("timer error handler failed", callback=_name(fn), exc_info=second)

    async def _turn(self) -> None:
        """Let everybody else run."""
        self._end_slice()
        await trio.lowlevel.checkpoint()
        self._slice_began = self._now()

    def _end_slice(self) -> None:
        self._figures.slice_max_s = max(self._figures.slice_max_s, self._now() - self._slice_began)


def _name(callback: Callback) -> str:
    return getattr(callback, "__qualname__", None) or repr(callback)
