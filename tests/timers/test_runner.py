"""A worker on a timer in memory, in time that jumps: what it takes, how it ends, and what it says of it."""

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
    """A `LeasedTimer` of one test: what it hands out, and what it was told.

    Attributes:
        fail: what every call comes to while it is set.
        part: how many events a claim hands out at most.
        refused, refusal: a kind of call that is refused, and how.
        said: each call that changed something, and of which event.
        asked: how many events each claim asked for.
        before_answer: called by a claim once it has been carried out.
    """

    lease_s: float = 30.0
    attempts_max: int = 5
    fail: Exception | None = None
    part: int = 1000
    refused: str = ""
    refusal: Exception = field(default_factory=lambda: StoreError("NOPERM"))
    said: list[tuple[str, str]] = field(default_factory=list)
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
        self.said += [(what, due.id) for due, _ in ours]
        return ours

    def _check(self, what: str) -> None:
        if self.fail is not None:
            raise self.fail
        if self.refused == what:
            raise self.refusal


class AtOnce:
    """Makes calls where it is, so that time may jump while they are made."""

    async def call(self, blocking: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return blocking()


def terms(*, concurrency: int = 1, timeout_s: float = 300.0, attempts: int = 5) -> WorkerOptions:
    return WorkerOptions(
        Leasing(LEASE_S, attempts, backoff_s=1.0), concurrency, timeout_s, drain_timeout_s=10.0
    )


@contextlib.asynccontextmanager
async def working(
    timer: FakeTimer, handle: Handle, given: WorkerOptions | None = None
) -> AsyncIterator[Runner]:
    """Let a worker work until the block ends, then drain it."""
    runner = Runner(timer, handler(handle), given or terms(), AtOnce())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.run)
        yield runner
        runner.stop()


def a_timer(number: int = 1, delay_s: float = 0.0, *, attempts_max: int = 5, refused: str = "") -> FakeTimer:
    """A timer with events e0, e1, ..."""
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
    ("handle", "said", "counted"),
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
async def test_the_end_of_a_handler_is_reported_once(
    autojump_clock: MockClock, handle: Handle, said: str, counted: dict[str, int]
) -> None:
    timer, others = a_timer(delay_s=3.0, attempts_max=1), [Event(f"other {n}", 0.0) for n in range(200)]
    timer.schedule(*others)

    async def handle_one(due: Due) -> None:
        if due.id == "e0":
            assert trio.current_time() - start >= 3.0
            await handle(due)

    start = trio.current_time()
    with capture_logs() as logs:
        async with working(timer, handle_one, terms(attempts=1, timeout_s=0.5)) as runner:
            await trio.sleep(5)
    assert sorted(timer.said) == sorted([(said, "e0"), *(("done", each.id) for each in others)])
    counters, expected = runner.counters, {"handled": 0, "failed": 0, "put_off": 0, "dead": 0, **counted}
    expected["handled"] += len(others)
    assert {name: getattr(counters, name) for name in expected} == expected
    assert [line["log_level"] for line in logs] == ["error"] * counted.get("dead", 0)
    assert timer.dead == ["e0"] * counted.get("dead", 0)


async def test_no_more_are_claimed_and_run_at_once_than_may(autojump_clock: MockClock) -> None:
    timer, running, most = a_timer(12), set[str](), list[int]()

    async def slow(due: Due) -> None:
        running.add(due.id)
        most.append(len(running))
        await trio.sleep(1)
        running.remove(due.id)

    async with working(timer, slow, terms(concurrency=4)) as runner:
        await trio.sleep(1.5)
        assert runner.counters.taken == 8
        await trio.sleep(2)
    assert max(most) == 4
    assert len(most) == 12


async def test_a_timer_that_hands_out_a_part_is_asked_for_the_rest_at_once(
    autojump_clock: MockClock,
) -> None:
    timer = a_timer(100)
    timer.part = 2
    async with working(timer, ignore, terms(concurrency=10)):
        await trio.sleep(0.5)
    assert not timer.entries


