"""The subscription as a plain iterator, for synchronous programs."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from presence.store.client import RedisError
from presence.subscriber.connection import BLOCK_MS, Retry, Source, log

T = TypeVar("T")


class SubscriptionBase(Generic[T]):
    """The common part of both kinds of subscription; nothing here blocks.

    `decode` turns an item into an event, or into None to skip it.
    """

    def __init__(self, source: Source[Any], decode: Callable[[Any], T | None]) -> None:
        self._source = source
        self._decode = decode
        self._retry = Retry(source.redis)

    def _next_event(self) -> T | None:
        """Return the next event that is ready; skipped items are acknowledged."""
        while (item := self._source.next()) is not None:
            if (event := self._decode(item)) is not None:
                return event
            log.debug("skipped an unrequested or unreadable entry: %r", item)
            self._source.ack(item)
        return None

    def fail(self, error: BaseException | str) -> None:
        """Go on without acknowledging the current event: it comes again after `claim_idle_s`.

        The error is kept for the dead letter, with secrets in URLs removed.
        """
        self._source.fail(error_line(error))

    def close(self) -> None:
        """Close the connection. Unacknowledged events stay pending in the group."""
        self._source.close()


class BlockingSubscription(SubscriptionBase[T]):
    """An iterator of events that never ends by itself; used from one thread.

    An event is acknowledged when the next one is requested. Leaving the loop, by ``break`` or by an
    exception, leaves the current event unacknowledged; it comes again when the loop is entered again. In a
    ``with`` statement, an exception that left the loop is kept for the dead letter, and the connection is
    closed at the end.
    """

    def __iter__(self) -> Self:
        self._source.rewind()
        return self

    def __next__(self) -> T:
        while True:
            if (event := self.poll()) is not None:
                return event

    def poll(self) -> T | None:
        """Acknowledge the current event; return the next one, or None if none came within about 0.5 s.

        While Redis is unreachable it waits, logs and tries again; but the first call must succeed.

        Raises:
            RedisError: the first call could not reach Redis, or Redis answered with a permanent error.
            ValueError: Redis does not hold data of a presence server.
        """
        self._source.ack()
        until = time.monotonic() + BLOCK_MS / 1000
        while True:
            if self._source.has_work:
                try:
                    self._source.fetch()
                except Exception as error:
                    time.sleep(self._retry.delay_after(error))
                    return None
                self._retry.succeeded()
            event = self._next_event()
            if event is not None or time.monotonic() >= until:  # all that came may have been skipped
                return event

    def batch(self, most: int) -> list[T]:
        """Acknowledge the current events, and return the next ones: at most `most` of those that are ready.

        Waits until there is one at least. The events are acknowledged together.

        Raises:
            RedisError: see `poll`.
            ValueError: see `poll`; or `most` is below 1.
        """
        check_count(most)
        found = [next(self)]
        while len(found) < most and (event := self._next_event()) is not None:
            found.append(event)
        return found

    def acknowledge(self) -> None:
        """Acknowledge the current events immediately, for example before a ``break``.

        Raises:
            RedisError: Redis is unreachable; the events are acknowledged with the next ones.
        """
        self._source.ack()
        self._source.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self._source.abandon(error_line(error))
            try:
                self._source.flush()
            except RedisError as failure:
                log.warning("cannot store why an event failed: %s", failure)
        self.close()


def check_count(most: int) -> None:
    """Raise `ValueError` unless a batch may have so many events."""
    if most < 1:
        raise ValueError(f"a batch has one event at least, not {most}")


def error_line(error: BaseException | str) -> str:
    """Return an error as a line of text."""
    return error if isinstance(error, str) else f"{type(error).__name__}: {error}"
