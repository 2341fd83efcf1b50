"""`handle_due` on a real Redis: what it calls and reports, also when handlers, workers or Redis fail.

Its clock runs a hundred times faster than Redis', whose leases end when `let_pass` says so.
"""

import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from presence.common.errors import StoreError, StoreUnavailable
from presence.store.redis_client import Redis
from presence.store.script_runner import Scripting
from presence.timers.handlers import RetryLater, handle_due
from presence.timers.interface import Due, Event, TimerError
from presence.timers.kinds import DelayQueue
from presence.timers.shared_timer import Leasing, SharedTimer
from tests.support import waiting
from tests.support.no_threads import forbid_threads
from tests.timers.shared_timers import BASE, KINDS, LAP_S, a_timer, let_pass

CLOCK_RATE = 100.0
LEASE_LAPS = 400
LEASE_S = 0.9 * LEASE_LAPS * LAP_S  # on the function's clock longer than any test
LEASING = Leasing(LEASE_S, attempts_max=3, backoff_s=0.0)

until = partial(waiting.until, seconds=waiting.WAIT_TIMEOUT_S * CLOCK_RATE)

pytestmark = pytest.mark.usefixtures("client")


@pytest.fixture
def fast_clock() -> MockClock:
    return MockClock(rate=CLOCK_RATE)


class FailingQueue(DelayQueue):
    """A queue whose calls raise `failure` while it is set; `done` after Redis has done it."""

    failure: Exception | None = None

    def due(self, limit: int = 100) -> list[Due]:
        self._fail()
        return super().due(limit)

    def done(self, dues: Iterable[Due]) -> int:
        count = super().done(dues)
        self._fail()
        return count

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def queue(scripting: Scripting) -> FailingQueue:
    return FailingQueue(scripting, BASE, LEASING)


