"""The subscription as a plain iterator, for synchronous programs; and what both kinds have in common.

Tests: `tests/subscriber/test_group.py`, `tests/subscriber/test_settling.py`.
"""

import math
import time
from collections.abc import Callable
from datetime import timedelta
from threading import Event
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from presence.common.scarcity import scarcity
from presence.store.redis_client import RedisError
from presence.subscriber.events import Gap
from presence.subscriber.redis_connections import BLOCK_MS, log
from presence.subscriber.retry import Retry
from presence.subscriber.source import EntryKey, Source

T = TypeVar("T")


class SubscriptionBase(Generic[T]):
    """The common part of both kinds of subscription; nothing here blocks.

    `ack`, `nak`, `term` and `drain` may be called from any thread or task, and `drain` from a handler of a
    signal. They take effect in Redis with the next call of the loop, which makes one every half second while
    it waits, or with `flush`. An event that is settled already is left alone, and so is a `Gap` that was
    found while reading.

    Args:
        source: where items come from.
        decode: turns an item into an event, or into None to skip it.
        auto_ack: whether asking for the next event acknowledges those before it.
    """

    def __init__(
        self, source: Source[Any], decode: Callable[[Any], T | None], *, auto_ack: bool = True
    ) -> None:
        self._source = source
        self._decode = decode
        self._auto_ack = auto_ack
        self._retry = Retry(source.redis)
        self._drained = Event()
        self._found: list[T] = []  # handed out by the source, and not yet given to the program

    def ack(self, event: T) -> None:
        """Acknowledge an event: it was handled."""
        if key := _key_of(event):
            self._source.ack(key)

    def nak(self, event: T, delay: float | timedelta = 0.0, why: BaseException | str | None = None) -> None:
        """Have an event delivered again: to this consumer, or if it stops or dies to another.

        Without a delay it comes next, before newer events of its user. After `max_deliveries` it becomes a
        dead letter instead.

        Args:
            event: of a consumer group.
            delay: seconds until then, or a `timedelta`. If this consumer stops or dies, at most `claim_idle`.
            why: for the dead letter; secrets in URLs are removed.

        Raises:
            ValueError: the delay is negative or not finite, or there is no group.
        """
        self._need_group()
        delay_s = seconds(delay)
        if delay_s < 0:
            raise ValueError(f"a delay is not negative: {delay!r}")
        if key := _key_of(event):
            self._source.nak(key, delay_s, None if why is None else error_line(why))

    def term(self, event: T, why: BaseException | str) -> None:
        """Make an event a dead letter, because no handler will ever accept it.

        Raises:
            ValueError: there is no group.
        """
        self._need_group()
        if key := _key_of(event):
            self._source.give_up(key, error_line(why))

    def drain(self) -> None:
        """Let the loop end: it asks for nothing more, and hands back to the group what was read ahead.

        The events that the program has can still be settled: by the end of the loop, which acknowledges the
        last, or explicitly until the end of the block.
        """
        self._drained.set()

    def _need_group(self) -> None:
        if not self._source.is_group:
            raise ValueError("without a group no event is delivered again, and there are no dead letters")

    def _begin(self, most: int) -> None:
        """Acknowledge the events before those that are asked for now."""
        check_count(most)
        if self._auto_ack:
            self._source.ack_all(self._unseen())

    def _rewind(self) -> None:
        if self._auto_ack:
            self._source.rewind(self._unseen())

    def _unseen(self) -> list[EntryKey]:
        return [key for event in self._found if (key := _key_of(event))]

    def _attempt(self, most: int) -> None:
        """Find events, perhaps none, and wait for them for about `BLOCK_MS`. It blocks."""
        if self._found:
            return
        if self._source.has_work:
            self._source.fetch()
        found: list[T] = []
        while len(found) < most and (item := self._source.next()) is not None:
            if (event := self._decode(item)) is not None:
                found.append(event)
            else:
                log.debug("skipped an unrequested or unreadable entry: %r", item)
                self._source.skip(item)
        if found and self._source.hand_out():
            self._found = found

    def _take(self, most: int) -> list[T]:
        found, self._found = self._found[:most], self._found[most:]
        return found

    def _stop(self, error: BaseException | None = None, *, is_drained: bool = False) -> None:
        """Hand back what the program does not have, or everything. It blocks; a failure is only logged."""
        if isinstance(error, Exception):
            self._source.note_error(error_line(error))
        unseen = self._unseen()
        self._found = []
        try:
            self._source.stop(keeps_handed_out=is_drained, unseen=unseen)
        except (RedisError, OSError, MemoryError) as failure:
            self._warn(scarcity(failure) or failure)

    @staticmethod
    def _warn(why: object) -> None:
        log.warning("cannot hand back events to the group, others get them later: %s", why)


