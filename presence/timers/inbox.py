"""Where other threads leave what they ask of an event loop: bounded, and one bell tells of many.

Threads only append; the loop alone touches the wheel. So nothing that the loop does needs a lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from presence.timers.interface import TimerError, TimerFull

T = TypeVar("T")

INBOX_MAX: Final = 100_000  # orders: a few seconds of threads that do nothing else; some 20 MB


class Inbox(Generic[T]):
    """Orders of many threads, read by one, in the order in which they came.

    Args:
        ring: tells the reader, from the thread that put the first order in; not again before it has taken.
        capacity: orders that may wait.

    Attributes:
        rung: whether there are orders, or the reader has not yet found that there are none.
    """

    def __init__(self, ring: Callable[[], None], capacity: int = INBOX_MAX) -> None:
        self._ring = ring
        self._capacity = capacity
        self._orders: deque[T] = deque()
        self._lock = threading.Lock()
        self.rung = self._closed = False
        self._refused = 0

    def __len__(self) -> int:
        return len(self._orders)

    @property
    def refused(self) -> int:
        """How many orders were refused because so many waited."""
        return self._refused

    def put(self, order: T, room: int | None = None) -> None:
        """Leave an order; never wait.

        Args:
            order: what is to be done.
            room: orders that may wait, if that is fewer than `capacity`.

        Raises:
            TimerFull: so many orders wait; this one was not kept.
            TimerError: the reader has gone.
        """
        with self._lock:
            if self._closed:
                raise TimerError("the timer service is closed")
            waiting = len(self._orders)
            if waiting >= self._capacity or (room is not None and waiting >= room):
                self._refused += 1
                raise TimerFull(f"no room for one more: {waiting} orders of other threads wait already")
            self._orders.append(order)
            if self.rung:
                return
            self.rung = True
            self._ring()

    def take(self, limit: int) -> list[T]:
        """Take the next orders, at most `limit`; an empty list means that the next order rings."""
        with self._lock:
            if not self._orders:
                self.rung = False
            return [self._orders.popleft() for _ in range(min(limit, len(self._orders)))]

    def close(self) -> None:
        """Refuse further orders; those that wait are forgotten."""
        with self._lock:
            self._closed = True
            self._orders.clear()
