"""The events that a worker has claimed, and its reports on them: done, retry, give back, extend.

A report that Redis refuses is kept, and does not delay others: all done events are one call, each retry a
call of its own. A lease is counted from *before* the call of Redis, so it ends here before it ends there.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

import structlog
import trio

from presence.common.errors import StoreError, StoreUnavailable
from presence.common.outage import Outage
from presence.common.runtime import Caller, TrioWakeEvent
from presence.timers.interface import Due, LeasedTimer, TimerError

TIMER_FAILURES: Final = (StoreUnavailable, StoreError, TimerError)
EXTEND_AT_SHARE: Final = 1 / 3  # of the lease: two more attempts fit before it ends
MAX_IN_FLIGHT: Final = 2000  # unreported events; at this limit a worker claims no more

log = structlog.get_logger("presence.timers")


@dataclass(slots=True)
class WorkerCounters:
    """Counters of one worker's events since its start."""

    taken: int = 0  # handed out to it
    handled: int = 0  # the handler returned
    failed: int = 0  # the handler raised or took too long
    put_off: int = 0  # the handler raised `RetryLater`
    dead: int = 0  # of both, those without an attempt left
    returned: int = 0  # not begun, or cut off at the end of the drain; handed out again
    lapsed: int = 0  # not begun, because their lease had ended by then
    void: int = 0  # claimed by another worker before their result was reported
    unsaid: int = 0  # not reported in time; handed out again once their lease ends
    late_ms_sum: int = 0  # of how late each was handed out
    late_ms_max: int = 0

    def add_claimed(self, dues: Iterable[Due]) -> None:
        """Count claimed events."""
        for due in dues:
            self.taken += 1
            self.late_ms_sum += due.late_ms
            self.late_ms_max = max(self.late_ms_max, due.late_ms)

    def for_log(self) -> dict[str, int]:
        """Return the counters for the log."""
        values: dict[str, int] = asdict(self)
        values["late_ms_mean"] = round(values.pop("late_ms_sum") / max(1, self.taken))
        return values


class Leases:
    """The claimed events of one worker, each from its claim until its result is reported.

    `reported` is called after each report; `counters` are those of the worker.
    """

    def __init__(
        self,
        timer: LeasedTimer,
        lease_s: float,
        caller: Caller,
        outage: Outage,
        reported: Callable[[], None],
    ) -> None:
        self._timer = timer
        self._lease_s = lease_s
        self._caller = caller
        self._outage = outage
        self._reported = reported
        self.counters = WorkerCounters()
        self._work_added, self._attempt_made = TrioWakeEvent(), TrioWakeEvent()
        self._claimed_at: dict[Due, float] = {}  # of running ones
        self._done: list[Due] = []
        self._returned: list[Due] = []
        self._retries: dict[Due, float] = {}  # seconds until the next attempt
        self._was_answered = True  # False: the last report may have arrived without an answer

    def __len__(self) -> int:
        """Return the number of all of them."""
        return len(self._claimed_at) + self.unreported

    @property
    def unreported(self) -> int:
        """Number of ended events that are not reported yet."""
        return len(self._done) + len(self._returned) + len(self._retries)

    def claim(self, dues: Sequence[Due], asked_at: float) -> bool:
        """Add events claimed at `asked_at`; return False if their leases have already ended."""
        if trio.current_time() - asked_at >= self._lease_s:
            return False
        self._claimed_at.update(dict.fromkeys(dues, asked_at))
        return True

    def done(self, due: Due) -> None:
        """Report an event as handled."""
        self._remove(due)
        self._done.append(due)

    def retry(self, due: Due, delay_s: float) -> None:
        """Report an event as failed: hand it out again after `delay_s`."""
        self._remove(due)
        self._retries[due] = delay_s

    def give_back(self, dues: Iterable[Due]) -> None:
        """Return events whose handlers did not begin or were cut off."""
        for due in dues:
            self._remove(due)
            self._returned.append(due)

    def _remove(self, due: Due) -> None:
        self._claimed_at.pop(due, None)
        self._work_added.set()

    async def report(self) -> None:
        """Report until cancelled."""
        while True:
            if not self.unreported:
                await self._work_added.wait(math.inf)
            pause_s = await self._report_once()
            self._attempt_made.set()
            self._reported()
            if pause_s:
                await trio.sleep(pause_s)

    async def finish(self, within_s: float) -> None:
        """Wait until all is reported, for `within_s` at most."""
        with trio.move_on_after(within_s):
            while self.unreported:
                await self._attempt_made.wait(within_s)

    async def extend(self) -> None:
        """Extend the leases of running events once a third has passed, until cancelled."""
        age_s = self._lease_s * EXTEND_AT_SHARE
        while True:
            await trio.sleep(age_s / 2)
            asked_at = trio.current_time()
            dues = [due for due, at in self._claimed_at.items() if asked_at - at >= age_s]
            if not dues:
                self._outage.worked("extend")  # a call that failed will not be repeated
                continue
            try:
                extended = await self._caller.call(partial(self._timer.extend, dues))
            except TIMER_FAILURES as error:
                self._outage.failed("extend", error)
                continue
            self._outage.worked("extend")
            self._claimed_at.update({due: asked_at for due in dues if due in self._claimed_at})
            if extended < len(dues):
                log.warning("leases lost during handling", events=len(dues) - extended)

    async def _report_once(self) -> float:
        """Report ended events; return the pause before the next attempt if a call failed, else 0."""
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
                    await self._report_call(call, dues)
            except StoreUnavailable as error:
                failure = error
                break
            except StoreError as error:
                failure = error
        self._was_answered = failure is None
        if failure is not None:
            return self._outage.failed("report", failure)
        self._outage.worked("report")
        return 0.0

    async def _report_call(self, call: Callable[[], int], dues: list[Due]) -> None:
        try:
            still_ours = await self._caller.call(call)
        except TimerError as error:  # not from Redis: it is permanent
            log.error("cannot report event result", events=len(dues), error=str(error))  # noqa: TRY400 - it says all
            self.counters.unsaid += len(dues)
        else:
            self.counters.void += len(dues) - still_ours if self._was_answered else 0
        reported = set(dues)
        self._done = [due for due in self._done if due not in reported]
        self._returned = [due for due in self._returned if due not in reported]
        for due in dues:
            self._retries.pop(due, None)
