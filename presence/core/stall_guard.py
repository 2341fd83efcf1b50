"""The stall policy: pure, time is an argument.

In one pass of its loop, trio handles I/O, then expired deadlines, then runs tasks in random order.
After a pause the ticker may run before pending reads. So

1. before a session ends, its own connection is read (`Expiry.poll`); a complete packet rescues it;
2. a *stall*, more than one `tick` in which no batch of connections was read and the wheel was not driven, is
   credited to every deadline with its whole length, so that packets in flight can arrive. At most T per
   credit and one credit per T, so that a machine that is merely busy does not stop detection.

The ticker reports twice per tick that the loop runs, and the epoll transport after each batch. So there is a
stall only if the loop stands still, and none while connections are read and the ticker alone is late.
"""

import math
from dataclasses import dataclass


@dataclass(slots=True)
class StallGuard:
    """Measures stalls, and decides how much of them is credited."""

    tick_s: float  # no longer time is normal; a longer one counts whole
    idle_timeout: float  # T, seconds: maximum of one credit, and minimum time between two
    last: float  # when the loop last read a batch of connections or drove the wheel, monotonic seconds
    credited_s: float = 0.0  # sum of all credits
    stalled_s: float = 0.0  # sum of all stalls
    _last_credit: float = -math.inf
    _pending_s: float = 0.0

    def start(self, now: float) -> None:
        """Start when connections are accepted: the wait for Redis before that was no stall."""
        self.last = now

    def loop_ran(self, now: float) -> None:
        """Record that the loop has just read a batch of connections, or driven the wheel."""
        since_s = now - self.last
        if since_s > self.tick_s:
            self._pending_s += since_s
            self.stalled_s += since_s
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
