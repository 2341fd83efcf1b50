"""The subscription as an asynchronous iterator on trio. redis-py blocks, so it runs in a worker thread.

When a call is cancelled its thread is left behind and its connection closed, which ends the thread: nothing
waits for a blocking read, and no answer is taken for that of another call. The next call waits for that
thread, for there is room for one only.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

import trio

from presence.store.client import RedisError
from presence.subscriber.blocking import Face, described
from presence.subscriber.connection import Source, log

LEAVE_TIMEOUT_S = 1.0  # to tell Redis why the loop was left; its answer takes milliseconds
T = TypeVar("T")


class Subscription(Face[T]):
    """An asynchronous iterator of events that never ends by itself; used from one task.

    As `BlockingSubscription`; a loop that is cancelled is left, too. Arguments: see `Face`.
    """

    def __init__(self, source: Source[Any], decode: Callable[[Any], T | None]) -> None:
        super().__init__(source, decode)
        self._limiter = trio.CapacityLimiter(1)
        self._left_a_thread = False
        self._is_entered = False

    def __aiter__(self) -> Self:
        self._is_entered = True
        return self

    async def __anext__(self) -> T:
        """Acknowledge the present event and wait for the next.

        Raises:
            RedisError: Redis could not be reached at first, or answered with an error that does not pass.
            ValueError: what Redis holds is no data of a presence server.
        """
        await self._join_thread()
        if self._is_entered:
            self._source.reenter()
            self._is_entered = False
        self._source.settle()
        while True:
            await self._fetch()
            if (event := self._take()) is not None:
                return event

    async def acknowledge(self) -> None:
        """Acknowledge the present event at once, for example before a ``break``.

        Raises:
            RedisError: Redis could not be reached; it is acknowledged with the next event.
        """
        await self._join_thread()
        self._source.settle()
        await self._in_thread(self._source.flush)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, Exception):
                with trio.move_on_after(LEAVE_TIMEOUT_S):
                    await self._leave(error)
        finally:
            self.close()

    async def _leave(self, error: Exception) -> None:
        await self._join_thread()
        self._source.leave(described(error))
        try:
            await self._in_thread(self._source.flush)
        except RedisError as failure:
            log.warning("cannot store why an event failed: %s", failure)

    async def _fetch(self) -> None:
        if not self._source.has_work:
            await trio.lowlevel.checkpoint()
            return
        try:
            await self._in_thread(self._source.fetch)
        except Exception as error:
            await trio.sleep(self._retry.delay_after(error))
        else:
            self._retry.worked()

    async def _join_thread(self) -> None:
        """Wait until a thread that was left behind has ended; it holds the only place."""
        if self._left_a_thread:
            async with self._limiter:
                self._left_a_thread = False

    async def _in_thread(self, call: Callable[[], None]) -> None:
        try:
            await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._limiter)
        except trio.Cancelled:
            self._left_a_thread = True
            self._source.close()
            raise
