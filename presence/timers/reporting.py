"""What a worker says to Redis of the events that it holds: done, again, given back, still at work.

What is refused is said again later, and stands behind the rest meanwhile: all that were handled are said in
one call, first in each turn, so an event whose end Redis will not hear holds up no other's.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol, runtime_checkable

import structlog
import trio

from presence.outages import Outage
from presence.runtime import Caller, TrioBell
from presence.store.batches import StoreError, StoreUnavailable
from presence.timers.figures import Figures
from presence.timers.held import Held, Reports
from presence.timers.interface import Due, LeasedTimer, TimerError

FAILURES: Final = (StoreUnavailable, StoreError, TimerError)
EXTEND_AT: Final = 1 / 3  # of the lease: two more attempts fit before it ends
log = structlog.get_logger("presence.timers")


@runtime_checkable
class Returning(Protocol):
    """A timer that takes back what was not begun, without counting it as a failure."""

    def give_back(self, dues: Iterable[Due]) -> int:
        """Hand these out again at once; return of how many it still was this caller's to say."""


def give_back(timer: LeasedTimer, dues: Sequence[Due]) -> int:
    """Let others have events at once; return of how many it still was this caller's to say."""
    if isinstance(timer, Returning):
        return timer.give_back(dues) if dues else 0
    return sum(timer.retry(due, 0.0) for due in dues)


class Reporter:
    """Says what becomes of events, and insists on it while Redis is away.

    Args:
        timer: whose events they are.
        held: the events.
        lease_s: for how long they belong to this worker.
        caller: makes calls that block.
        outage: what failed is told there.
        figures: counts what was said in vain.
    """

    def __init__(
        self,
        timer: LeasedTimer,
        held: Held,
        lease_s: float,
        *,
        caller: Caller,
        outage: Outage,
        figures: Figures,
    ) -> None:
        self._timer = timer
        self._held = held
        self._extend_after_s = lease_s * EXTEND_AT
        self._caller = caller
        self._outage = outage
        self._figures = figures
        self._bell, self._said = TrioBell(), TrioBell()
        self._left = Reports()
        self._is_sure = True  # False: what was said last may have been heard, though no answer came

    def ring(self) -> None:
        """There is something to say."""
        self._bell.ring()

    async def run(self, heard: Callable[[], None]) -> None:
        """Report for ever; `heard` is called whenever Redis has heard of some."""
        while True:
            if not self._left:
                await self._bell.wait(math.inf)
            self._left.add(self._held.take_reports())
            pause_s = await self._turn()
            self._said.ring()
            heard()
            if pause_s:
                await trio.sleep(pause_s)

    async def finish(self, within_s: float) -> None:
        """Wait until all is said, for so long at most."""
        with trio.move_on_after(within_s):
            while self._held.unsaid:
                self._bell.ring()
                await self._said.wait(within_s)

    async def extend(self) -> None:
        """For ever let the leases of what waits or runs begin anew, once a third of one is over."""
        while True:
            await trio.sleep(self._extend_after_s / 2)
            asked_at = trio.current_time()
            dues = self._held.aged(asked_at, self._extend_after_s)
            if not dues:
                continue
            try:
                extended = await self._caller.call(partial(self._timer.extend, dues))
            except FAILURES as error:
                self._outage.failed("extend", error)
                continue
            self._outage.worked("extend")
            self._held.extend(dues, asked_at)
            if extended < len(dues):
                log.warning("leases were lost while handlers ran", events=len(dues) - extended)

    async def _turn(self) -> float:
        """Say what is left, until something is refused; return how long to wait then, else 0."""
        left = self._left
        try:
            if left.done:
                await self._say(partial(self._timer.done, left.done), len(left.done))
                left.done = []
            if left.returns:
                await self._say(partial(give_back, self._timer, left.returns), len(left.returns))
                left.returns = []
            for each in tuple(left.retries):
                left.retries.remove(each)
                try:
                    await self._say(partial(self._timer.retry, each.due, each.delay_s), 1)
                except BaseException:
                    left.retries.append(each)  # behind the others: what was refused may be again
                    raise
        except (StoreUnavailable, StoreError) as error:
            self._is_sure = False
            return self._outage.failed("report", error)
        self._is_sure = True
        self._outage.worked("report")
        return 0.0

    async def _say(self, blocking: Callable[[], int], number: int) -> None:
        """Make one call that says how so many events ended."""
        try:
            still_ours = await self._caller.call(blocking)
        except TimerError as error:  # not from Redis: what cannot be said now can never be
            log.error("the end of an event cannot be said", events=number, error=str(error))  # noqa: TRY400 - it says all
            self._figures.unsaid += number
        else:
            self._figures.void += number - still_ours if self._is_sure else 0
        self._held.said(number)
