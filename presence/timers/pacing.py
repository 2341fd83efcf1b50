"""How many events a worker takes at once, and how long it waits before something is tried again.

No clock and no I/O here: times are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

OUTAGE_FIRST_S: Final = 0.1  # between two attempts while Redis is away
OUTAGE_MAX_S: Final = 2.0
LOOK_MAX_S: Final = 0.1  # between two looks while nothing is known to come: what others add is seen so late
LOOK_LEAST_S: Final = 0.001  # Redis counts milliseconds
QUICK_S: Final = 0.05  # a batch that lasts no longer may be larger
SLOW_S: Final = 0.25  # one that lasts longer holds events that another process might have begun sooner


def look_delay_s(next_due_s: float | None) -> float:
    """Return how long to wait before the next look.

    Args:
        next_due_s: seconds until something is known to be due; None: nothing is known.
    """
    return LOOK_MAX_S if next_due_s is None else max(LOOK_LEAST_S, min(next_due_s, LOOK_MAX_S))


@runtime_checkable
class Foresighted(Protocol):
    """A timer that knows when it is worth asking again."""

    def next_due_s(self) -> float | None:
        """Return seconds until something is due as far as it is known; None: nothing is."""


@runtime_checkable
class Listening(Protocol):
    """A timer that is told what is due, and whose `due` asks Redis only then: to be called often."""

    def wait(self, seconds: float) -> bool:
        """Wait until `due` may have something, for so long at most; return whether it may."""


def foresight(timer: object) -> Callable[[], float | None] | None:
    """Return what tells when it is worth asking a timer again; None: look now and then."""
    return timer.next_due_s if isinstance(timer, Foresighted) and not isinstance(timer, Listening) else None


class Ahead:
    """How many events a worker takes beyond those that it can begin at once.

    A round trip for each would be slow where handlers are quick; where they are slow, what waits here could
    be begun by another process. So it grows while batches are begun quickly, and shrinks when one was not.

    Args:
        most: beyond those that can begin.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.events = 0

    def lasted(self, seconds: float) -> None:
        """Take note of how long a full batch lasted, until there was room for another."""
        if seconds < QUICK_S:
            self.events = min(self._most, max(1, self.events * 2))
        elif seconds > SLOW_S:
            self.events //= 2
