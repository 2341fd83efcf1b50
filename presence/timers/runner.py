"""One worker: takes due events from a timer, has them handled, and says so.

    claim ─→ held ─→ handlers (so many at once) ─→ reports ─→ done, retry

Four tasks: one claims while there is room, one reports, one extends leases, and one tells the figures; and
one for each handler that runs. All that blocks runs in one thread for Redis, and in one for each plain
handler.

At least once: an event is reported when its handler has returned, so a worker that dies between the two
leaves it to another, once its lease has ended. While a handler runs its lease is extended, from a third of
it on. What is said of an event too late is void.

A handler that takes longer than the time-out has failed. An ``async def`` is cancelled. A plain function
cannot be ended, so its process is: the worker drains, says that the event failed as the very last thing,
and ends with `STUCK`. So a stuck function never goes on beside the one that handles its event anew.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
import trio

from presence.runtime import Caller, TrioBell, TrioCaller
from presence.store.batches import StoreUnavailable
from presence.timers.figures import Figures, Outage
from presence.timers.handlers import Handler, PutOff
from presence.timers.held import Held
from presence.timers.interface import Due, LeasedTimer
from presence.timers.pacing import Ahead, foresight, jittered, look_delay_s
from presence.timers.reporting import FAILURES, Reporter
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
        self._outage = Outage(log)
        self._room = TrioBell()
        self._stopped = trio.Event()
        self._stopped_at = math.inf
        self._running = 0
        self._full_at: float | None = None  # when the last batch came, if there was more
        self._stuck: list[Due] = []
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
                await self._claim(ready, START_TIMEOUT_S if is_first else math.inf)
                self.figures.returned += self._held.return_waiting()
                self._reporter.ring()
                self._handlers.cancel_scope.deadline = self._stopped_at + self._terms.drain_timeout_s
            for due in self._stuck:
                self._fail(due, TimeoutError(f"{self._handler.name} goes on; its process ends"))
            await self._reporter.finish(LAST_WORDS_S)
            beside.cancel_scope.cancel()
        self.figures.unsaid += self._held.unsaid
        self.figures.lapsed = self._held.lapsed
        self.has_ended = True

    def stop(self) -> None:
        """Take no more events; what runs may finish within the drain time-out."""
        if not self._stopped.is_set():
            self._stopped_at = trio.current_time()
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
        except (Exception, SystemExit) as error:  # a handler that calls exit has failed like any other
            self._fail(due, error)
        except BaseException:  # cancelled: the drain is over
            self.figures.cut_off += 1
            self._held.cut_off(due)
            raise
        else:
            if not limit.cancelled_caught:
                self.figures.handled += 1
                self._held.done(due)
            elif self._handler.is_async:
                self._fail(due, TimeoutError(f"{self._handler.name} took {self._terms.timeout_s:g} s"))
            else:
                log.error("a handler is stuck: its process is replaced", id=due.id, attempt=due.attempt)
                self._stuck.append(due)
                self.stop()
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

    def _fail(self, due: Due, error: BaseException) -> None:
        """Log a failure, and have the event handed out later."""
        facts = {"id": due.id, "attempt": due.attempt, "handler": self._handler.name}
        # An attempt that was given back does not count, of which only Redis knows: then there is one more.
        is_last = due.attempt >= self._terms.leasing.attempts_max
        delay_s = self._terms.leasing.pause_s(due.attempt)
        if isinstance(error, PutOff):
            self.figures.put_off += 1
            delay_s = delay_s if error.delay_s is None else error.delay_s
        else:
            self.figures.failed += 1
        if is_last:
            self.figures.dead += 1
            log.error("no attempt is left: a dead letter", **facts, exc_info=error)
        elif not isinstance(error, PutOff):
            log.warning("a handler failed", **facts, again_s=round(delay_s, 3), exc_info=error)
        self._held.failed(due, delay_s)

    async def _tell(self) -> None:
        while True:
            await trio.sleep(FIGURES_S)
            self.figures.lapsed = self._held.lapsed
            log.info("figures", **self.figures.shown(), running=self._running, held=len(self._held))
