"""Events of timers in Redis.

An event is scheduled under a unique id and is due after its delay, by the clock of Redis, and never earlier.
Callers pass delays and not times, so machines need not agree on the time.

Tests: `tests/timers/test_script_batches.py`, `tests/timers/test_shared_timer.py`.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

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
