"""The subscription as an async iterator, on asyncio and trio. redis-py blocks, so it runs in a worker thread.

When a call is cancelled, its thread is abandoned and its connection closed, which ends the thread: cancelling
never waits for a blocking read, and no answer is mistaken for that of another call. The next call waits for
the thread, because only one may run.
"""

from collections.abc import Callable
from threading import Lock
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from presence.common.async_threads import call_in_thread
from presence.common.threads import NoThread
from presence.store.client import RedisError
from presence.subscriber.blocking import SubscriptionBase, check_count, error_line
from presence.subscriber.connection import Source, log

ABANDON_TIMEOUT_S = 1.0  # to store in Redis why the loop was left; this takes milliseconds
T = TypeVar("T")


class Subscription(SubscriptionBase[T]):
    """An async iterator of events that never ends by itself; used from one task.

    Like `BlockingSubscription`; cancelling leaves the loop, too. Arguments: see `SubscriptionBase`.
    """

    def __init__(self, source: Source[Any], decode: Callable[[Any], T | None]) -> None:
        super().__init__(source, decode)
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
        """
        return (await self.batch(1))[0]

    async def batch(self, most: int) -> list[T]:
        """Acknowledge the current events, and return the next ones: at most `most` of those that are ready.

        Waits until there is one at least. The events are acknowledged together.

        Raises:
            RedisError: see `__anext__`.
            ValueError: see `__anext__`; or `most` is below 1.
        """
        check_count(most)
        await self._join_thread()
        if self._is_entered:
            self._source.rewind()
            self._is_entered = False
        self._source.ack()
        found: list[T] = []
        while not found:
            await self._fetch()
            while len(found) < most and (event := self._next_event()) is not None:
                found.append(event)
        return found

    async def acknowledge(self, *events: T) -> None:
        """Acknowledge the current events immediately, for example before a ``break``.

        Args:
            events: acknowledge only these; for subscriptions whose events are the entries themselves.

        Raises:
            RedisError: Redis is unreachable; the events are acknowledged with the next ones.
        """
        await self._join_thread()
        for event in events:
            self._source.ack(event)
        if not events:
            self._source.ack()
        await self._in_thread(self._source.flush)

    async def give_up(self, event: T, error: str) -> None:
        """Make one of the current events of a group a dead letter; `error` says why.

        Only for subscriptions whose events are the entries themselves.

        Raises:
            RedisError: Redis is unreachable, and the event still a current one.
        """
        await self._join_thread()
        await self._in_thread(lambda: self._source.give_up(event, error))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, Exception):
                with anyio.move_on_after(ABANDON_TIMEOUT_S):
                    await self._abandon(error)
        finally:
            self.close()

    async def _abandon(self, error: Exception) -> None:
        await self._join_thread()
        self._source.abandon(error_line(error))
        try:
            await self._in_thread(self._source.flush)
        except (RedisError, NoThread) as failure:
            log.warning("cannot store why an event failed: %s", failure)

    async def _fetch(self) -> None:
        if not self._source.has_work:
            await checkpoint()
            return
        try:
            await self._in_thread(self._source.fetch)
        except Exception as error:
            await anyio.sleep(self._retry.delay_after(error))
        else:
            self._retry.succeeded()

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
