"""The waits of a node's tasks: time, a wake event, the answer to a call.

All that calls Redis waits here, and so does the ticker. So the same tasks run on trio, and in a simulation
with virtual time, where a node can be stopped and killed between any two steps.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

import trio

from presence.common.errors import StoreUnavailable
from presence.common.histogram import Histogram
from presence.common.loop_calls import InThread, LoopCall, Turn, Wait
from presence.common.threads import call_once_started

CALL_TIMEOUT_S: Final = 10.0  # reading a key file takes milliseconds; with 100 RS256 keys, one second

Found = TypeVar("Found")


class ThreadTimeout(Exception):
    """The call takes too long, or an earlier one still blocks the thread."""


async def run_in_thread(function: Callable[[], Found], limiter: trio.CapacityLimiter | None = None) -> Found:
    """Return what a function returns in a thread, which is abandoned if the wait is cancelled.

    Raises:
        NoThread: the function was not called.
    """
    run_sync = partial(trio.to_thread.run_sync, abandon_on_cancel=True, limiter=limiter)
    return await call_once_started(function, run_sync)


class AbandonableThread:
    """Runs calls that may block indefinitely, such as a read from a dead disk, in a thread with a time-out.

    One call at a time, for one caller at a time.
    """

    def __init__(self) -> None:
        self._thread = trio.CapacityLimiter(1)  # an abandoned thread keeps it until it ends

    async def call(self, function: Callable[[], Found]) -> Found:
        """Return what a function returns, or raise what it raises.

        Raises:
            ThreadTimeout: it was abandoned after `CALL_TIMEOUT_S`, or not called because the last one hangs.
            NoThread: it was not called.
        """
        if self._thread.borrowed_tokens:
            raise ThreadTimeout("takes too long, and hangs still")
        with trio.move_on_after(CALL_TIMEOUT_S):
            return await run_in_thread(function, self._thread)
        raise ThreadTimeout("takes too long, and hangs still")


T = TypeVar("T")


class WakeEvent(Protocol):
    """An event for one waiting task, which resets itself."""

    def set(self) -> None:
        """Wake the task that waits, or that waits next."""

    async def wait(self, timeout_s: float) -> bool:
        """Wait until it is set, or return if it is already, and reset it; False: not within `timeout_s`."""


Linger: TypeAlias = Callable[[], Awaitable[None]]


class Caller(Protocol):
    """Makes calls of Redis, which block, while other tasks run."""

    async def call(self, blocking: Callable[[], T], linger: Linger | None = None) -> T:
        """Return what `blocking` returns. A cancellation is raised in the call, at the point where it waits.

        `linger` is awaited once the call has been sent, before its answer is read; None: nothing is.
        """


class Runtime(Protocol):
    """Where a node's tasks run."""

    async def sleep(self, seconds: float) -> None:
        """Wait; 0 or less lets other tasks run."""

    def wake_event(self) -> WakeEvent:
        """Return a new event."""

    def loop_caller(self) -> Caller:
        """Return a caller whose calls wait on the event loop."""


class TimedCaller:
    """Lets a histogram observe the seconds that another caller's calls take, failed ones included."""

    def __init__(self, caller: Caller, took: Histogram, clock: Callable[[], float]) -> None:
        self._caller = caller
        self._took = took
        self._clock = clock

    async def call(self, blocking: Callable[[], T], linger: Linger | None = None) -> T:
        """Lingering does not count."""
        begun = self._clock()

        async def timed() -> None:
            nonlocal begun
            lingers_from = self._clock()
            await cast(Linger, linger)()
            begun += self._clock() - lingers_from

        try:
            return await self._caller.call(blocking, timed if linger else None)
        finally:
            self._took.observe(self._clock() - begun)


class TrioRuntime:
    """A `Runtime` on trio."""

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(max(0.0, seconds))

    def wake_event(self) -> "TrioWakeEvent":
        return TrioWakeEvent()

    def loop_caller(self) -> "LoopCaller":
        return LoopCaller()


class TrioWakeEvent:
    """A `WakeEvent` that is set only from the event loop's thread."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float) -> bool:
        with trio.move_on_after(max(0.0, timeout_s)):
            await self._event.wait()
        is_set = self._event.is_set()
        if is_set:
            self._event = trio.Event()
        return is_set


class LoopCaller:
    """A `Caller` by `presence.common.loop_calls`; a call must not compute for long between its waits."""

    async def call(self, blocking: Callable[[], T], linger: Linger | None = None) -> T:
        running = LoopCall(blocking)
        try:
            result: Any = running.switch()
        except MemoryError as error:
            if running.dead:
                raise
            raise StoreUnavailable("out of memory") from error  # it could not begin
        while not running.dead:
            try:
                if linger is not None and isinstance(result, Wait) and result.is_read:
                    await linger()
                    linger, answer = None, True  # if nothing came meanwhile, it asks again
                else:
                    answer = await self._perform(result)
            except BaseException as error:  # the call decides what it means
                result = running.throw(error)
            else:
                result = running.switch(answer)
        return cast(T, result)

    @staticmethod
    async def _perform(request: Wait | InThread | Turn) -> Any:
        if isinstance(request, Turn):
            return await trio.lowlevel.checkpoint()
        if isinstance(request, InThread):
            return await run_in_thread(request.function)
        with trio.move_on_after(request.timeout_s) as scope:
            wait = trio.lowlevel.wait_readable if request.is_read else trio.lowlevel.wait_writable
            if (waker := request.waker) is None:
                await wait(request.sock)
            else:
                waker.begin(scope.cancel)
                try:
                    await wait(request.sock)
                finally:
                    waker.finish()
        return not scope.cancelled_caught
