"""Timers of each kind behind the same verbs: ours, a heap, and a trio task each.

The heap is what a careful programmer writes without a wheel: tuples that compare in C, one task that
sleeps until the head, cancelling by a mark, and asyncio's rule for what is marked
(`BaseEventLoop._run_once`): more than half of the heap, and it is built anew. It calls back in slices as
long as ours.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol

import trio

from presence.timers.service import SLICE_S, TICK_S, open_timer_service

CANCELLED_MIN: Final = 100  # asyncio's own figure
CLOCK_EVERY: Final = 8  # as ours

Callback = Callable[..., object]


class Timers(Protocol):
    """What is measured; `TimerService` is one."""

    def schedule(self, delay_s: float, fn: Callback, *args: Any) -> Any:
        """Call `fn(*args)` after `delay_s`; return what cancels it."""

    def cancel(self, handle: Any) -> object:
        """Let it not be called."""


class Handle:
    """A timer of the heap."""

    __slots__ = ("args", "fn")

    fn: Callback | None
    args: tuple[Any, ...]


class Heap:
    """A heap of (deadline, number, handle).

    Args:
        tick_s: the task wakes at multiples of it, or 0: at each deadline.
    """

    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s
        self._now = trio.lowlevel.current_clock().current_time
        self._heap: list[tuple[float, int, Handle]] = []
        self._number = self._cancelled = 0
        self._sleeps_until = -math.inf
        self._sleep = trio.CancelScope()

    def schedule(self, delay_s: float, fn: Callback, *args: Any) -> Handle:
        """See `Timers`."""
        if not delay_s >= 0.0:
            raise ValueError("a negative delay")
        handle = Handle()
        handle.fn = fn
        handle.args = args
        deadline = self._now() + delay_s
        self._number += 1
        heapq.heappush(self._heap, (deadline, self._number, handle))
        if deadline < self._sleeps_until:
            self._sleeps_until = deadline
            self._sleep.deadline = self._wakes(deadline)
        return handle

    def cancel(self, handle: Handle) -> bool:
        """See `Timers`."""
        if handle.fn is None:
            return False
        handle.fn = None
        handle.args = ()
        self._cancelled += 1
        if self._cancelled > CANCELLED_MIN and 2 * self._cancelled > len(self._heap):
            self._heap = [each for each in self._heap if each[2].fn is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0
        return True

    async def run(self) -> None:
        """Call back for ever."""
        while True:
            while self._slice():
                await trio.lowlevel.checkpoint()
            self._sleeps_until = self._heap[0][0] if self._heap else math.inf
            with trio.CancelScope(deadline=self._wakes(self._sleeps_until)) as self._sleep:
                await trio.sleep_forever()
            self._sleeps_until = -math.inf

    def _wakes(self, deadline: float) -> float:
        if not self._tick_s or deadline == math.inf:
            return deadline
        return math.ceil(deadline / self._tick_s) * self._tick_s

    def _slice(self) -> bool:
        """Call back until the slice is over, or nothing is due; return whether more may be."""
        pop = heapq.heappop
        ends = self._now() + SLICE_S
        while (now := self._now()) < ends:
            for _ in range(CLOCK_EVERY):
                heap = self._heap  # who cancels may build it anew
                if not heap or heap[0][0] > now:
                    return False
                handle = pop(heap)[2]
                fn, args = handle.fn, handle.args
                if fn is None:
                    self._cancelled -= 1
                    continue
                handle.fn = None
                try:
                    fn(*args)
                except Exception as error:
                    print(error)
        return True


class Tasks:
    """A task a timer, each in a cancel scope of its own."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def schedule(self, delay_s: float, fn: Callback, *args: Any) -> trio.CancelScope:
        """See `Timers`."""
        scope = trio.CancelScope()
        self._nursery.start_soon(self._call, scope, trio.current_time() + delay_s, fn, *args)
        return scope

    def cancel(self, handle: trio.CancelScope) -> None:
        """See `Timers`."""
        handle.cancel()

    async def _call(self, scope: trio.CancelScope, deadline: float, fn: Callback, *args: Any) -> None:
        with scope:
            await trio.sleep_until(deadline)
            fn(*args)


@asynccontextmanager
async def _wheel() -> AsyncIterator[Timers]:
    async with open_timer_service(pending_max=10_000_000) as service:
        yield service


@asynccontextmanager
async def _heap(tick_s: float) -> AsyncIterator[Timers]:
    async with trio.open_nursery() as nursery:
        heap = Heap(tick_s)
        nursery.start_soon(heap.run)
        yield heap
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _tasks() -> AsyncIterator[Timers]:
    async with trio.open_nursery() as nursery:
        yield Tasks(nursery)
        nursery.cancel_scope.cancel()


KINDS: dict[str, Callable[[], AbstractAsyncContextManager[Timers]]] = {
    "TimerService": _wheel,
    "heapq": lambda: _heap(0.0),
    "heapq, 10 ms ticks": lambda: _heap(TICK_S),
    "trio tasks": _tasks,
}
