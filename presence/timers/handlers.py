"""Handling the events of a shared timer with a function."""

import inspect
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn, TypeVar

import structlog
import trio

from presence.common.backoff import jittered
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.outage import Outage
from presence.common.runtime import run_in_thread
from presence.common.threads import NoThread
from presence.timers.interface import Due, check_delay
from presence.timers.shared_timer import SharedTimer

POLL_INTERVAL_S: Final = 0.1  # while nothing is due
RETRY_FIRST_S: Final = 0.1  # between two attempts while Redis is unreachable
RETRY_MAX_S: Final = 2.0
_FAILURES: Final = (StoreUnavailable, StoreError, NoThread)

log = structlog.get_logger("presence.timers")

T = TypeVar("T")


class RetryLater(Exception):
    """Raised by a handler to get the event again later; this counts as an attempt.

    It is not a failure and is not logged, but an event postponed as often as the timer has attempts becomes a
    dead letter.

    Args:
        delay_s: seconds; None: the pause after a failure, which doubles with each attempt.

    Raises:
        TimerError: the delay is out of bounds; then the handler has failed.
    """

    def __init__(self, delay_s: float | None = None) -> None:
        if delay_s is not None:
            check_delay(delay_s)
        super().__init__("put off")
        self.delay_s = delay_s


async def handle_due(
    timer: SharedTimer, handler: Callable[[Due], Awaitable[object]], *, batch: int = 1
) -> NoReturn:
    """Call a handler with each due event of a timer, earliest first, until cancelled.

    Handlers run one after the other. Run this function as often as you like in parallel, in one process or
    in many, each time with a timer of its own.

    At least once: an event is reported as done after its handler has returned. Between the two a process may
    die, so a handler that must not act twice records the event's id where it acts.

    - If the handler raises an exception, the event comes again after a pause, and becomes a dead letter after
      the last attempt; `Leasing` has the numbers. `RetryLater` sets the pause.
    - A handler that runs until the lease ends has failed, and is cancelled. So an event is with one handler
      at a time, except for handlers that cannot be cancelled: in a thread, or in a suspended process.
    - If the process dies, its events come again when their lease ends. If this function is cancelled, its
      unhandled events are due immediately, and this attempt does not count.
    - While Redis is unreachable or refuses, calls are repeated with growing pauses, and this is logged once.

    Args:
        timer: called in threads, never while the handler runs.
        handler: its result is ignored. Blocking code belongs in ``await trio.to_thread.run_sync(...)``.
        batch: events that are claimed and reported together. A large batch costs Redis less, but its events
            wait for each other, and all of them come again if the process dies. Those that have not begun
            after half of the lease are returned to the timer.

    Raises:
        TimerError: the timer in Redis is of another kind, or `batch` is not from 1 to 1000.
        TypeError: the handler is not an async function.
    """
    if not inspect.iscoroutinefunction(handler):  # it would act, and then not be awaited, at each attempt
        raise TypeError(f"{handler!r} is not an async function")
    outage = Outage(
        log,
        unreachable="Redis unreachable, retrying",
        refused="Redis refused, retrying",
        failed_otherwise="cannot call Redis, retrying",
        recovered="Redis reachable again",
        first_s=RETRY_FIRST_S,
        limit_s=RETRY_MAX_S,
    )

    async def call(function: Callable[[], T]) -> T:
        while True:
            try:
                with trio.CancelScope(shield=True):  # it ends within seconds, and its answer must not be lost
                    answer = await run_in_thread(function)
            except _FAILURES as error:
                await trio.sleep(outage.failed("timer", error))
            else:
                outage.worked("timer")
                return answer

    def report(handled: Iterable[Due], unhandled: Iterable[Due]) -> None:
        timer.done(handled)
        timer.give_back(unhandled)

    while True:
        claimed_at, lease_s = trio.current_time(), timer.leasing.lease_s
        claimed, handled = deque(await call(partial(timer.due, batch))), list[Due]()
        if not claimed:
            await trio.sleep(jittered(POLL_INTERVAL_S))
        try:
            while claimed:
                await trio.lowlevel.checkpoint()
                if trio.current_time() >= claimed_at + lease_s / 2:
                    break
                due, pause_s = claimed[0], None
                try:
                    with trio.fail_at(claimed_at + lease_s):
                        await handler(due)
                except RetryLater as later:
                    pause_s = later.delay_s
                except Exception as error:
                    log.warning("handler failed", id=due.id, attempt=due.attempt, exc_info=error)
                else:
                    handled.append(claimed.popleft())
                    continue
                await call(partial(timer.retry, claimed.popleft(), pause_s))
            await call(partial(report, handled, claimed))
        except BaseException:
            if trio.current_effective_deadline() == -math.inf:  # cancelled, and not ended by the handler
                with trio.CancelScope(shield=True), suppress(*_FAILURES):
                    await run_in_thread(partial(report, handled, claimed))
            raise
