"""Slots of the wheel: pure, time is an argument.

A slot is half of the setting `tick`. A session ends at the first slot boundary at or after its deadline, so
the wheel itself is late by at most half a tick. The other half is left for what comes before the wheel: the
batching window, a batch that is being read, the scheduler. Together this keeps the guarantee of at most one
tick.
"""

import math

SLOTS_PER_TICK = 2


class SlotClock:
    """Converts monotonic time to absolute slot numbers, less the credits for stalls.

    Args:
        slot_s: seconds that a slot covers.
        origin: monotonic time at which slot 0 begins.
    """

    __slots__ = ("_origin", "slot_s")

    def __init__(self, slot_s: float, origin: float) -> None:
        self.slot_s = slot_s
        self._origin = origin

    def at_or_before(self, now: float) -> int:
        """Return the last slot boundary at or before `now`; keys up to it are due."""
        slot = math.floor((now - self._origin) / self.slot_s)
        if self.start_of(slot + 1) <= now:  # the division was rounded down
            return slot + 1
        return slot if self.start_of(slot) <= now else slot - 1

    def at_or_after(self, deadline: float) -> int:
        """Return the first slot boundary at or after `deadline`: never early nor rounded up a slot."""
        slot = math.floor((deadline - self._origin) / self.slot_s)
        return slot if self._origin + slot * self.slot_s >= deadline else slot + 1

    def start_of(self, slot: int) -> float:
        """Return the monotonic time of a slot boundary."""
        return self._origin + slot * self.slot_s

    def credit(self, seconds: float) -> None:
        """Postpone every deadline that is set; later ones are not affected."""
        self._origin += seconds