@pytest.mark.parametrize(
    ("error", "pauses_s", "logged"),
    [
        (
            ValueError("no"),
            [(0.5, 1.1), (1.0, 2.1)],
            ["warning", "warning"],
        ),  # it doubles, half of it is random
        (RetryLater(0.7), [(0.7, 0.8), (0.7, 0.8)], []),
    ],
)
async def test_what_was_not_handled_comes_again_after_a_pause(
    autojump_clock: MockClock, error: Exception, pauses_s: list[tuple[float, float]], logged: list[str]
) -> None:
    timer, at = a_timer(), list[float]()

    async def succeed_at_last(_due: Due) -> None:
        at.append(trio.current_time())
        if len(at) < 3:
            raise error

    with capture_logs() as logs:
        async with working(timer, succeed_at_last):
            await trio.sleep(20)
    assert all(
        least_s <= after - before <= most_s
        for (before, after), (least_s, most_s) in zip(itertools.pairwise(at), pauses_s, strict=True)
    )
    assert timer.said[-1] == ("done", "e0")
    assert [line["log_level"] for line in logs] == logged
    assert all(line["exc_info"] is error for line in logs)


async def test_the_lease_of_a_long_handler_is_extended(autojump_clock: MockClock) -> None:
    timer, begun = a_timer(), list[int]()

    async def long(due: Due) -> None:
        begun.append(due.attempt)
        await trio.sleep(4 * LEASE_S)

    async with working(timer, long, terms(concurrency=2)):
        await trio.sleep(5 * LEASE_S)
    assert begun == [1]
    assert timer.said[-1] == ("done", "e0")


async def test_a_drain_lets_finish_what_runs_and_claims_no_more(autojump_clock: MockClock) -> None:
    timer = a_timer(30)

    async def slow(_due: Due) -> None:
        await trio.sleep(5)

    async with working(timer, slow, terms(concurrency=3)):
        await trio.sleep(1)
    assert sorted(timer.said) == [("done", name) for name in ("e0", "e1", "e10")]


async def test_what_is_handed_out_while_a_drain_begins_is_given_back(autojump_clock: MockClock) -> None:
    timer = a_timer(2)
    async with working(timer, ignore, terms(concurrency=2)) as runner:
        timer.before_answer = runner.stop
        await trio.sleep(1)
    assert timer.said == [("give_back", "e0"), ("give_back", "e1")]
    assert (runner.counters.handled, runner.counters.returned) == (0, 2)


async def test_what_outlasts_the_drain_is_given_back(autojump_clock: MockClock) -> None:
    timer = a_timer()
    start = trio.current_time()
    async with working(timer, endless) as runner:
        await trio.sleep(1)
    assert 10.5 <= trio.current_time() - start <= 12.5
    assert timer.said[-1] == ("give_back", "e0")
    assert runner.counters.returned == 1


async def test_an_outage_is_told_once_and_what_was_handled_in_it_is_done_after_it(
    autojump_clock: MockClock,
) -> None:
    timer = a_timer()

    async def note(_due: Due) -> None:
        timer.fail = StoreUnavailable("gone")

    with capture_logs() as logs:
        async with working(timer, note) as runner:
            await trio.sleep(10)
            assert timer.said == []
            timer.fail = None
            await trio.sleep(3)
    assert timer.said == [("done", "e0")]
    assert runner.counters.taken == 1
    assert [line["event"] for line in logs] == ["Redis unreachable, retrying", "Redis reachable again"]


@pytest.mark.parametrize(("refused", "said"), [("retry", ("done", "e1")), ("done", ("retry", "e0"))])
async def test_an_end_that_redis_refuses_holds_up_no_other(
    autojump_clock: MockClock, refused: str, said: tuple[str, str]
) -> None:
    timer = a_timer(2, refused=refused)

    async def fail_first(due: Due) -> None:
        if due.id == "e0" and due.attempt == 1:
            raise ValueError("no")

    with capture_logs() as logs:
        async with working(timer, fail_first, terms(concurrency=2)):
            await trio.sleep(10)
            assert timer.said == [said]
            timer.refused = ""
            await trio.sleep(5)
    assert not timer.entries
    told = [line["event"] for line in logs if line["event"].startswith("Redis")]
    assert told == ["Redis refused, retrying", "Redis reachable again"]


async def test_a_worker_whose_reports_are_refused_holds_a_bounded_number(autojump_clock: MockClock) -> None:
    timer = a_timer(3000, refused="done")
    with capture_logs():
        async with working(timer, ignore, terms(concurrency=300)) as runner:
            await trio.sleep(10)
            assert runner.counters.taken == MAX_IN_FLIGHT
            timer.refused = ""
            await trio.sleep(10)
    assert not timer.entries


