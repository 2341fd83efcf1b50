"""The subscription as a plain iterator, for synchronous programs."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from presence.store.client import RedisError
from presence.subscriber.connection import Retry, Source, log

T = TypeVar("T")


class Face(Generic[T]):
    """What both kinds of subscription do without waiting.

    `decode` makes of an item what is handed out, or None for one that is passed over.
    """

    def __init__(self, source: Source[Any], decode: Callable[[Any], T | None]) -> None:
        self._source = source
        self._decode = decode
        self._retry = Retry(source.redis)

    def _take(self) -> T | None:
        """Return the next event of those that are ready; what is passed over is acknowledged."""
        while (item := self._source.take()) is not None:
            if (event := self._decode(item)) is not None:
                return event
            log.debug("skipped an unrequested or unreadable entry: %r", item)
            self._source.settle()
        return None

    def fail(self, error: BaseException | str) -> None:
        """Go on without acknowledging the present event: it comes again once it was idle for long enough.

        The error is kept for the dead letter, without secrets in URLs.
        """
        self._source.fail(described(error))

    def close(self) -> None:
        """Close the connection. What was not acknowledged stays with the group."""
        self._source.close()


class BlockingSubscription(Face[T]):
    """An iterator of events that never ends by itself; used from one thread.

    An event is acknowledged when the next one is asked for. Leaving the loop, by ``break`` or by an
    exception, leaves the present event unacknowledged; when the loop is entered again, it comes again.
    In a ``with`` statement the error that left the loop is kept for the dead letter, and the connection is
    closed at the end.
    """

    def __iter__(self) -> Self:
        self._source.reenter()
        return self

    def __next__(self) -> T:
        while True:
            if (event := self.poll()) is not None:
                return event

    def poll(self) -> T | None:
        """Acknowledge the present event; return the next one, or None if none came within about 0.5 s.

        While Redis is away it waits, tries again and tells the log; the first call has to reach it.

        Raises:
            RedisError: Redis could not be reached at first, or answered with an error that does not pass.
            ValueError: what Redis holds is no data of a presence server.
        """
        self._source.settle()
        if self._source.has_work:
            try:
                self._source.fetch()
            except Exception as error:
                time.sleep(self._retry.delay_after(error))
                return None
            self._retry.worked()
        return self._take()

    def acknowledge(self) -> None:
        """Acknowledge the present event at once, for example before a ``break``.

        Raises:
            RedisError: Redis could not be reached; it is acknowledged with the next event.
        """
        self._source.settle()
        self._source.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self._source.leave(described(error))
            try:
                self._source.flush()
            except RedisError as failure:
                log.warning("cannot store why an event failed: %s", failure)
        self.close()


def described(error: BaseException | str) -> str:
    """Return an error as a line of text."""
    return error if isinstance(error, str) else f"{type(error).__name__}: {error}"
