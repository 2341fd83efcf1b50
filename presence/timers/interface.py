"""Events of timers in Redis, and what these promise to those who handle them.

An event is scheduled under an id of its own and comes due once its delay is over, by the clock of Redis, and
never earlier. Delays travel, times do not: two machines need not agree on what time it is.
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
    """A timer was asked for what it cannot do; the message says what."""


class TimerFull(TimerError):
    """The timer holds as many events as it may; nothing of the call was added."""


def check_delay(delay_s: float) -> None:
    """Refuse a delay that no timer can have.

    Raises:
        TimerError: it is negative, no number, or more than `MAX_DELAY_S`.
    """
    if not 0 <= delay_s <= MAX_DELAY_S:
        raise TimerError(f"delay_s {delay_s!r} is not between 0 and {MAX_DELAY_S:.0f}")


class Event(NamedTuple):
    """What is to come.

    Attributes:
        id: names it in its timer; at most `MAX_ID_BYTES` bytes of UTF-8.
        delay_s: seconds from the moment at which the timer takes it; 0 is due at once.
        payload: what the handler gets; at most `MAX_PAYLOAD_BYTES` bytes. Equal payloads are two events.
    """

    id: str
    delay_s: float
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Due:
    """An event whose time has come, as it is handed out.

    Attributes:
        id, payload: see `Event`.
        due_ms: when it was to come, Unix milliseconds by the clock of Redis.
        late_ms: how much later it was handed out, by the same clock; never below 0.
        attempt: 1, or more if it had been handed out before and nobody said that it was done. It names this
            handing out: what a worker says after its lease has ended, and the event went to another, is void.
    """

    id: str
    payload: bytes
    due_ms: int
    late_ms: int
    attempt: int


class LeasedTimer(Protocol):
    """A timer in Redis that any number of processes share, as its workers see it.

    At least once: what `due` hands out belongs to the caller for the timer's `lease_s`; if it is not `done`
    by then, because its process died, it is handed out again. While no lease runs out each event is handed
    out once. After `attempts_max` it is a dead letter: kept, listed, and handed out no more.

    Of what went to another meanwhile nothing is changed; the methods return of how many events it still was
    this caller's to say.
    """

    def due(self, limit: int = 100) -> Sequence[Due]:
        """Hand out at most `limit` events whose time has come, earliest first; never wait for one."""

    def done(self, dues: Iterable[Due]) -> int:
        """These were handled: forget them."""

    def retry(self, due: Due, delay_s: float) -> bool:
        """This was not handled: hand it out again after `delay_s`; after the last attempt, a dead letter."""

    def give_back(self, dues: Iterable[Due]) -> int:
        """These were not begun, or cut off: hand them out again, and do not count this attempt."""

    def extend(self, dues: Iterable[Due]) -> int:
        """The work takes longer: let the lease begin anew."""