@asynccontextmanager
async def handling(
    timer: SharedTimer, handler: Callable[[Due], Awaitable[object]], *, batch: int = 1
) -> AsyncIterator[None]:
    """Handle events until the ``with`` block ends."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(handle_due, timer, handler, batch=batch))
        yield
        nursery.cancel_scope.cancel()


def summary(timer: SharedTimer) -> dict[str, int]:
    """Return how many events are where, without zeros."""
    state = timer.state()
    places = {"waiting": state.waiting, "leased": state.leased, "dead": state.dead}
    totals = {name: state.counts.get(name, 0) for name in ("done", "returned")}
    return {name: count for name, count in {**places, **totals}.items() if count}


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
async def test_events_are_handled_once_and_earliest_first(
    fast_clock: MockClock, scripting: Scripting, kind: str, batch: int
) -> None:
    timer, seen = a_timer(scripting, kind, LEASING), list[str]()
    timer.schedule_many(Event(f"e{n}", n * 0.03) for n in (3, 1, 0, 2))

    async def note(due: Due) -> None:
        seen.append(due.id)

    async with handling(timer, note, batch=batch):
        await until(lambda: len(seen) == 4)
    assert seen == ["e0", "e1", "e2", "e3"]
    assert summary(timer) == {"done": 4}


@pytest.mark.parametrize(("error", "logged"), [(ValueError("no"), 3), (RetryLater(), 0), (RetryLater(0), 0)])
async def test_an_event_whose_handler_raises_comes_again_and_becomes_a_dead_letter(
    fast_clock: MockClock, queue: DelayQueue, error: Exception, logged: int
) -> None:
    queue.schedule_many([Event("bad", 0.0), Event("good", 0.0)])
    seen = list[tuple[str, int]]()

    async def fail(due: Due) -> None:
        seen.append((due.id, due.attempt))
        if due.id == "bad":
            raise error

    with capture_logs() as logs:
        async with handling(queue, fail, batch=2):
            await until(lambda: len(seen) == 4)
    assert sorted(seen) == [("bad", 1), ("bad", 2), ("bad", 3), ("good", 1)]
    assert [(line["event"], line["id"]) for line in logs] == [("handler failed", "bad")] * logged
    assert summary(queue) == {"dead": 1, "done": 1}


async def test_a_postponed_event_is_due_after_its_delay(fast_clock: MockClock, queue: DelayQueue) -> None:
    queue.schedule(Event("e", 0.0))
    called = trio.Event()

    async def postpone(_due: Due) -> None:
        called.set()
        raise RetryLater(60.0)

    async with handling(queue, postpone):
        await called.wait()
    assert 50 < (queue.state().next_s or 0) < 61


@pytest.mark.parametrize("delay_s", [1e9, -1.0, math.inf, math.nan])
def test_an_event_cannot_be_postponed_beyond_bounds(delay_s: float) -> None:
    with pytest.raises(TimerError, match="delay_s"):
        RetryLater(delay_s)


async def test_a_handler_is_cancelled_when_the_lease_ends(
    fast_clock: MockClock, scripting: Scripting
) -> None:
    queue = DelayQueue(scripting, BASE, Leasing(lease_s=20.0, attempts_max=1))
    queue.schedule(Event("e", 0.0))

    async def hang(_due: Due) -> None:
        await trio.sleep_forever()

    with capture_logs() as logs:
        async with handling(queue, hang):
            await until(lambda: logs)
    assert [type(line["exc_info"]) for line in logs] == [trio.TooSlowError]
    # On a busy machine it may begin too late at first, and is returned then: that is no attempt.
    assert {name: number for name, number in summary(queue).items() if name != "returned"} == {"dead": 1}


async def test_what_has_not_begun_after_half_of_the_lease_is_returned(
    fast_clock: MockClock, queue: DelayQueue
) -> None:
    queue.schedule_many([Event("a", 0.0), Event("b", 0.0)])
    seen = list[tuple[str, int]]()

    async def take_long(due: Due) -> None:
        seen.append((due.id, due.attempt))
        if due.id == "a":
            fast_clock.jump(LEASE_S / 2)

    async with handling(queue, take_long, batch=2):
        await until(lambda: len(seen) == 2)
    assert seen == [("a", 1), ("b", 2)]
    assert summary(queue) == {"done": 2, "returned": 1}


async def test_events_of_a_worker_that_died_are_handled_by_another(
    fast_clock: MockClock, queue: DelayQueue, client: Redis
) -> None:
    queue.schedule_many([Event("a", 0.0), Event("b", 0.0)])
    seen = list[tuple[str, int]]()

    async def note(due: Due) -> None:
        seen.append((due.id, due.attempt))

    async def die(due: Due) -> None:
        await note(due)
        raise SystemExit

    with pytest.RaisesGroup(SystemExit):
        async with handling(queue, die, batch=2):
            await trio.sleep_forever()
    assert summary(queue) == {"leased": 2}
    let_pass(client, LEASE_LAPS)
    async with handling(queue, note):
        await until(lambda: len(seen) == 3)
    assert seen == [("a", 1), ("a", 2), ("b", 2)]
    assert summary(queue) == {"done": 2}


async def test_a_cancelled_worker_reports_and_returns_what_it_has(
    fast_clock: MockClock, queue: DelayQueue
) -> None:
    queue.schedule_many(Event(name, 0.0) for name in "abc")
    begun = trio.Event()

    async def hang_in_second(due: Due) -> None:
        if due.id == "b":
            begun.set()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)

    async with handling(queue, hang_in_second, batch=3):
        await begun.wait()
    assert summary(queue) == {"leased": 2, "done": 1, "returned": 2}
    assert [due.id for due in queue.due()] == ["b", "c"]


async def test_events_that_are_claimed_while_a_worker_is_cancelled_are_returned(
    fast_clock: MockClock, scripting: Scripting
) -> None:
    claimed, cancelled = threading.Event(), threading.Event()

    class SlowQueue(DelayQueue):
        def due(self, limit: int = 100) -> list[Due]:
            if dues := super().due(limit):  # none in the millisecond in which it was scheduled
                claimed.set()
                cancelled.wait(waiting.WAIT_TIMEOUT_S)
            return dues

    async def ignore(_due: Due) -> None: ...

    queue = SlowQueue(scripting, BASE, LEASING)
    queue.schedule(Event("a", 0.0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handle_due, queue, ignore)
        await until(claimed.is_set)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        cancelled.set()
    assert summary(queue) == {"leased": 1, "returned": 1}


@pytest.mark.parametrize(
    ("failure", "event"),
    [
        (StoreUnavailable("gone"), "Redis unreachable, retrying"),
        (StoreError("NOPERM"), "Redis refused, retrying"),
    ],
)
async def test_while_redis_fails_nothing_is_lost_or_handled_twice(
    fast_clock: MockClock, queue: FailingQueue, failure: Exception, event: str
) -> None:
    queue.schedule_many([Event("a", 0.0), Event("b", 0.001)])
    seen = list[str]()

    async def note(due: Due) -> None:
        seen.append(due.id)
        queue.failure = failure

    with capture_logs() as logs:
        async with handling(queue, note):
            for expected in (["a"], ["a", "b"]):
                await until(lambda: logs)
                await trio.sleep(10)
                assert seen == expected
                assert [line["event"] for line in logs] == [event]
                queue.failure = None
                await until(lambda: len(logs) == 2)
                assert logs.pop()["event"] == "Redis reachable again"
                logs.clear()
    assert summary(queue) == {"done": 2}


async def test_a_worker_is_cancelled_while_redis_is_unreachable(
    fast_clock: MockClock, queue: FailingQueue
) -> None:
    queue.schedule(Event("a", 0.0))

    async def note(_due: Due) -> None:
        queue.failure = StoreUnavailable("gone")

    with capture_logs() as logs:
        async with handling(queue, note):
            await until(lambda: logs)
    assert summary(queue) == {"done": 1}, "the call arrived"


async def test_a_worker_waits_for_a_thread(
    fast_clock: MockClock, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.schedule(Event("a", 0.0))
    seen = list[int]()

    async def note(due: Due) -> None:
        seen.append(due.attempt)

    with capture_logs() as logs, monkeypatch.context() as lacking:
        forbid_threads(lacking)
        async with handling(queue, note):
            await until(lambda: logs)
            lacking.undo()
            await until(lambda: seen)
    assert seen == [1]


async def test_what_cannot_work_is_refused(
    fast_clock: MockClock, scripting: Scripting, queue: DelayQueue
) -> None:
    async def ignore(_due: Due) -> None: ...

    with pytest.raises(TypeError, match="is not an async function"):
        await handle_due(queue, lambda due: ignore(due))  # noqa: PLW0108 - it hides what it returns
    queue.schedule(Event("a", 60.0))
    with pytest.raises(TimerError, match="of another kind"):
        await handle_due(a_timer(scripting, "ring"), ignore)
    with pytest.raises(TimerError, match="limit 0 is not between 1 and 1000"):
        await handle_due(queue, ignore, batch=0)
