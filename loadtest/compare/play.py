"""One technique under the workload, in real time and open loop: a touch is made when it is due."""

import gc
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import trio

from loadtest.compare.ledger import Ledger
from loadtest.compare.meter import Meter, Used
from loadtest.compare.technique import Technique
from loadtest.compare.workload import Schedule, percentile
from presence.store.batches import StoreError, StoreUnavailable

STEP_S: Final = 0.05  # touches are made together once in so long: a server gathers its reads as well
CHUNK: Final = 512  # touches, after which it is looked whether a look is due
REHEARSING: Final = "nobody"
TAIL_SHARE: Final = 0.2  # of T, after the last touch: who is told late is not missed, and no other is due
WARM_BEATS: Final = 1.1  # all have come by then


@dataclass
class Report:
    """What the process itself knows of its run; the judge has the rest.

    Attributes:
        touches: made in the measured stretch, from when all had come to the end.
        used: in that stretch.
        process_bytes, redis_bytes: for each user, just before the first can be due.
        lag_p99_ms, lag_max_ms: from when a touch was due until it was done, less the step.
        refused: touches and looks that Redis did not take.
    """

    touches: int = 0
    used: dict[str, Any] = field(default_factory=dict)
    process_bytes: float = 0.0
    redis_bytes: float = 0.0
    lag_p99_ms: float = 0.0
    lag_max_ms: float = 0.0
    refused: int = 0


class Player:
    """Makes the touches of a schedule and notes what is told.

    Args:
        schedule: what is to be done.
        technique: who is played.
        ledger: where it is noted.
        meter: what is used.
        batched: touches that are due together are made with one call.
        resumed: another has played until it was killed; what was due before now is lost.
    """

    def __init__(
        self,
        schedule: Schedule,
        technique: Technique,
        ledger: Ledger,
        meter: Meter,
        *,
        batched: bool,
        resumed: bool = False,
    ) -> None:
        self._schedule = schedule
        self._uids = schedule.uids()
        self._begin = 0.0
        self._technique = technique
        self._ledger = ledger
        self._meter = meter
        self._touch = self._touch_together if batched else self._touch_each
        self._resumed = resumed
        self._place = 0
        self._lags: list[float] = []
        self.report = Report()
        self._rehearse()
        self._before = meter.memory()

    async def run(self, begin: float) -> Report:
        """Play to the end, in real time.

        Args:
            begin: monotonic time of second 0.
        """
        self._begin, plan = begin, self._schedule.plan
        await trio.sleep(max(0.0, begin - time.monotonic()))
        if self._resumed:
            self._place = self._schedule.first_after(time.monotonic() - begin)
        await self._until(begin + WARM_BEATS * plan.beat_s)
        gc.collect()
        gc.freeze()  # as the server does once it is warm
        start, first = self._meter.used(), self._place
        await self._until(begin + plan.idle_timeout_s)
        self._weigh()
        await self._until(begin + plan.seconds)
        self._sum_up(self._meter.used().since(start), self._place - first)
        await self._until(begin + plan.seconds + TAIL_SHARE * plan.idle_timeout_s)
        return self.report

    def _rehearse(self) -> None:
        """One user comes and goes, so that what is loaded with the first is no user's memory."""
        now = time.monotonic()
        self._technique.touch(REHEARSING, now)
        self._technique.touch_many([REHEARSING], now)
        self._look()
        self._technique.forget(REHEARSING)

    async def _until(self, end: float) -> None:
        while (now := time.monotonic()) < end:
            self._make_touches(now)
            if self._technique.next_look(now) <= time.monotonic():
                self._look()
            now = time.monotonic()
            step = self._begin + STEP_S * (1 + (now - self._begin) // STEP_S)
            await trio.sleep(max(0.0, min(step, self._technique.next_look(now), end) - now))

    def _make_touches(self, now: float) -> None:
        """Make what is due by now; a step's time later the rest has to wait for a turn of the others."""
        times, who = self._schedule.times, self._schedule.who
        upto = self._schedule.first_after(now - self._begin)
        while self._place < upto and time.monotonic() - now < STEP_S:
            chunk = who[self._place : min(upto, self._place + CHUNK)]
            due = times[self._place]
            self._place += len(chunk)
            self._touch(chunk)
            self._lags.append(time.monotonic() - self._begin - due)

    def _touch_each(self, users: Sequence[int]) -> None:
        touch, uids, touched = self._technique.touch, self._uids, self._ledger.touched
        for user in users:
            now = time.monotonic()
            try:
                touch(uids[user], now)
            except (StoreUnavailable, StoreError):
                self.report.refused += 1
            else:
                touched[user] = now

    def _touch_together(self, users: Sequence[int]) -> None:
        uids, touched = self._uids, self._ledger.touched
        now = time.monotonic()
        try:
            self._technique.touch_many([uids[user] for user in users], now)
        except (StoreUnavailable, StoreError):
            self.report.refused += len(users)
            return
        for user in users:
            touched[user] = now

    def _look(self) -> None:
        try:
            for each in self._technique.due(time.monotonic()):
                self._ledger.tell(int(each.uid.removeprefix("user-")), each.at)
        except (StoreUnavailable, StoreError):
            self.report.refused += 1

    def _weigh(self) -> None:
        after = self._meter.memory()
        users = self._schedule.plan.users
        self.report.process_bytes = (after[0] - self._before[0]) / users
        self.report.redis_bytes = (after[1] - self._before[1]) / users

    def _sum_up(self, used: Used, touches: int) -> None:
        self.report.used = asdict(used)
        self.report.touches = touches
        lags_ms = [1000 * max(0.0, lag - STEP_S) for lag in self._lags]
        self.report.lag_p99_ms = percentile(lags_ms, 0.99)
        self.report.lag_max_ms = max(lags_ms, default=0.0)
