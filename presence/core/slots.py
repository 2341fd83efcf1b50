"""Slots of the wheel, and the stall policy: pure, time is an argument.

Slots are half a tick wide. A session ends at the first slot boundary at or after its deadline, so the wheel
itself is late by at most half a tick. The other half is left for what comes before the wheel: the batching
window, a batch that is being read, the scheduler. Together this keeps the guarantee of at most one tick.

The stall policy. In one pass, trio handles I/O, then expired deadlines, then runs tasks in random order.
After a pause the tick may run before pending reads. So

1. before a session ends, its own connection is read (`Engine.collect_expired`); a complete packet rescues it;
2. time in which no connection was read, beyond one tick, is credited to every deadline, so that packets
   in flight can arrive. At most T per credit and one credit per T, so that a machine that is merely busy
   does not stop detection.
"""

import math
from dataclasses import dataclass

SLOTS_PER_TICK = 2


class Ticks:
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
        tick = math.floor((now - self._origin) / self.slot_s)
        if self.start_of(tick + 1) <= now:  # the division was rounded down
            return tick + 1
        return tick if self.start_of(tick) <= now else tick - 1

    def at_or_after(self, deadline: float) -> int:
        """Return the first slot boundary at or after `deadline`: never early nor rounded up a slot."""
        tick = math.floor((deadline - self._origin) / self.slot_s)
        return tick if self.start_of(tick) >= deadline else tick + 1

    def start_of(self, tick: int) -> float:
        """Return the monotonic time of a slot boundary."""
        return self._origin + tick * self.slot_s

    def credit(self, seconds: float) -> None:
        """Postpone every deadline that is set; later ones are not affected."""
        self._origin += seconds


@dataclass(slots=True)
class StallGuard:
    """Measures time in which no connection was read, and decides how much of it is credited."""

    tick_s: float  # gaps up to one tick are normal: the ticker alone wakes twice as often
    idle_timeout: float  # T, seconds: maximum of one credit, and minimum time between two
    last: float  # when the loop last read connections or ticked, monotonic seconds
    credited_s: float = 0.0  # sum of all credits
    stalled_s: float = 0.0  # sum of all gaps that were longer than a tick
    _last_credit: float = -math.inf
    _pending_s: float = 0.0

    def start(self, now: float) -> None:
        """Start when connections are accepted: the wait for Redis before that was no stall."""
        self.last = now

    def loop_ran(self, now: float) -> None:
        """Record that the loop has just read connections, or ticked."""
        gap = now - self.last
        if gap > self.tick_s:
            self._pending_s += gap
            self.stalled_s += gap
        self.last = now

    def take_credit(self, now: float) -> float:
        """Return the seconds by which all deadlines are to be postponed now; usually 0.0."""
        pending, self._pending_s = self._pending_s, 0.0
        if not pending or now - self._last_credit < self.idle_timeout:
            return 0.0
        self._last_credit = now
        credit = min(pending, self.idle_timeout)
        self.credited_s += credit
        return credit
