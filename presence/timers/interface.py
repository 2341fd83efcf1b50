"""Events of timers in Redis, and the interface of these timers for workers.

An event is scheduled under a unique id and is due after its delay, by the clock of Redis, and never earlier.
Callers pass delays and not times, so machines need not agree on the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

MAX_ID_BYTES: Final = 512
MAX_PAYLOAD_BYTES: Final = 65_536
MAX_DELAY_S: Final = 366 * 86_400.0
MAX_EVENTS: Final = 1_000_000  # in one timer: about 300 MB of Redis


class TimerError(Exception):
    """A timer cannot do what was requested; the message says why."""


class TimerFull(TimerError):
    """The timer is full; no event of the call was added."""


def check_delay(delay_s: float) -> None:
    """Check that a delay is within bounds.

    Raises:
        TimerError: it is negative, NaN, or more than `MAX_DELAY_S`.
    """
    if not 0 <= delay_s <= MAX_DELAY_S:
        raise TimerError(f"delay_s {delay_s!r} is not between 0 and {MAX_DELAY_S:.0f}")


class Event(NamedTuple):
    """An event to schedule."""

    id: str  # unique in its timer; at most `MAX_ID_BYTES` bytes of UTF-8
    delay_s: float  # seconds from the moment it is added; 0 is due immediately
    # for the handler; at most `MAX_PAYLOAD_BYTES` bytes. Equal payloads are separate events.
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Due:
    """A due event that was handed out."""

    id: str
    payload: bytes
    due_ms: int  # when it was due, Unix milliseconds by the clock of Redis
    late_ms: int  # how much later it was handed out, by the same clock; never below 0
    # 1, or more if it was handed out before and not done. It identifies this claim: reports of a worker whose
    # lease has ended are ignored once the event is claimed by another.
    attempt: int


class LeasedTimer(Protocol):
    """A timer in Redis that any number of processes share, as its workers see it.

    At least once: an event handed out by `due` belongs to the caller for the timer's `lease_s`; if it is not
    `done` by then, for example because the process died, it is handed out again. While no lease ends, each
    event is handed out once. After `attempts_max` it is a dead letter: kept, listed, and not handed out any
    more.

    Events claimed by another worker meanwhile are not changed; the methods return the number of events that
    still belonged to this caller.
    """

    def due(self, limit: int = 100) -> Sequence[Due]:
        """Hand out at most `limit` due events, earliest first; never wait for one."""

    def done(self, dues: Iterable[Due]) -> int:
        """Remove handled events."""

    def retry(self, due: Due, delay_s: float) -> bool:
        """Hand a failed event out again after `delay_s`; after the last attempt it is a dead letter."""

    def give_back(self, dues: Iterable[Due]) -> int:
        """Hand events out again that were not begun or were cut off, without counting this attempt."""

    def extend(self, dues: Iterable[Due]) -> int:
        """Restart the leases of events that take longer."""