async def test_what_can_never_be_said_is_given_up(autojump_clock: MockClock) -> None:
    timer = a_timer(3, refused="retry")
    timer.refusal = TimerError("no such delay")

    async def fail(due: Due) -> None:
        if due.id == "e0" and due.attempt == 1:
            raise ValueError("no")

    async with working(timer, fail) as runner:
        await trio.sleep(5)
    assert sorted(timer.said) == [("done", "e1"), ("done", "e2")]
    assert runner.counters.unsaid == 1


async def test_a_drain_ends_in_time_though_redis_is_away(autojump_clock: MockClock) -> None:
    timer = a_timer()

    async def note(_due: Due) -> None:
        timer.fail = StoreUnavailable("gone")

    async with working(timer, note) as runner:
        await trio.sleep(3)
        stopped_at = trio.current_time()
    assert trio.current_time() - stopped_at < 1.5
    assert runner.counters.unsaid == 1


async def test_what_was_claimed_longer_ago_than_its_lease_is_not_begun(autojump_clock: MockClock) -> None:
    timer = a_timer()

    def stop_and_go_on() -> None:  # the process; by then its event is another's
        if timer.entries:
            autojump_clock.jump(LEASE_S + 1)
            timer.entries.clear()

    timer.before_answer = stop_and_go_on
    async with working(timer, ignore) as runner:
        await trio.sleep(1)
    assert (runner.counters.taken, runner.counters.lapsed, runner.counters.handled) == (1, 1, 0)


@pytest.mark.parametrize(
    ("error", "after_s"),
    [(StoreUnavailable("away"), START_TIMEOUT_S), (StoreError("NOPERM"), 0.0), (TimerError("no"), 0.0)],
)
async def test_what_cannot_begin_gives_up(
    autojump_clock: MockClock, error: Exception, after_s: float
) -> None:
    runner = Runner(FakeTimer(fail=error), handler(ignore), terms(), AtOnce())
    start = trio.current_time()
    await runner.run()
    assert runner.failure is error
    assert after_s <= trio.current_time() - start <= after_s + 2


async def test_a_later_process_waits_for_redis(autojump_clock: MockClock) -> None:
    timer, told = FakeTimer(fail=StoreUnavailable("away")), list[str]()
    runner = Runner(timer, handler(ignore), terms(), AtOnce())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(runner.run, lambda: told.append("ready"), is_first=False))
        await trio.sleep(60)
        assert told == []
        timer.fail = None
        await trio.sleep(3)
        assert told == ["ready"]
        runner.stop()


async def test_what_went_to_another_is_counted_as_void(autojump_clock: MockClock) -> None:
    timer = a_timer()

    async def lose(due: Due) -> None:
        timer.entries[due.id].attempt += 1

    async with working(timer, lose) as runner:
        await trio.sleep(1)
    assert runner.counters.void == 1
    assert timer.said == []


async def test_a_plain_handler_runs_in_a_thread_of_its_own() -> None:
    timer, threads = a_timer(), list[int]()
    handled = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def plain(_due: Due) -> None:
        threads.append(threading.get_ident())
        token.run_sync_soon(handled.set)

    async with trio.open_nursery() as nursery:
        runner = Runner(timer, handler(plain), terms(), AtOnce())
        nursery.start_soon(runner.run)
        with trio.fail_after(10):
            await handled.wait()
        runner.stop()
    assert threads != [threading.get_ident()]
    assert timer.said == [("done", "e0")]


@pytest.mark.parametrize("is_stuck", [True, False], ids=["timed out", "outlasts the drain"])
async def test_a_plain_handler_that_goes_on_is_reported_as_the_last_thing(is_stuck: bool) -> None:
    timer, go_on, begun = a_timer(), threading.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def plain(_due: Due) -> None:
        token.run_sync_soon(begun.set)
        go_on.wait()

    given = WorkerOptions(timeout_s=0.05 if is_stuck else 300.0, drain_timeout_s=0.05)
    runner = Runner(timer, handler(plain), given, AtOnce())
    try:
        with trio.fail_after(10), capture_logs():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(runner.run)
                await begun.wait()
                if not is_stuck:
                    runner.stop()
        assert (runner.has_running_threads, runner.is_stuck) == (True, is_stuck)
        assert timer.said == [], "it goes on"
        runner.report_last(timer)
        assert timer.said == [("retry" if is_stuck else "give_back", "e0")]
    finally:
        go_on.set()
