"""One worker: takes due events from a timer, has them handled, and says so.

    claim ─→ held ─→ handlers (so many at once) ─→ reports ─→ done, retry

Four tasks: one claims while there is room, one reports, one extends leases, and one tells the figures; and
one for each handler that runs. All that blocks runs in one thread for Redis, and in one for each plain
handler.

At least once: an event is reported when its handler has returned, so a worker that dies between the two
leaves it to another, once its lease has ended. While a handler runs its lease is extended, from a third of
it on. What is said of an event too late is void.

A handler that takes longer than the time-out has failed. An ``async def`` is cancelled. A plain function
cannot be ended, so its process is: the worker drains, and ends with `STUCK`. Of plain functions that go on,
these and those that outlast a drain, it says the very last thing before the process ends (`say_last`): so
none goes on beside the one that handles its event anew.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import structlog
import trio

from presence.backoff import jittered
from presence.outages import Outage
from presence.runtime import Caller, TrioBell, TrioCaller
from presence.store.batches import StoreUnavailable
from presence.timers.figures import Figures
from presence.timers.handlers import Handler
from presence.timers.held import Held, Retry
from presence.timers.interface import Due, LeasedTimer
from presence.timers.judging import is_cancelled, judge
from presence.timers.pacing import OUTAGE_FIRST_S, OUTAGE_MAX_S, Ahead, foresight, look_delay_s
from presence.timers.reporting import FAILURES, Reporter, give_back
from presence.timers.terms import Terms

STUCK: Final = 3  # exit status of a worker that ended since a plain handler would not
START_TIMEOUT_S: Final = 6.0  # Redis is given so long at the start: within 10 s an operator knows
FIGURES_S: Final = 60.0  # between two lines of figures
LAST_WORDS_S: Final = 1.0  # for reports after the drain; a supervisor waits for two more before it kills

log = structlog.get_logger("presence.timers")


class Runner:
    """A worker on one timer.

    Args:
        timer: used from one thread at a time.
        handler: what is called with each event.
        terms: how.
        caller: makes the calls of the timer; in a thread by default.

    Attributes:
        figures: what happened so far.
        has_ended: whether it was drained to the end.
        failure: why it could not begin; None if it could.
        is_stuck: whether it ends since a plain handler would not.
        goes_on: whether a plain handler goes on at the end; call `say_last`, and end the process at once.
    """

    def __init__(
        self, timer: LeasedTimer, handler: Handler, terms: Terms, caller: Caller | None = None
    ) -> None:
        self._timer = timer
        self._handler = handler
        self._terms = terms
        self._held = Held(terms.leasing.lease_s)
        self._ahead = Ahead(max(0, terms.batch - terms.concurrency))
        # A call that is left behind ends with the process.
        self._redis = caller or TrioCaller(lambda: None)
        self._threads = trio.CapacityLimiter(terms.concurrency)
        self._outage = Outage(
            log,
            away="Redis is away, trying again",
            refused="Redis refused, trying again",
            back="Redis is back",
            first_s=OUTAGE_FIRST_S,
            limit_s=OUTAGE_MAX_S,
        )
        self._room = TrioBell()
        self._claiming = trio.CancelScope()
        self._stopped = trio.Event()
        self._stopped_at = math.inf
        self._running = 0
        self._full_at: float | None = None  # when the last batch came, if there was more
        self._stuck: list[Retry] = []
        self._cut_off: list[Due] = []
        self._has_begun = False
        self.figures = Figures()
        self._reporter = Reporter(
            timer,
            self._held,
            terms.leasing.lease_s,
            caller=self._redis,
            outage=self._outage,
            figures=self.figures,
        )
        self.has_ended = False
        self.failure: Exception | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether a plain handler goes on though its time is over: only the end of the process ends it."""
        return bool(self._stuck)

    @property
    def goes_on(self) -> bool:
        """Whether handlers run on in threads."""
        return bool(self._stuck or self._cut_off)

    def say_last(self, timer: LeasedTimer) -> None:
        """Leave the events of handlers that go on to others; blocks, and is for the end of the process.

        Args:
            timer: the same over connections of its own: a call may have been left behind on the others.
        """
        with suppress(*FAILURES):
            for each in self._stuck:
                timer.retry(each.due, each.delay_s)
            give_back(timer, self._cut_off)

    async def run(self, ready: Callable[[], None] = lambda: None, *, is_first: bool = True) -> None:
        """Work until `stop`, then drain; cancel it to end at once.

        Args:
            ready: called once Redis has answered.
            is_first: give up if Redis cannot be reached at first, see `failure`; else wait for it.
        """
        async with trio.open_nursery() as beside:
            beside.start_soon(self._reporter.run, self._room.ring)
            beside.start_soon(self._reporter.extend)
            beside.start_soon(self._tell)
            async with trio.open_nursery() as self._handlers:
                with self._claiming:
                    await self._claim(ready, START_TIMEOUT_S if is_first else math.inf)
                self.figures.returned += self._held.return_waiting()
                self._reporter.ring()
                self._handlers.cancel_scope.deadline = self._stopped_at + self._terms.drain_timeout_s
            await self._reporter.finish(LAST_WORDS_S)
            beside.cancel_scope.cancel()
        self.figures.unsaid += self._held.unsaid
        self.figures.lapsed = self._held.lapsed
        self.has_ended = True

    def stop(self) -> None:
        """Take no more events; what runs may finish within the drain time-out."""
        if not self._stopped.is_set():
            self._stopped_at = trio.current_time()
            # An answer that is under way is worth this: whatever it hands out is given back.
            self._claiming.deadline = self._stopped_at + self._terms.drain_timeout_s
            self._stopped.set()
            self._room.ring()

    # Claiming

    async def _claim(self, ready: Callable[[], None], patience_s: float) -> None:
        give_up_at = trio.current_time() + patience_s
        while not self._stopped.is_set():
            asked = self._asks_for()
            if asked <= 0:
                await self._room.wait(math.inf)
                continue
            try:
                await self._look(asked, ready)
            except FAILURES as error:
                is_late = trio.current_time() >= give_up_at or not isinstance(error, StoreUnavailable)
                if is_late and not self._has_begun:
                    self.failure = error
                    self.stop()
                else:
                    await self._pause(self._outage.failed("due", error))

    async def _look(self, asked: int, ready: Callable[[], None]) -> None:
        """Take what is due, and begin with it; wait if that was all."""
        asked_at = trio.current_time()
        if self._full_at is not None:
            self._ahead.lasted(asked_at - self._full_at)
        dues = await self._redis.call(partial(self._timer.due, asked))
        self._outage.worked("due")
        self._held.take(dues, asked_at)
        self.figures.claimed(dues)
        self._full_at = trio.current_time() if len(dues) == asked else None
        self._fill()
        if not self._has_begun:
            self._has_begun = True
            ready()
        if len(dues) < asked:
            await self._pause(await self._next_s())

    def _asks_for(self) -> int:
        """Return how many more events there is room for."""
        free = self._terms.concurrency - self._running
        if free <= 0 or self._held.waiting:
            return 0
        bound = self._terms.batch + self._terms.concurrency - len(self._held)
        return min(self._terms.batch, free + self._ahead.events, bound)

    async def _next_s(self) -> float:
        """Return how long to wait before the next look, now that all that is due was taken."""
        next_s = None
        if (foresees := foresight(self._timer)) is not None:
            next_s = await self._redis.call(foresees)
        # Workers that were woken together come apart; one that knows when to come is in time.
        return jittered(look_delay_s(None)) if next_s is None else look_delay_s(next_s)

    async def _pause(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._stopped.wait()

    # Handling

    def _fill(self) -> None:
        """Begin as many as may run."""
        while self._running < self._terms.concurrency and not self._stopped.is_set():
            due = self._held.begin(trio.current_time())
            if due is None:
                return
            self._running += 1
            self._handlers.start_soon(self._handle, due)

    async def _handle(self, due: Due) -> None:
        try:
            with trio.move_on_after(self._terms.timeout_s) as limit:
                await self._call_handler(due)
        except BaseException as error:  # a handler that exits, or cancels itself, has failed like any other
            if is_cancelled(error):
                self._cut(due)
                raise
            self._fail(due, error)
        else:
            if not limit.cancelled_caught:
                self.figures.handled += 1
                self._held.done(due)
            else:
                self._time_out(due)
        finally:
            self._running -= 1
            self._reporter.ring()
            self._room.ring()
            self._fill()

    async def _call_handler(self, due: Due) -> None:
        if self._handler.is_async:
            await self._handler.await_(due)
        else:
            await trio.to_thread.run_sync(
                self._handler.call, due, limiter=self._threads, abandon_on_cancel=True
            )

    def _cut(self, due: Due) -> None:
        """The drain is over before its handler: others may have the event."""
        self.figures.cut_off += 1
        if self._handler.is_async:
            self._held.cut_off(due)
        else:
            self._cut_off.append(due)

    def _time_out(self, due: Due) -> None:
        """Its handler took too long."""
        error = TimeoutError(f"{self._handler.name} took {self._terms.timeout_s:g} s")
        if self._handler.is_async:
            self._fail(due, error)
            return
        log.error("a handler is stuck: its process is replaced", id=due.id)
        self._stuck.append(Retry(due, self._judge(due, error)))
        self.stop()

    def _fail(self, due: Due, error: BaseException) -> None:
        """Have an event handed out later."""
        self._held.failed(due, self._judge(due, error))

    def _judge(self, due: Due, error: BaseException) -> float:
        return judge(due, error, self._handler.name, self._terms.leasing, self.figures)

    async def _tell(self) -> None:
        while True:
            await trio.sleep(FIGURES_S)
            self.figures.lapsed = self._held.lapsed
            log.info("figures", **self.figures.shown(), running=self._running, held=len(self._held))
