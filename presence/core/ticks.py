"""Time as slots of the wheel, and the policy for stalls: pure, time is an argument.

Slots are half a tick wide. A session ends at the first slot boundary at or after its deadline, so the
wheel itself is late by half a tick at most, and the other half is left for what comes before the wheel:
the batching window, a batch that is being read, the scheduler. The promise, at most one tick late, is
so kept with the client's own clock in hand.

The stall policy. Under trio a pass handles I/O, then expired deadlines, then runs tasks in random order:
after a pause the tick may run before reads that were waiting. So

1. before a session ends its own connection is read (`Engine.collect_expired`); a complete packet saves it;
2. time in which no connection was read, beyond one tick, is credited to every deadline, so that packets
   still under way can arrive. At most T per credit and one credit per T: a machine that is merely busy
   must not end detection.
"""

import math
from dataclasses import dataclass

SLOTS_PER_TICK = 2


class Ticks:
    """Monotonic time to absolute slot numbers, with the credits for stalls taken off.

    Args:
        slot_s: seconds that a slot covers.
        origin: monotonic time at which slot 0 begins.
    """

    __slots__ = ("_origin", "slot_s")

    def __init__(self, slot_s: float, origin: float) -> None:
        self.slot_s = slot_s
        self._origin = origin

    def at_or_before(self, now: float) -> int:
        """The last slot boundary at or before `now`: what lies at or before it is due."""
        tick = math.floor((now - self._origin) / self.slot_s)
        if self.start_of(tick + 1) <= now:  # the division was rounded down
            return tick + 1
        return tick if self.start_of(tick) <= now else tick - 1

    def at_or_after(self, deadline: float) -> int:
        """The first slot boundary at or after `deadline`: never early, and no slot late by rounding."""
        tick = math.floor((deadline - self._origin) / self.slot_s)
        return tick if self.start_of(tick) >= deadline else tick + 1

    def start_of(self, tick: int) -> float:
        """Monotonic time of a slot boundary."""
        return self._origin + tick * self.slot_s

    def credit(self, seconds: float) -> None:
        """Put off every deadline that is set; those set from now on are not concerned."""
        self._origin += seconds


@dataclass(slots=True)
class StallGuard:
    """Notices time in which no connection was read, and decides what of it is credited."""

    tick_s: float  # gaps up to one tick are normal: the ticker alone wakes twice as often
    idle_timeout: float  # T, seconds: the most that is credited at once, and the least time between two
    last: float  # when the loop last read connections or ticked, monotonic seconds
    credited_s: float = 0.0  # sum of all credits
    stalled_s: float = 0.0  # sum of all gaps that were longer than a tick
    _last_credit: float = -math.inf
    _pending_s: float = 0.0

    def start(self, now: float) -> None:
        """Connections are accepted from now on: that Redis was waited for until then was no stall."""
        self.last = now

    def loop_ran(self, now: float) -> None:
        """The loop has just read connections, or ticked."""
        gap = now - self.last
        if gap > self.tick_s:
            self._pending_s += gap
            self.stalled_s += gap
        self.last = now

    def take_credit(self, now: float) -> float:
        """Return the seconds by which all deadlines are to be put off now; 0.0 as a rule."""
        pending, self._pending_s = self._pending_s, 0.0
        if not pending or now - self._last_credit < self.idle_timeout:
            return 0.0
        self._last_credit = now
        credit = min(pending, self.idle_timeout)
        self.credited_s += credit
        return credit
