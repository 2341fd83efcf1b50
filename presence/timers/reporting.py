"""The events that a worker has claimed, and what it tells Redis of them: done, retry, give back, extend.

A report that Redis refuses is kept, and holds up no other: all that is done is one call, each retry one of
its own. A lease is reckoned from the moment *before* Redis was asked, so it ends here before it ends there.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

import structlog
import trio

from presence.common.errors import StoreError, StoreUnavailable
from presence.common.runtime import ThreadCaller, TrioWakeEvent
from presence.outbox.outage_log import Outage
from presence.timers.interface import Due, LeasedTimer, TimerError

FAILURES: Final = (StoreUnavailable, StoreError, TimerError)
EXTEND_AT: Final = 1 / 3  # of the lease: two more attempts fit before it ends
MAX_HELD: Final = 2000  # events whose end Redis has not heard of; then a worker claims no more

log = structlog.get_logger("presence.timers")


@dataclass(slots=True)
class Figures:
    """Counters of one worker's events, since it began.

    Attributes:
        taken: handed out to it.
        handled: the handler returned.
        failed: the handler raised or took too long.
        put_off: the handler asked for another time.
        dead: of both, those that had no attempt left.
        returned: not begun, or cut off at the end of the drain; handed out again.
        lapsed: not begun, because their lease had ended by then.
        void: gone to another before Redis heard how they ended.
        unsaid: Redis did not hear in time how they ended; handed out again once their lease ends.
        late_ms_sum, late_ms_max: how late they were handed out.
    """

    taken: int = 0
    handled: int = 0
    failed: int = 0
    put_off: int = 0
    dead: int = 0
    returned: int = 0
    lapsed: int = 0
    void: int = 0
    unsaid: int = 0
    late_ms_sum: int = 0
    late_ms_max: int = 0

    def claimed(self, dues: Iterable[Due]) -> None:
        """Count what was handed out."""
        for due in dues:
            self.taken += 1
            self.late_ms_sum += due.late_ms
            self.late_ms_max = max(self.late_ms_max, due.late_ms)

    def shown(self) -> dict[str, int]:
        """Return the figures as an operator reads them."""
        shown: dict[str, int] = asdict(self)
        shown["late_ms_mean"] = round(shown.pop("late_ms_sum") / max(1, self.taken))
        return shown


class Leases:
    """What one worker has claimed, each event from its claim until Redis has heard how it ended.

    Args:
        timer: whose events they are.
        lease_s: for how long they belong to this worker.
        caller: makes calls that block.
        outage: failures are reported there.
        reported: called whenever Redis has heard of some.

    Attributes:
        figures: counts what was reported in vain, and whatever else the worker counts.
    """

    def __init__(
        self,
        timer: LeasedTimer,
        lease_s: float,
        caller: ThreadCaller,
        outage: Outage,
        reported: Callable[[], None],
    ) -> None:
        self._timer = timer
        self._lease_s = lease_s
        self._caller = caller
        self._outage = outage
        self._reported = reported
        self.figures = Figures()
        self._bell, self._turned = TrioWakeEvent(), TrioWakeEvent()
        self._claimed_at: dict[Due, float] = {}  # of those that run
        self._done: list[Due] = []
        self._returned: list[Due] = []
        self._retries: dict[Due, float] = {}  # after how many seconds
        self._is_sure = True  # False: the last report may have been heard, though no answer came

    def __len__(self) -> int:
        """All of them."""
        return len(self._claimed_at) + self.unreported

    @property
    def unreported(self) -> int:
        """How many events ended of which Redis has not heard."""
        return len(self._done) + len(self._returned) + len(self._retries)

    def claim(self, dues: Sequence[Due], asked_at: float) -> bool:
        """Add what Redis handed out, asked at `asked_at`; False: its leases have ended already."""
        if trio.current_time() - asked_at >= self._lease_s:
            return False
        self._claimed_at.update(dict.fromkeys(dues, asked_at))
        return True

    def done(self, due: Due) -> None:
        """An event was handled."""
        self._end(due)
        self._done.append(due)

    def retry(self, due: Due, delay_s: float) -> None:
        """An event was not handled: hand it out again after `delay_s`."""
        self._end(due)
        self._retries[due] = delay_s

    def give_back(self, dues: Iterable[Due]) -> None:
        """Events whose handlers did not begin, or may not go on: hand them out again."""
        for due in dues:
            self._end(due)
            self._returned.append(due)

    def _end(self, due: Due) -> None:
        self._claimed_at.pop(due, None)
        self._bell.ring()

    async def report(self) -> None:
        """Report until cancelled."""
        while True:
            if not self.unreported:
                await self._bell.wait(math.inf)
            pause_s = await self._turn()
            self._turned.ring()
            self._reported()
            if pause_s:
                await trio.sleep(pause_s)

    async def finish(self, within_s: float) -> None:
        """Wait until all is reported, for `within_s` at most."""
        with trio.move_on_after(within_s):
            while self.unreported:
                await self._turned.wait(within_s)

    async def extend(self) -> None:
        """Extend the lease of what runs once a third of it is over, until cancelled."""
        age_s = self._lease_s * EXTEND_AT
        while True:
            await trio.sleep(age_s / 2)
            asked_at = trio.current_time()
            dues = [due for due, at in self._claimed_at.items() if asked_at - at >= age_s]
            if not dues:
                continue
            try:
                extended = await self._caller.call(partial(self._timer.extend, dues))
            except FAILURES as error:
                self._outage.failed("extend", error)
                continue
            self._outage.worked("extend")
            self._claimed_at.update({due: asked_at for due in dues if due in self._claimed_at})
            if extended < len(dues):
                log.warning("leases lost during handling", events=len(dues) - extended)

    async def _turn(self) -> float:
        """Report what there is; return how long to wait before the next attempt if some failed, else 0."""
        failure: Exception | None = None
        done, returned = self._done[:], self._returned[:]
        calls: list[tuple[Callable[[], int], list[Due]]] = [
            (partial(self._timer.done, done), done),
            (partial(self._timer.give_back, returned), returned),
            *((partial(self._timer.retry, due, delay_s), [due]) for due, delay_s in self._retries.items()),
        ]
        for call, dues in calls:
            try:
                if dues:
                    await self._say(call, dues)
            except StoreUnavailable as error:
                failure = error
                break
            except StoreError as error:
                failure = error
        self._is_sure = failure is None
        if failure is not None:
            return self._outage.failed("report", failure)
        self._outage.worked("report")
        return 0.0

    async def _say(self, call: Callable[[], int], dues: list[Due]) -> None:
        try:
            still_ours = await self._caller.call(call)
        except TimerError as error:  # not from Redis: what cannot be said now can never be
            log.error("cannot report event result", events=len(dues), error=str(error))  # noqa: TRY400 - it says all
            self.figures.unsaid += len(dues)
        else:
            self.figures.void += len(dues) - still_ours if self._is_sure else 0
        said = set(dues)
        self._done = [due for due in self._done if due not in said]
        self._returned = [due for due in self._returned if due not in said]
        for due in dues:
            self._retries.pop(due, None)
