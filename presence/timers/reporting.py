"""What a worker says to Redis of the events that it holds: done, again, given back, still at work."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol, TypeVar, runtime_checkable

import structlog
import trio

from presence.runtime import Caller, TrioBell
from presence.store.batches import StoreError, StoreUnavailable
from presence.timers.figures import Figures, Outage
from presence.timers.held import Held, Reports
from presence.timers.interface import Due, LeasedTimer, TimerError

FAILURES: Final = (StoreUnavailable, StoreError, TimerError)
EXTEND_AT: Final = 1 / 3  # of the lease: two more attempts fit before it ends
log = structlog.get_logger("presence.timers")
T = TypeVar("T")


@runtime_checkable
class Returning(Protocol):
    """A timer that takes back what was not begun, without counting it as a failure."""

    def give_back(self, dues: Iterable[Due]) -> int:
        """Hand these out again at once; return of how many it still was this caller's to say."""


class Reporter:
    """Says what becomes of events, in the order in which it became so, and insists on it while Redis is away.

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

    def ring(self) -> None:
        """There is something to say."""
        self._bell.ring()

    async def run(self, heard: Callable[[], None]) -> None:
        """Report for ever; `heard` is called whenever Redis has heard of some."""
        while True:
            await self._bell.wait(math.inf)
            for blocking, number in self._words(self._held.take_reports()):
                still_ours = await self._insist(blocking)
                self._figures.void += 0 if still_ours is None else number - still_ours
                self._held.said(number)
            self._said.ring()
            heard()

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
                self._outage.failed(error)
                continue
            self._held.extend(dues, asked_at)
            if extended < len(dues):
                log.warning("leases were lost while handlers ran", events=len(dues) - extended)

    def _words(self, reports: Reports) -> list[tuple[Callable[[], int], int]]:
        """Return the calls that say it all, and of how many events each."""
        words: list[tuple[Callable[[], int], int]] = []
        if reports.done:
            words.append((partial(self._timer.done, reports.done), len(reports.done)))
        words += [(partial(self._timer.retry, each.due, each.delay_s), 1) for each in reports.retries]
        if not isinstance(self._timer, Returning):
            words += [(partial(self._timer.retry, due, 0.0), 1) for due in reports.returns]
        elif reports.returns:
            words.append((partial(self._timer.give_back, reports.returns), len(reports.returns)))
        return words

    async def _insist(self, blocking: Callable[[], T]) -> T | None:
        """Call until it works; None: it worked at a later attempt, and an earlier one may have, too."""
        has_failed = False
        while True:
            try:
                answer = await self._caller.call(blocking)
            except FAILURES as error:
                has_failed = True
                await trio.sleep(self._outage.failed(error))
            else:
                self._outage.worked()
                return None if has_failed else answer
