"""Deadlines at a moment, such as the expiry of a token: a wheel beside that of idle time-outs.

Few sessions have such a deadline, and those without pay nothing. A stall of the server extends none of them,
although it extends the deadlines of silent sessions: they are plain monotonic time.

A token may be valid for years, and a ring has a slot for each step up to its furthest deadline. So nothing is
put further ahead than `HORIZON_SLOTS`; later deadlines are kept in a table beside the wheel and moved forward
when their slot is reached, once an hour.

Costs: `set` and `discard` O(1); `pop_due` O(keys taken + slots passed). Memory: 100 to 150 bytes per key,
and 60 more while its deadline is beyond the horizon.
"""

import math
from typing import Final, Generic, TypeVar

from presence.core.wheel import TimingWheel

K = TypeVar("K")

SLOT_S: Final = 0.5  # a key is due at most this much late, beside the caller's own interval
HORIZON_SLOTS: Final = 7200  # an hour, about as long as most tokens are valid; empty slots take 1.6 MB


class DeadlineWheel(Generic[K]):
    """Keys with the moment at which each is due.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        self._wheel: TimingWheel[K] = TimingWheel(cursor=_last_slot(now))
        self._far: dict[K, float] = {}  # deadlines that were beyond the horizon when they were set

    def __len__(self) -> int:
        return len(self._wheel)

    def __contains__(self, key: K) -> bool:
        return key in self._wheel

    def set(self, key: K, at: float) -> None:
        """Set the deadline of `key` to `at`, in place of an earlier one."""
        slot, furthest = math.ceil(at / SLOT_S), self._wheel.cursor + HORIZON_SLOTS
        if slot > furthest:
            self._far[key] = at
            slot = furthest
        elif self._far:
            self._far.pop(key, None)
        self._wheel.touch(key, slot)

    def deadline_of(self, key: K) -> float | None:
        """Return the deadline of `key`, rounded up to a slot; None without one."""
        slot = self._wheel.slot_of(key)
        return None if slot is None else self._far.get(key, slot * SLOT_S)

    def discard(self, key: K) -> None:
        if self._wheel.discard(key) and self._far:
            self._far.pop(key, None)

    def pop_due(self, now: float, limit: int) -> list[K] | None:
        """Take keys that are due at `now`, examining at most `limit` keys.

        Returns:
            The keys; none if all that were examined are due later: call again. None: no more are due; an
            empty list of `TimingWheel.pop_due` means that.
        """
        examined = self._wheel.pop_due(_last_slot(now), limit)
        if not examined:
            return None
        if not self._far:
            return examined
        due = []
        for key in examined:
            at = self._far.pop(key, now)
            if at > now:
                self.set(key, at)
            else:
                due.append(key)
        return due


def _last_slot(now: float) -> int:
    return math.floor(now / SLOT_S)