class BlockingSubscription(SubscriptionBase[T]):
    """An iterator of events that ends only after `drain`; used from one thread.

    An event is acknowledged when the next one is requested, unless it was settled before, or `auto_ack` is
    off. Leaving the loop, by ``break`` or by an exception, leaves the current event unacknowledged; it comes
    again when the loop is entered again. The end of a ``with`` statement hands back everything that is not
    acknowledged, for the next reader; an exception is kept for the dead letter.
    """

    def __iter__(self) -> Self:
        self._rewind()
        return self

    def __next__(self) -> T:
        while True:
            if (event := self.poll()) is not None:
                return event
            if self._drained.is_set():
                raise StopIteration

    def poll(self) -> T | None:
        """Acknowledge the current event; return the next one, or None if none came within about 0.5 s.

        While Redis is unreachable it waits, logs and tries again; but the first call must succeed.

        Raises:
            RedisError: the first call could not reach Redis, or Redis answered with a permanent error.
            ValueError: Redis does not hold data of a presence server.
            ConsumerInUse: another live process reads the group under the same name.
        """
        found = self._poll(1)
        return found[0] if found else None

    def batch(self, most: int) -> list[T]:
        """Acknowledge the current events, and return the next ones: at most `most` of those that are ready.

        Waits until there is one at least; after `drain` there is none. The events are acknowledged together.

        Raises:
            RedisError, ConsumerInUse: see `poll`.
            ValueError: see `poll`; or `most` is below 1.
        """
        while True:
            if (found := self._poll(most)) or self._drained.is_set():
                return found

    def flush(self) -> None:
        """Settle in Redis immediately what was settled here, for example before work done at most once.

        Raises:
            RedisError: Redis is unreachable; the next call of the loop tries again.
        """
        self._source.flush()

    def close(self) -> None:
        """Hand back to the group what is not acknowledged, and close the connection."""
        try:
            self._stop()
        finally:
            self._source.close()

    def _poll(self, most: int) -> list[T]:
        self._begin(most)
        until = time.monotonic() + BLOCK_MS / 1000
        while not self._drained.is_set():
            try:
                self._attempt(most)
            except Exception as error:
                time.sleep(self._retry.delay_after(error))
                return []
            self._retry.succeeded()
            if self._drained.is_set():
                break
            if self._found or time.monotonic() >= until:  # all that came may have been skipped
                return self._take(most)
        self._stop(is_drained=True)
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stop(error)
        finally:
            self._source.close()


def check_count(most: int) -> None:
    """Raise `ValueError` unless a batch may have so many events."""
    if most < 1:
        raise ValueError(f"a batch has one event at least, not {most}")


def seconds(value: float | timedelta) -> float:
    """Return a duration in seconds.

    Raises:
        TypeError: it is neither a number nor a `timedelta`.
        ValueError: it is not finite.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not math.isfinite(value):
        raise ValueError(f"a duration is finite, not {value}")
    return float(value)


def error_line(error: BaseException | str) -> str:
    return error if isinstance(error, str) else f"{type(error).__name__}: {error}"


def _key_of(event: Any) -> EntryKey | None:
    """Return the shard and entry id of an event, or None of a gap that is no entry."""
    if isinstance(event, Gap) and event.reason != "dropped":
        return None
    return event.shard, getattr(event, "entry_id", None) or event.id
