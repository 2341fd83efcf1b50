"""A worker on a timer in memory, with time that jumps: what it claims, how it ends, and what it reports."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from presence.common.errors import StoreError, StoreUnavailable
from presence.timers.handlers import RetryLater, handler
from presence.timers.interface import Due, Event, TimerError
from presence.timers.leases import MAX_IN_FLIGHT
from presence.timers.runner import START_TIMEOUT_S, Runner, WorkerOptions
from presence.timers.shared_timer import Leasing
from tests.support.no_threads import forbid_threads
from tests.support.waiting import WAIT_TIMEOUT_S, until

Handle = Callable[[Due], Awaitable[None]]
LEASE_S = 30.0


@dataclass
class Entry:
    due_ms: int
    payload: bytes
    attempt: int = 0
    ready_at: float = 0.0


@dataclass
class FakeTimer:
    """A `LeasedTimer` of one test: its due events, and the calls that it got.

    Attributes:
        fail: what every call raises while it is set.
        part: how many events a claim returns at most.
        refused, refusal: a kind of call that is refused, and its error.
        reported: each call that changed something, and the id of its event.
        asked: how many events each claim requested.
        before_answer: called by a claim when it has been carried out.
    """

    lease_s: float = 30.0
    attempts_max: int = 5
    fail: Exception | None = None
    part: int = 1000
    refused: str = ""
    refusal: Exception = field(default_factory=lambda: StoreError("NOPERM"))
    reported: list[tuple[str, str]] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    before_answer: Callable[[], object] = lambda: None

    def schedule(self, *events: Event) -> None:
        for event in events:
            at = trio.current_time() + event.delay_s
            self.entries[event.id] = Entry(round(at * 1000), event.payload, ready_at=at)

    def due(self, limit: int = 100) -> Sequence[Due]:
        self._check("due")
        self.asked.append(limit)
        now = trio.current_time()
        ready = [(e.ready_at, name) for name, e in self.entries.items() if e.ready_at <= now]
        dues = []
        for _, name in sorted(ready)[: min(limit, self.part)]:
            entry = self.entries[name]
            entry.attempt += 1
            entry.ready_at = now + self.lease_s
            late_ms = round(now * 1000) - entry.due_ms
            dues.append(Due(name, entry.payload, entry.due_ms, max(0, late_ms), entry.attempt))
        self.before_answer()
        return dues

    def done(self, dues: Iterable[Due]) -> int:
        return len([self.entries.pop(due.id) for due, _ in self._ours("done", dues)])

    def retry(self, due: Due, delay_s: float) -> bool:
        ours = self._ours("retry", [due])
        for _, entry in ours:
            entry.ready_at = trio.current_time() + delay_s
            if due.attempt >= self.attempts_max:
                self.dead.append(due.id)
                del self.entries[due.id]
        return bool(ours)

    def extend(self, dues: Iterable[Due]) -> int:
        ours = self._ours("extend", dues)
        for _, entry in ours:
            entry.ready_at = trio.current_time() + self.lease_s
        return len(ours)

    def give_back(self, dues: Iterable[Due]) -> int:
        ours = self._ours("give_back", dues)
        for _, entry in ours:
            entry.ready_at = trio.current_time()
        return len(ours)

    def _ours(self, what: str, dues: Iterable[Due]) -> list[tuple[Due, Entry]]:
        self._check(what)
        found = [(due, self.entries[due.id]) for due in dues if due.id in self.entries]
        ours = [(due, entry) for due, entry in found if entry.attempt == due.attempt]
        self.reported += [(what, due.id) for due, _ in ours]
        return ours

    def _check(self, what: str) -> None:
        if self.fail is not None:
            raise self.fail
        if self.refused == what:
            raise self.refusal


class InlineCaller:
    """Makes calls in the current task, so that time may jump meanwhile."""

    async def call(self, blocking: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return blocking()


def options(*, concurrency: int = 1, timeout_s: float = 300.0, attempts: int = 5) -> WorkerOptions:
    return WorkerOptions(
        Leasing(LEASE_S, attempts, backoff_s=1.0), concurrency, timeout_s, drain_timeout_s=10.0
    )


@contextlib.asynccontextmanager
async def working(
    timer: FakeTimer, handle: Handle, given: WorkerOptions | None = None
) -> AsyncIterator[Runner]:
    """Run a worker until the block ends, then drain it."""
    runner = Runner(timer, handler(handle), given or options(), InlineCaller())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.run)
        yield runner
        runner.stop()


def a_timer(number: int = 1, delay_s: float = 0.0, *, attempts_max: int = 5, refused: str = "") -> FakeTimer:
    """Return a timer with events e0, e1, ..."""
    timer = FakeTimer(lease_s=LEASE_S, attempts_max=attempts_max, refused=refused)
    timer.schedule(*(Event(f"e{n}", delay_s) for n in range(number)))
    return timer


async def ignore(_due: Due) -> None:
    return


async def endless(_due: Due) -> None:
    await trio.sleep_forever()


def raising(error: BaseException) -> Handle:
    async def handle(_due: Due) -> None:
        raise error

    return handle


@pytest.mark.parametrize(
    ("handle", "reported", "counted"),
    [
        (ignore, "done", {"handled": 1}),
        (raising(ValueError("no")), "retry", {"failed": 1, "dead": 1}),
        (raising(RetryLater(0.5)), "retry", {"put_off": 1, "dead": 1}),
        (endless, "retry", {"failed": 1, "dead": 1}),  # cancelled by the time-out
        (raising(SystemExit()), "retry", {"failed": 1, "dead": 1}),
        (raising(GeneratorExit()), "retry", {"failed": 1, "dead": 1}),
        (raising(asyncio.CancelledError()), "retry", {"failed": 1, "dead": 1}),
    ],
)
async def test_the_outcome_of_a_handler_is_reported_once(
    autojump_clock: MockClock, handle: Handle, reported: str, counted: dict[str, int]
) -> None:
    timer, others = a_timer(delay_s=3.0, attempts_max=1), [Event(f"other {n}", 0.0) for n in range(200)]
    timer.schedule(*others)

    async def handle_one(due: Due) -> None:
        if due.id == "e0":
            assert trio.current_time() - start >= 3.0
            await handle(due)

    start = trio.current_time()
    with capture_logs() as logs:
        async with working(timer, handle_one, options(attempts=1, timeout_s=0.5)) as runner:
            await trio.sleep(5)
    assert sorted(timer.reported) == sorted([(reported, "e0"), *(("done", each.id) for each in others)])
    counters, expected = runner.counters, {"handled": 0, "failed": 0, "put_off": 0, "dead": 0, **counted}
    expected["handled"] += len(others)
    assert {name: getattr(counters, name) for name in expected} == expected
    assert [line["log_level"] for line in logs] == ["error"] * counted.get("dead", 0)
    assert timer.dead == ["e0"] * counted.get("dead", 0)


async def test_claims_and_running_handlers_are_limited(autojump_clock: MockClock) -> None:
    timer, running, most = a_timer(12), set[str](), list[int]()

    async def slow(due: Due) -> None:
        running.add(due.id)
        most.append(len(running))
        await trio.sleep(1)
        running.remove(due.id)

    async with working(timer, slow, options(concurrency=4)) as runner:
        await trio.sleep(1.5)
        assert runner.counters.taken == 8
        await trio.sleep(2)
    assert max(most) == 4
    assert len(most) == 12


async def test_a_partial_claim_is_followed_by_another_immediately(
    autojump_clock: MockClock,
) -> None:
    timer = a_timer(100)
    timer.part = 2
    async with working(timer, ignore, options(concurrency=10)):
        await trio.sleep(0.5)
    assert not timer.entries


@pytest.mark.parametrize(
    ("error", "pauses_s", "logged"),
    [
        (
            ValueError("no"),
            [(0.5, 1.1), (1.0, 2.1)],
            ["warning", "warning"],
        ),  # it doubles, and half of it is random
        (RetryLater(0.7), [(0.7, 0.8), (0.7, 0.8)], []),
    ],
)
async def test_a_failed_event_is_due_again_after_a_backoff(
    autojump_clock: MockClock, error: Exception, pauses_s: list[tuple[float, float]], logged: list[str]
) -> None:
    timer, at = a_timer(), list[float]()

    async def succeed_later(_due: Due) -> None:
        at.append(trio.current_time())
        if len(at) < 3:
            raise error

    with capture_logs() as logs:
        async with working(timer, succeed_later):
            await trio.sleep(20)
    assert all(
        least_s <= after - before <= most_s
        for (before, after), (least_s, most_s) in zip(itertools.pairwise(at), pauses_s, strict=True)
    )
    assert timer.reported[-1] == ("done", "e0")
    assert [line["log_level"] for line in logs] == logged
    assert all(line["exc_info"] is error for line in logs)


async def test_the_lease_of_a_long_handler_is_extended(autojump_clock: MockClock) -> None:
    timer, started = a_timer(), list[int]()

    async def long(due: Due) -> None:
        started.append(due.attempt)
        await trio.sleep(4 * LEASE_S)

    async with working(timer, long, options(concurrency=2)):
        await trio.sleep(5 * LEASE_S)
    assert started == [1]
    assert timer.reported[-1] == ("done", "e0")


async def test_a_drain_finishes_running_handlers_and_claims_no_more(autojump_clock: MockClock) -> None:
    timer = a_timer(30)

    async def slow(_due: Due) -> None:
        await trio.sleep(5)

    async with working(timer, slow, options(concurrency=3)):
        await trio.sleep(1)
    assert sorted(timer.reported) == [("done", name) for name in ("e0", "e1", "e10")]


async def test_events_claimed_while_a_drain_begins_are_given_back(autojump_clock: MockClock) -> None:
    timer = a_timer(2)
    async with working(timer, ignore, options(concurrency=2)) as runner:
        timer.before_answer = runner.stop
        await trio.sleep(1)
    assert timer.reported == [("give_back", "e0"), ("give_back", "e1")]
    assert (runner.counters.handled, runner.counters.returned) == (0, 2)


async def test_handlers_that_outlast_the_drain_are_given_back(autojump_clock: MockClock) -> None:
    timer = a_timer()
    start = trio.current_time()
    async with working(timer, endless) as runner:
        await trio.sleep(1)
    assert 10.5 <= trio.current_time() - start <= 12.5
    assert timer.reported[-1] == ("give_back", "e0")
    assert runner.counters.returned == 1


async def test_an_outage_is_logged_once_and_its_handled_events_are_reported_afterwards(
    autojump_clock: MockClock,
) -> None:
    timer = a_timer()

    async def note(_due: Due) -> None:
        timer.fail = StoreUnavailable("gone")

    with capture_logs() as logs:
        async with working(timer, note) as runner:
            await trio.sleep(10)
            assert timer.reported == []
            timer.fail = None
            await trio.sleep(3)
    assert timer.reported == [("done", "e0")]
    assert runner.counters.taken == 1
    assert [line["event"] for line in logs] == ["Redis unreachable, retrying", "Redis reachable again"]


async def test_an_outage_after_one_in_which_only_an_extension_failed_is_logged(
    autojump_clock: MockClock,
) -> None:
    timer = a_timer()

    async def long(_due: Due) -> None:
        await trio.sleep(LEASE_S / 3 + 2)
        timer.fail = None  # a lease was to be extended a second ago, and is not any more

    with capture_logs() as logs:
        async with working(timer, long):
            await trio.sleep(LEASE_S / 3 - 1)
            for outage_s in (LEASE_S, 10):
                timer.fail = StoreUnavailable("gone")
                await trio.sleep(outage_s)
                timer.fail = None
                await trio.sleep(3)
    assert [line["event"] for line in logs] == ["Redis unreachable, retrying", "Redis reachable again"] * 2


@pytest.mark.parametrize(("refused", "reported"), [("retry", ("done", "e1")), ("done", ("retry", "e0"))])
async def test_a_report_that_redis_refuses_does_not_delay_others(
    autojump_clock: MockClock, refused: str, reported: tuple[str, str]
) -> None:
    timer = a_timer(2, refused=refused)

    async def fail_first(due: Due) -> None:
        if due.id == "e0" and due.attempt == 1:
            raise ValueError("no")

    with capture_logs() as logs:
        async with working(timer, fail_first, options(concurrency=2)):
            await trio.sleep(10)
            assert timer.reported == [reported]
            timer.refused = ""
            await trio.sleep(5)
    assert not timer.entries
    messages = [line["event"] for line in logs if line["event"].startswith("Redis")]
    assert messages == ["Redis refused, retrying", "Redis reachable again"]


async def test_a_worker_whose_reports_are_refused_holds_a_bounded_number(autojump_clock: MockClock) -> None:
    timer = a_timer(3000, refused="done")
    with capture_logs():
        async with working(timer, ignore, options(concurrency=300)) as runner:
            await trio.sleep(10)
            assert runner.counters.taken == MAX_IN_FLIGHT
            timer.refused = ""
            await trio.sleep(10)
    assert not timer.entries


async def test_a_report_that_can_never_be_made_is_given_up(autojump_clock: MockClock) -> None:
    timer = a_timer(3, refused="retry")
    timer.refusal = TimerError("no such delay")

    async def fail(due: Due) -> None:
        if due.id == "e0" and due.attempt == 1:
            raise ValueError("no")

    async with working(timer, fail) as runner:
        await trio.sleep(5)
    assert sorted(timer.reported) == [("done", "e1"), ("done", "e2")]
    assert runner.counters.unsaid == 1


async def test_a_drain_ends_in_time_during_an_outage(autojump_clock: MockClock) -> None:
    timer = a_timer()

    async def note(_due: Due) -> None:
        timer.fail = StoreUnavailable("gone")

    async with working(timer, note) as runner:
        await trio.sleep(3)
        stopped_at = trio.current_time()
    assert trio.current_time() - stopped_at < 1.5
    assert runner.counters.unsaid == 1


async def test_an_event_claimed_longer_ago_than_its_lease_is_not_handled(autojump_clock: MockClock) -> None:
    timer = a_timer()

    def stop_and_resume() -> None:  # the process; by then another worker has the event
        if timer.entries:
            autojump_clock.jump(LEASE_S + 1)
            timer.entries.clear()

    timer.before_answer = stop_and_resume
    async with working(timer, ignore) as runner:
        await trio.sleep(1)
    assert (runner.counters.taken, runner.counters.lapsed, runner.counters.handled) == (1, 1, 0)


@pytest.mark.parametrize(
    ("error", "after_s"),
    [(StoreUnavailable("away"), START_TIMEOUT_S), (StoreError("NOPERM"), 0.0), (TimerError("no"), 0.0)],
)
async def test_a_worker_that_cannot_start_gives_up(
    autojump_clock: MockClock, error: Exception, after_s: float
) -> None:
    runner = Runner(FakeTimer(fail=error), handler(ignore), options(), InlineCaller())
    start = trio.current_time()
    await runner.run()
    assert runner.failure is error
    assert after_s <= trio.current_time() - start <= after_s + 2


async def test_a_later_process_waits_for_redis(autojump_clock: MockClock) -> None:
    timer, messages = FakeTimer(fail=StoreUnavailable("away")), list[str]()
    runner = Runner(timer, handler(ignore), options(), InlineCaller())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(runner.run, lambda: messages.append("ready"), is_first=False))
        await trio.sleep(60)
        assert messages == []
        timer.fail = None
        await trio.sleep(3)
        assert messages == ["ready"]
        runner.stop()


async def test_an_event_that_another_worker_got_counts_as_void(autojump_clock: MockClock) -> None:
    timer = a_timer()

    async def lose(due: Due) -> None:
        timer.entries[due.id].attempt += 1

    async with working(timer, lose) as runner:
        await trio.sleep(1)
    assert runner.counters.void == 1
    assert timer.reported == []


async def test_a_plain_handler_runs_in_its_own_thread() -> None:
    timer, threads = a_timer(), list[int]()
    handled = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def plain(_due: Due) -> None:
        threads.append(threading.get_ident())
        token.run_sync_soon(handled.set)

    async with trio.open_nursery() as nursery:
        runner = Runner(timer, handler(plain), options(), InlineCaller())
        nursery.start_soon(runner.run)
        with trio.fail_after(10):
            await handled.wait()
        runner.stop()
    assert threads != [threading.get_ident()]
    assert timer.reported == [("done", "e0")]


async def test_a_plain_handler_without_a_thread_has_not_used_an_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timer, handled = a_timer(attempts_max=100), trio.Event()  # which counts those given back, unlike others
    token = trio.lowlevel.current_trio_token()

    def plain(_due: Due) -> None:
        token.run_sync_soon(handled.set)

    with capture_logs() as logged, trio.fail_after(WAIT_TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            runner = Runner(timer, handler(plain), options(), InlineCaller())
            with monkeypatch.context() as lacking:
                forbid_threads(lacking)
                nursery.start_soon(runner.run)
                await until(lambda: timer.reported.count(("give_back", "e0")) >= 3)
            await handled.wait()
            runner.stop()
    assert {what for what, _ in timer.reported} == {"give_back", "done"}
    assert (runner.counters.failed, runner.counters.dead) == (0, 0)
    assert [line["event"] for line in logged].count("handler lacks a thread") == 1


@pytest.mark.parametrize("is_stuck", [True, False], ids=["timed out", "outlasts the drain"])
async def test_a_plain_handler_that_keeps_running_is_reported_last(is_stuck: bool) -> None:
    timer, go_on, started = a_timer(), threading.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def plain(_due: Due) -> None:
        token.run_sync_soon(started.set)
        go_on.wait()

    given = WorkerOptions(timeout_s=0.05 if is_stuck else 300.0, drain_timeout_s=0.05)
    runner = Runner(timer, handler(plain), given, InlineCaller())
    try:
        with trio.fail_after(10), capture_logs():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(runner.run)
                await started.wait()
                if not is_stuck:
                    runner.stop()
        assert (runner.has_running_threads, runner.is_stuck) == (True, is_stuck)
        assert timer.reported == [], "it is still running"
        runner.report_last(timer)
        assert timer.reported == [("retry" if is_stuck else "give_back", "e0")]
    finally:
        go_on.set()
