"""The task that drives the wheel: absolute ticks, slices, and the credit for stalls.

The arithmetic of slots and the stall policy, which need no task, are in `presence/ticks.py`.
"""

from dataclasses import dataclass, replace
from typing import Final, Protocol

import structlog

from presence.clock import Clock
from presence.histograms import QUICK_S, Histogram
from presence.runtime import Runtime, TrioRuntime
from presence.ticks import StallGuard, Ticks

LAG_INTERVAL_S: Final = 0.25
LAG_LOGGED_S: Final = 2.0  # clients that ask for answers notice nothing shorter

_log = structlog.get_logger(__name__)


async def watch_lag(lags: Histogram, clock: Clock, runtime: Runtime) -> None:
    """Measure how late the event loop is, until cancelled; a stall looks up to `LAG_INTERVAL_S` shorter."""
    while True:
        due = clock.now() + LAG_INTERVAL_S
        await runtime.sleep(LAG_INTERVAL_S)
        lag_s = clock.now() - due
        lags.note(lag_s)
        if lag_s >= LAG_LOGGED_S:
            _log.warning("event loop stood still", seconds=round(lag_s, 1))


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


@dataclass(slots=True)
class TickerStatistics:
    """What the ticker has seen: ticks run, sessions ended, and how late it was, in seconds."""

    ticks: int = 0
    ended: int = 0
    overrun_s: float = 0.0
    overrun_max_s: float = 0.0
    stall_credit_s: float = 0.0
    stalled_s: float = 0.0


class Ticker:
    """The task that drives the wheel.

    Args:
        expiring: what is due at a tick.
        ticks: the slots, shared with whoever sets deadlines.
        guard: the stall policy.
        clock: monotonic time.
        credit: whether stalls are credited at all; tests switch it off to see that it matters.
        runtime: where its task runs.
        lags: takes how late each tick begins; see `Delays.tick_lag`.

    Attributes:
        credit: as above.
    """

    # A reader whose bytes have arrived runs within the pass after next; a TLS stream takes a few more.
    READER_TURNS = 4

    def __init__(
        self,
        expiring: Expiring,
        ticks: Ticks,
        guard: StallGuard,
        clock: Clock,
        *,
        credit: bool = True,
        runtime: Runtime | None = None,
        lags: Histogram | None = None,
    ) -> None:
        self._expiring = expiring
        self._ticks = ticks
        self._guard = guard
        self._clock = clock
        self.credit = credit
        self._runtime = runtime or TrioRuntime()
        self._lags = lags or Histogram(QUICK_S)
        self._counted = TickerStatistics()

    def statistics(self) -> TickerStatistics:
        """Return the figures so far."""
        return replace(self._counted, stall_credit_s=self._guard.credited_s, stalled_s=self._guard.stalled_s)

    async def run(self) -> None:
        """Tick for ever, on absolute deadlines: a late tick does not move the next one."""
        now = self._clock.now()
        self._guard.begin(now)
        tick = self._ticks.begun(now)
        while True:
            due = self._ticks.starts(tick + 1)
            # A credit may have put that off by as much as T. Sleeping so long would be the next stall, and
            # the lease of a node whose clients are few would end.
            await self._runtime.sleep(min(due - self._clock.now(), self._ticks.slot_s))
            now = self._clock.now()
            self._note_overrun(max(0.0, now - due))
            self._guard.alive(now)
            credit = self._guard.take_credit(now)
            if self.credit and credit:
                self._ticks.credit(credit)
            # A credit can carry the clock back to before the tick that was due: then nothing is.
            tick = max(tick, self._ticks.begun(now))
            await self._expire(tick)

    def _note_overrun(self, overrun_s: float) -> None:
        self._counted.ticks += 1
        self._lags.note(overrun_s)
        self._counted.overrun_s = overrun_s
        self._counted.overrun_max_s = max(self._counted.overrun_max_s, overrun_s)

    async def _expire(self, tick: int) -> None:
        """End what is due at `tick` in slices, with a turn for everybody else between them."""
        while self._expiring.take_due(tick):
            for _ in range(self.READER_TURNS if self._expiring.awaits_readers else 0):
                await self._runtime.sleep(0)
            self._counted.ended += self._expiring.end_silent(self._clock.now())
            await self._runtime.sleep(0)
        self._expiring.ticked(self._clock.now())
