"""The subscription as an async iterator, on asyncio and trio. redis-py blocks, so it runs in a worker thread.

When a call is cancelled, its thread is abandoned and its connection closed, which ends the thread: cancelling
never waits for a blocking read, and no answer is mistaken for that of another call. The next call waits for
the thread, because only one may run, and gives what the thread has found.
"""

from collections.abc import Callable
from functools import partial
from threading import Lock
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from presence.common.async_threads import call_in_thread
from presence.common.threads import NoThread
from presence.subscriber.blocking import SubscriptionBase, check_count
from presence.subscriber.source import Source

STOP_TIMEOUT_S = (
    1.0  # to hand back events at the end, although the task is cancelled; this takes milliseconds
)
T = TypeVar("T")


class Subscription(SubscriptionBase[T]):
    """An async iterator of events that ends only after `drain`; used from one task.

    Like `BlockingSubscription`; cancelling leaves the loop, too, and the end of the block then hands back
    events, for a second at most.
    """

    def __init__(
        self, source: Source[Any], decode: Callable[[Any], T | None], *, auto_ack: bool = True
    ) -> None:
        super().__init__(source, decode, auto_ack=auto_ack)
        self._thread_lock = Lock()  # held by a thread while it runs
        self._thread_abandoned = False
        self._is_entered = False

    def __aiter__(self) -> Self:
        self._is_entered = True
        return self

    async def __anext__(self) -> T:
        """Acknowledge the current event and wait for the next.

        Raises:
            RedisError: the first call could not reach Redis, or Redis answered with a permanent error.
            ValueError: Redis does not hold data of a presence server.
            ConsumerInUse: another live process reads the group under the same name.
        """
        if found := await self.batch(1):
            return found[0]
        raise StopAsyncIteration

    async def batch(self, most: int) -> list[T]:
        """Acknowledge the current events, and return the next ones: at most `most` of those that are ready.

        Waits until there is one at least; after `drain` there is none. The events are acknowledged together.

        Raises:
            RedisError, ConsumerInUse: see `__anext__`.
            ValueError: see `__anext__`; or `most` is below 1.
        """
        check_count(most)
        await self._join_thread()
        if self._is_entered:
            self._rewind()
            self._is_entered = False
        self._begin(most)
        while not self._drained.is_set():
            try:
                if self._source.is_group or self._source.has_work:
                    await self._in_thread(partial(self._attempt, most))
                else:
                    await checkpoint()
                    self._attempt(most)
            except Exception as error:
                await anyio.sleep(self._retry.delay_after(error))
                continue
            self._retry.succeeded()
            if self._found and not self._drained.is_set():
                return self._take(most)
        await self._in_thread(partial(self._stop, is_drained=True))
        return []

    async def flush(self) -> None:
        """Settle in Redis immediately what was settled here, for example before work done at most once.

        Waits for a read of the loop in another task, half a second at most.

        Raises:
            RedisError: Redis is unreachable; the next call of the loop tries again.
        """
        await self._join_thread()
        await self._in_thread(self._source.flush)

    async def close(self) -> None:
        """Hand back to the group what is not acknowledged, within a second, and close the connection."""
        await self._close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(error)

    async def _close(self, error: BaseException | None) -> None:
        try:
            with anyio.move_on_after(STOP_TIMEOUT_S, shield=True) as scope:
                await self._join_thread()
                await self._in_thread(partial(self._stop, error))
            if scope.cancelled_caught:
                self._warn(f"no answer within {STOP_TIMEOUT_S:g} s")
        except NoThread as failure:
            self._warn(failure)
        finally:
            self._source.close()

    async def _join_thread(self) -> None:
        """Wait until an abandoned thread has ended."""
        if self._thread_abandoned:
            await self._in_thread(lambda: None)
            self._thread_abandoned = False

    async def _in_thread(self, call: Callable[[], None]) -> None:
        def locked() -> None:
            with self._thread_lock:
                call()

        try:
            await call_in_thread(locked)
        except anyio.get_cancelled_exc_class():
            self._thread_abandoned = True
            self._source.close()
            raise
