"""The task that drives the timing wheel: absolute slots, batches, and credit for stalls.

What needs no task is in `presence/core`: the arithmetic of slots in `slots.py`, the stall policy in
`stall_guard.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

import structlog

from presence.common.clock import Clock
from presence.common.histogram import QUICK_S, Histogram
from presence.common.runtime import Runtime, TrioRuntime
from presence.core.sessions import DueSessions
from presence.core.slots import SlotClock
from presence.core.stall_guard import StallGuard

LAG_LOGGED_S: Final = 2.0  # clients that wait for replies do not notice less

_log = structlog.get_logger(__name__)


class Expiring(Protocol):
    """What the ticker drives: `presence.core.expiry.Expiry`."""

    def collect(self, slot: int) -> DueSessions | None:
        """Take a batch of what is due up to `slot`; None: no more is."""

    def poll(self, due: DueSessions) -> bool:
        """Read the connections of a batch; return whether readers need a turn because some could not be."""

    def handle(self, due: DueSessions) -> int:
        """Do what is due for those of a batch that stayed silent; return how many sessions ended."""


@dataclass(slots=True)
class TickerStatistics:
    """What the ticker has seen and done; operators see these names in the log."""

    slots: int = 0  # times that the wheel was driven: each drives all slots that have begun since, if any
    ended: int = 0  # sessions
    overrun_s: float = 0.0  # how late it was the last time, seconds
    overrun_max_s: float = 0.0
    stall_credit_s: float = 0.0
    stalled_s: float = 0.0


class Ticker:
    """The task that drives the timing wheel.

    Args:
        expiring: expires sessions that are due.
        slot_done: called each time when nothing that was due is left, with the time.
        slot_clock: the slots, shared with the code that sets deadlines.
        guard: the stall policy.
        clock: monotonic time.
        credit: whether stalls are credited; tests switch it off to show that it matters.
        runtime: runs the task.
        tick_lags, loop_lags: record how late the wheel was driven, and how late the loop ran this task; see
            `LatencyHistograms`.
    """

    # A reader whose bytes have arrived runs within the loop's pass after next; a TLS stream takes a few more.
    READER_TURNS = 4

    def __init__(
        self,
        expiring: Expiring,
        slot_done: Callable[[float], None],
        slot_clock: SlotClock,
        guard: StallGuard,
        clock: Clock,
        *,
        credit: bool = True,
        runtime: Runtime | None = None,
        tick_lags: Histogram | None = None,
        loop_lags: Histogram | None = None,
    ) -> None:
        self._expiring = expiring
        self._slot_done = slot_done
        self._slot_clock = slot_clock
        self._guard = guard
        self._clock = clock
        self.credit = credit
        self._runtime = runtime or TrioRuntime()
        self._tick_lags = tick_lags or Histogram(QUICK_S)
        self._loop_lags = loop_lags or Histogram(QUICK_S)
        self._counted = TickerStatistics()

    def statistics(self) -> TickerStatistics:
        return replace(self._counted, stall_credit_s=self._guard.credited_s, stalled_s=self._guard.stalled_s)

    async def run(self) -> None:
        """Drive the wheel until cancelled, when each slot begins; a late time does not delay the next."""
        now = self._clock.now()
        self._guard.start(now)
        slot = self._slot_clock.at_or_before(now)
        while True:
            due = self._slot_clock.start_of(slot + 1)
            # A credit may have moved the deadline by up to T. Sleeping that long would count as the next
            # stall, and the lease of a node with few clients would expire.
            now = self._clock.now()
            wakes_at = min(due, now + self._slot_clock.slot_s)
            await self._runtime.sleep(wakes_at - now)
            now = self._clock.now()
            self._note_loop_lag(max(0.0, now - wakes_at))
            self._note_tick_lag(max(0.0, now - due))
            self._guard.loop_ran(now)
            credit = self._guard.take_credit(now)
            if self.credit and credit:
                self._slot_clock.credit(credit)
            # A credit can move the clock back before the slot that was due: then nothing is due.
            slot = max(slot, self._slot_clock.at_or_before(now))
            await self._expire(slot)

    def _note_loop_lag(self, lag_s: float) -> None:
        self._loop_lags.observe(lag_s)
        if lag_s >= LAG_LOGGED_S:
            _log.warning("event loop stalled", seconds=round(lag_s, 1))

    def _note_tick_lag(self, lag_s: float) -> None:
        self._counted.slots += 1
        self._tick_lags.observe(lag_s)
        self._counted.overrun_s = lag_s
        self._counted.overrun_max_s = max(self._counted.overrun_max_s, lag_s)

    async def _expire(self, slot: int) -> None:
        """Expire what is due up to `slot`, in batches, and let other tasks run between them."""
        while (due := self._expiring.collect(slot)) is not None:
            for _ in range(self.READER_TURNS if self._expiring.poll(due) else 0):
                await self._runtime.sleep(0)
            self._counted.ended += self._expiring.handle(due)
            await self._runtime.sleep(0)
        self._slot_done(self._clock.now())
