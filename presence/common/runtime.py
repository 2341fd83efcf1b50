"""What a node's tasks wait for: time, a bell, an answer from a thread.

All that waits in relay, cluster and ticker waits here. So the same tasks run on trio, and in a simulation
that puts virtual time in its place, where a node can be stopped and killed between any two steps.
"""

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import trio

from presence.common.histogram import Histogram

CALL_TIMEOUT_S: Final = 10.0  # a key file takes some milliseconds, a hundred keys of RS256 a second

Found = TypeVar("Found")


class ThreadTimeout(Exception):
    """There is no answer: the call takes too long, or the one before it still does."""


class AbandonableThread:
    """Where blocking calls are made, one at a time; for one caller at a time."""

    def __init__(self) -> None:
        self._thread = trio.CapacityLimiter(1)  # which an abandoned thread keeps until it ends

    async def call(self, function: Callable[[], Found]) -> Found:
        """Return what a function returns, or raise what it raises.

        Raises:
            Hanging: it is abandoned after `CALL_TIMEOUT_S`, or not called, for the one before still hangs.
        """
        if self._thread.borrowed_tokens:
            raise ThreadTimeout("takes too long, and hangs still")
        with trio.move_on_after(CALL_TIMEOUT_S):
            return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self._thread)
        raise ThreadTimeout("takes too long, and hangs still")


T = TypeVar("T")


class WakeEvent(Protocol):
    """Rung by anybody, heard by one task."""

    def set(self) -> None:
        """Wake whoever waits, or who waits next."""

    async def wait(self, timeout_s: float) -> bool:
        """Wait until it rings, or has rung since it was last heard; False: not within `timeout_s`."""


class ThreadCaller(Protocol):
    """Makes calls that block, one at a time."""

    async def call(self, blocking: Callable[[], T]) -> T:
        """Return what `blocking` returns. If the wait is cancelled the call is interrupted."""


class Runtime(Protocol):
    """Where a node's tasks run."""

    async def sleep(self, seconds: float) -> None:
        """Wait; 0 or less gives others a turn."""

    def wake_event(self) -> WakeEvent:
        """Return a new bell."""

    def thread_caller(self, interrupt: Callable[[], None]) -> ThreadCaller:
        """Return a caller; `interrupt` makes a call fail that still waits for its answer."""


class TimedCaller:
    """A caller whose calls are timed.

    Args:
        caller: makes the calls.
        took: takes the seconds that each was waited for, failed ones too.
        clock: monotonic seconds.
    """

    def __init__(self, caller: ThreadCaller, took: Histogram, clock: Callable[[], float]) -> None:
        self._caller = caller
        self._took = took
        self._clock = clock

    async def call(self, blocking: Callable[[], T]) -> T:
        """See `ThreadCaller`."""
        begun = self._clock()
        try:
            return await self._caller.call(blocking)
        finally:
            self._took.observe(self._clock() - begun)


class TrioRuntime:
    """Tasks of trio, calls in threads."""

    async def sleep(self, seconds: float) -> None:
        """See `Runtime`."""
        await trio.sleep(max(0.0, seconds))

    def wake_event(self) -> "TrioWakeEvent":
        """See `Runtime`."""
        return TrioWakeEvent()

    def thread_caller(self, interrupt: Callable[[], None]) -> "TrioThreadCaller":
        """See `Runtime`."""
        return TrioThreadCaller(interrupt)


class TrioWakeEvent:
    """See `WakeEvent`; rung from the event loop's thread only."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        """See `WakeEvent`."""
        self._event.set()

    async def wait(self, timeout_s: float) -> bool:
        """See `WakeEvent`."""
        with trio.move_on_after(max(0.0, timeout_s)):
            await self._event.wait()
        heard = self._event.is_set()
        if heard:
            self._event = trio.Event()
        return heard


class TrioThreadCaller:
    """See `ThreadCaller`: one worker thread at a time.

    A cancelled call leaves its thread behind; the next call waits for that thread to end.
    """

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt
        self._thread = trio.CapacityLimiter(1)

    async def call(self, blocking: Callable[[], T]) -> T:
        """See `ThreadCaller`."""
        try:
            return await trio.to_thread.run_sync(blocking, limiter=self._thread, abandon_on_cancel=True)
        except trio.Cancelled:
            self._interrupt()
            raise
