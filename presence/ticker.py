"""When sessions are looked at: absolute ticks, the stall policy, and the task that drives the wheel.

Slots are half a tick wide. A session ends at the first slot boundary at or after its deadline, so the
wheel itself is late by half a tick at most, and the other half is left for what comes before the wheel:
the batching window, a batch that is being read, the scheduler. The promise, at most one tick late, is
so kept with the client's own clock in hand.

The stall policy. Under trio a pass handles I/O, then expired deadlines, then runs tasks in random order:
after a pause the tick may run before reads that were waiting. So

1. before a session ends its own connection is read (`Core.look`); a complete packet saves it;
2. time in which no connection was read, beyond one tick, is credited to every deadline, so that packets
   still under way can arrive. At most T per credit and one credit per T: a machine that is merely busy
   must not end detection.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import trio

from presence.clock import Clock

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

    def begun(self, now: float) -> int:
        """The last slot boundary at or before `now`: what lies at or before it is due."""
        tick = math.floor((now - self._origin) / self.slot_s)
        return tick if self.starts(tick) <= now else tick - 1

    def at_or_after(self, deadline: float) -> int:
        """The first slot boundary at or after `deadline`: never early."""
        tick = math.ceil((deadline - self._origin) / self.slot_s)
        return tick if self.starts(tick) >= deadline else tick + 1

    def starts(self, tick: int) -> float:
        """Monotonic time of a slot boundary."""
        return self._origin + tick * self.slot_s

    def credit(self, seconds: float) -> None:
        """Put off every deadline that is set; those set from now on are not concerned."""
        self._origin += seconds


class StallGuard:
    """Notices time in which no connection was read, and decides what of it is credited.

    Args:
        tick_s: gaps up to one tick are normal: the ticker alone wakes twice as often.
        idle_timeout: T, seconds: the most that is credited at once, and the least time between two credits.
        now: monotonic time.

    Attributes:
        credited_s: sum of all credits.
        stalled_s: sum of all gaps that were longer than a tick.
    """

    __slots__ = ("_idle_timeout", "_last", "_last_credit", "_pending_s", "_tick_s", "credited_s", "stalled_s")

    def __init__(self, tick_s: float, idle_timeout: float, now: float) -> None:
        self._tick_s = tick_s
        self._idle_timeout = idle_timeout
        self._last = now
        self._last_credit = -math.inf
        self._pending_s = 0.0
        self.credited_s = 0.0
        self.stalled_s = 0.0

    def alive(self, now: float) -> None:
        """The loop has just read connections, or ticked."""
        gap = now - self._last
        if gap > self._tick_s:
            self._pending_s += gap
            self.stalled_s += gap
        self._last = now

    def take_credit(self, now: float) -> float:
        """Return the seconds by which all deadlines are to be put off now; 0.0 as a rule."""
        pending, self._pending_s = self._pending_s, 0.0
        if not pending or now - self._last_credit < self._idle_timeout:
            return 0.0
        self._last_credit = now
        credit = min(pending, self._idle_timeout)
        self.credited_s += credit
        return credit


class Expiring(Protocol):
    """What the ticker drives: the core, as far as it needs to know it."""

    @property
    def awaits_readers(self) -> bool:
        """Whether some connection of the slice could not be read at once: its reader needs a turn."""

    def take_due(self, tick: int) -> bool:
        """Take a slice of what is due and look at its connections; False: nothing is due."""

    def end_silent(self, now: float) -> int:
        """End those of the slice that stayed silent; return how many."""

    def ticked(self, now: float) -> None:
        """A tick is done: nothing that was due at it is left."""


@dataclass(frozen=True, slots=True)
class TickerStatistics:
    """What the ticker has seen: ticks run, sessions ended, and how late it was, in seconds."""

    ticks: int
    ended: int
    overrun_s: float
    overrun_max_s: float
    stall_credit_s: float
    stalled_s: float


class Ticker:
    """The task that drives the wheel.

    Args:
        expiring: what is due at a tick.
        ticks: the slots, shared with whoever sets deadlines.
        guard: the stall policy.
        clock: monotonic time.
        credit: whether stalls are credited at all; tests switch it off to see that it matters.
    """

    # A reader whose bytes have arrived runs within the pass after next; a TLS stream takes a few more.
    READER_TURNS = 4

    def __init__(
        self, expiring: Expiring, ticks: Ticks, guard: StallGuard, clock: Clock, *, credit: bool = True
    ) -> None:
        self._expiring = expiring
        self._ticks = ticks
        self._guard = guard
        self._clock = clock
        self._credit = credit
        self._count = 0
        self._ended = 0
        self._overrun_s = 0.0
        self._overrun_max_s = 0.0

    def statistics(self) -> TickerStatistics:
        """Return the figures so far."""
        return TickerStatistics(
            self._count,
            self._ended,
            self._overrun_s,
            self._overrun_max_s,
            self._guard.credited_s,
            self._guard.stalled_s,
        )

    async def run(self) -> None:
        """Tick for ever, on absolute deadlines: a late tick does not move the next one."""
        tick = self._ticks.begun(self._clock.now())
        while True:
            await trio.sleep(max(0.0, self._ticks.starts(tick + 1) - self._clock.now()))
            now = self._clock.now()
            self._note_overrun(now - self._ticks.starts(tick + 1))
            self._guard.alive(now)
            credit = self._guard.take_credit(now)
            if self._credit and credit:
                self._ticks.credit(credit)
            # A credit can carry the clock back to before the tick that was due: then nothing is.
            tick = max(tick, self._ticks.begun(now))
            await self._expire(tick)

    def _note_overrun(self, overrun_s: float) -> None:
        self._count += 1
        self._overrun_s = overrun_s
        self._overrun_max_s = max(self._overrun_max_s, overrun_s)

    async def _expire(self, tick: int) -> None:
        """End what is due at `tick` in slices, with a turn for everybody else between them."""
        while self._expiring.take_due(tick):
            for _ in range(self.READER_TURNS if self._expiring.awaits_readers else 0):
                await trio.lowlevel.checkpoint()
            self._ended += self._expiring.end_silent(self._clock.now())
            await trio.lowlevel.checkpoint()
        self._expiring.ticked(self._clock.now())
