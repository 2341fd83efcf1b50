"""A worker on a timer in memory, in time that jumps: what it takes, how it ends, and what it says of it."""

import asyncio
import contextlib
import itertools
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from presence.store.batches import StoreError, StoreUnavailable
from presence.timers.handing import Leasing
from presence.timers.handlers import PutOff, handler
from presence.timers.interface import Due, Event, TimerError
from presence.timers.runner import START_TIMEOUT_S, Runner
from presence.timers.terms import Terms
from tests.timers.fakes import AtOnce, FakeTimer

Handle = Callable[[Due], Awaitable[None]]
LEASE_S = 30.0


def terms(*, concurrency: int = 1, batch: int = 100, timeout_s: float = 300.0, attempts: int = 5) -> Terms:
    leasing = Leasing(LEASE_S, attempts, backoff_s=1.0)
    return Terms(leasing, concurrency, batch, timeout_s, drain_timeout_s=10.0)


@contextlib.asynccontextmanager
async def working(timer: FakeTimer, handle: Handle, given: Terms | None = None) -> AsyncIterator[Runner]:
    """Let a worker work until the block ends, then drain it."""
    runner = Runner(timer, handler(handle), given or terms(), AtOnce())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.run)
        yield runner
        runner.stop()


def events(number: int, delay_s: float = 0.0) -> list[Event]:
    return [Event(f"e{n}", delay_s) for n in range(number)]


async def ignore(_due: Due) -> None:
    return


async def test_each_event_is_handled_once_and_done(autojump_clock: MockClock) -> None:
    timer, handled = FakeTimer(), list[str]()

    async def note(due: Due) -> None:
        handled.append(due.id)

    timer.schedule_many(events(500))
    async with working(timer, note):
        await trio.sleep(5)
    assert sorted(handled) == sorted(f"e{n}" for n in range(500))
    assert not timer.entries


async def test_nothing_is_begun_before_its_time(autojump_clock: MockClock) -> None:
    timer, begun = FakeTimer(), list[float]()

    async def note(_due: Due) -> None:
        begun.append(trio.current_time())

    start = trio.current_time()
    timer.schedule(Event("e", 3.0))
    async with working(timer, note):
        await trio.sleep(5)
    assert 3.0 <= begun[0] - start <= 3.2


async def test_no_more_run_at_once_than_may(autojump_clock: MockClock) -> None:
    timer, running, most = FakeTimer(), set[str](), list[int]()

    async def slow(due: Due) -> None:
        running.add(due.id)
        most.append(len(running))
        await trio.sleep(1)
        running.remove(due.id)

    timer.schedule_many(events(12))
    async with working(timer, slow, terms(concurrency=4)):
        await trio.sleep(3.5)
    assert max(most) == 4
    assert len(most) == 12


async def test_a_slow_worker_takes_only_what_it_can_begin(autojump_clock: MockClock) -> None:
    timer = FakeTimer()

    async def slow(_due: Due) -> None:
        await trio.sleep(1)

    timer.schedule_many(events(12))
    async with working(timer, slow):
        await trio.sleep(5)
    assert set(timer.asked) == {1}


async def test_a_quick_worker_takes_many_at_once(autojump_clock: MockClock) -> None:
    timer = FakeTimer()
    timer.schedule_many(events(1000))
    async with working(timer, ignore):
        await trio.sleep(5)
    assert max(timer.asked) == 100


async def test_what_failed_is_handled_again_after_a_pause_that_doubles(autojump_clock: MockClock) -> None:
    timer, at = FakeTimer(), list[float]()

    async def fail(_due: Due) -> None:
        at.append(trio.current_time())
        raise ValueError("no")

    timer.schedule(Event("e", 0))
    with capture_logs() as logs:
        async with working(timer, fail, terms(attempts=3)) as runner:
            timer.attempts_max = 3
            await trio.sleep(20)
    first, second = at[1] - at[0], at[2] - at[1]
    assert 0.5 <= first <= 1.2
    assert 1.0 <= second <= 2.2
    assert timer.dead == ["e"]
    assert [line["log_level"] for line in logs if line.get("id") == "e"] == ["warning", "warning", "error"]
    assert all(isinstance(line["exc_info"], ValueError) for line in logs if line.get("id") == "e")
    assert (runner.figures.failed, runner.figures.dead) == (3, 1)


async def test_what_is_put_off_comes_again_when_it_said_and_is_no_failure(autojump_clock: MockClock) -> None:
    timer, at = FakeTimer(), list[float]()

    async def later(_due: Due) -> None:
        at.append(trio.current_time())
        if len(at) < 3:
            raise PutOff(0.5)

    timer.schedule(Event("e", 0))
    with capture_logs() as logs:
        async with working(timer, later) as runner:
            await trio.sleep(3)
    assert all(0.5 <= after - before <= 0.7 for before, after in itertools.pairwise(at))
    assert (runner.figures.put_off, runner.figures.failed, runner.figures.handled) == (2, 0, 1)
    assert logs == []


async def test_what_is_put_off_for_ever_becomes_a_dead_letter(autojump_clock: MockClock) -> None:
    timer = FakeTimer(attempts_max=3)

    async def never(_due: Due) -> None:
        raise PutOff(0.1)

    timer.schedule(Event("e", 0))
    with capture_logs() as logs:
        async with working(timer, never, terms(attempts=3)):
            await trio.sleep(2)
    assert timer.dead == ["e"]
    assert [line["event"] for line in logs] == ["no attempt is left: a dead letter"]


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError, GeneratorExit])
async def test_a_handler_that_exits_has_failed_and_harms_nobody(
    autojump_clock: MockClock, error: type[BaseException]
) -> None:
    timer, handled = FakeTimer(), list[str]()

    async def leave(due: Due) -> None:
        if due.id == "e0":
            raise error
        handled.append(due.id)

    timer.schedule_many(events(2))
    async with working(timer, leave):
        await trio.sleep(0.4)
    assert handled == ["e1"]
    assert ("retry", "e0") in timer.said


async def test_the_lease_of_a_long_handler_is_extended(autojump_clock: MockClock) -> None:
    timer, begun = FakeTimer(lease_s=LEASE_S), list[int]()

    async def long(due: Due) -> None:
        begun.append(due.attempt)
        await trio.sleep(4 * LEASE_S)

    timer.schedule(Event("e", 0))
    async with working(timer, long, terms(concurrency=2)):
        await trio.sleep(5 * LEASE_S)
    assert begun == [1]
    assert ("done", "e") in timer.said


async def test_a_handler_that_takes_too_long_is_cancelled_and_has_failed(autojump_clock: MockClock) -> None:
    timer, ended = FakeTimer(), list[str]()

    async def endless(_due: Due) -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            ended.append("cancelled")
            raise

    timer.schedule(Event("e", 0))
    async with working(timer, endless, terms(timeout_s=2)) as runner:
        await trio.sleep(2.2)
        assert ended == ["cancelled"]
        assert runner.figures.failed == 1
    assert ("retry", "e") in timer.said


async def test_a_drain_lets_finish_what_runs_and_gives_back_the_rest(autojump_clock: MockClock) -> None:
    timer, handled = FakeTimer(), list[str]()

    async def slow(due: Due) -> None:
        await trio.sleep(0 if len(handled) < 8 else 5)
        handled.append(due.id)

    timer.schedule_many(events(30))
    async with working(timer, slow) as runner:
        await trio.sleep(1)
        assert runner.figures.taken > len(handled) + 1, "some wait"
    returned = [name for what, name in timer.said if what == "give_back"]
    assert len(returned) == runner.figures.returned == runner.figures.taken - len(handled)
    assert sorted([*handled, *timer.entries]) == sorted(f"e{n}" for n in range(30))


async def test_what_outlasts_the_drain_is_given_back(autojump_clock: MockClock) -> None:
    timer = FakeTimer()

    async def endless(_due: Due) -> None:
        await trio.sleep_forever()

    timer.schedule(Event("e", 0))
    start = trio.current_time()
    async with working(timer, endless) as runner:
        await trio.sleep(1)
    assert 10.5 <= trio.current_time() - start <= 12.5
    assert timer.said[-1] == ("give_back", "e")
    assert runner.figures.cut_off == 1


async def test_an_outage_is_told_once_and_what_was_handled_in_it_is_done_after_it(
    autojump_clock: MockClock,
) -> None:
    timer, handled = FakeTimer(), list[str]()

    async def note(due: Due) -> None:
        timer.fail = StoreUnavailable("gone")
        handled.append(due.id)

    timer.schedule(Event("e", 0))
    with capture_logs() as logs:
        async with working(timer, note):
            await trio.sleep(10)
            assert ("done", "e") not in timer.said
            timer.fail = None
            await trio.sleep(3)
    assert timer.said == [("done", "e")]
    assert handled == ["e"]
    told = [line["event"] for line in logs if line["event"].startswith("Redis")]
    assert told == ["Redis is away, trying again", "Redis is back"]


async def test_an_end_that_redis_refuses_holds_up_no_other(autojump_clock: MockClock) -> None:
    timer = FakeTimer(refused="retry")

    async def fail_first(due: Due) -> None:
        if due.id == "e0":
            raise ValueError("no")

    timer.schedule_many(events(20))
    with capture_logs() as logs:
        async with working(timer, fail_first):
            await trio.sleep(10)
            assert len(timer.said) == 19
            timer.refused = ""
            await trio.sleep(3)
    assert ("retry", "e0") in timer.said
    told = [line["event"] for line in logs if line["event"].startswith("Redis")]
    assert told == ["Redis refused, trying again", "Redis is back"]


async def test_what_can_never_be_said_is_given_up(autojump_clock: MockClock) -> None:
    timer = FakeTimer(refused="retry", refusal=TimerError("no such delay"))

    async def fail(due: Due) -> None:
        if due.id == "e0" and due.attempt == 1:
            raise ValueError("no")

    timer.schedule_many(events(3))
    async with working(timer, fail) as runner:
        await trio.sleep(5)
    assert sorted(timer.said) == [("done", "e1"), ("done", "e2")]
    assert runner.figures.unsaid == 1


@pytest.mark.parametrize("delay_s", [1e9, -1.0, math.inf, math.nan])
async def test_to_put_off_for_no_sensible_time_is_a_failure(
    autojump_clock: MockClock, delay_s: float
) -> None:
    timer = FakeTimer()

    async def later(_due: Due) -> None:
        raise PutOff(delay_s)

    timer.schedule(Event("e", 0))
    async with working(timer, later) as runner:
        await trio.sleep(0.4)
    assert (runner.figures.failed, timer.said) == (1, [("retry", "e")])


async def test_a_drain_ends_in_time_though_redis_is_away(autojump_clock: MockClock) -> None:
    timer = FakeTimer()

    async def note(_due: Due) -> None:
        timer.fail = StoreUnavailable("gone")

    timer.schedule(Event("e", 0))
    async with working(timer, note) as runner:
        await trio.sleep(3)
        stopped_at = trio.current_time()
    assert trio.current_time() - stopped_at < 1.5
    assert runner.figures.unsaid == 1


async def test_what_waited_for_longer_than_its_lease_is_not_begun(autojump_clock: MockClock) -> None:
    timer, begun = FakeTimer(), list[str]()

    async def note(due: Due) -> None:
        begun.append(due.id)
        if len(begun) == 40:  # the process is stopped, and goes on when all it holds is another's
            autojump_clock.jump(LEASE_S + 1)
            timer.entries.clear()

    timer.schedule_many(events(100))
    async with working(timer, note) as runner:
        await trio.sleep(5)
    assert len(begun) == 40
    assert runner.figures.lapsed == runner.figures.taken - 40 > 0


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
    timer = FakeTimer()

    async def lose(due: Due) -> None:
        timer.entries[due.id].attempt += 1

    timer.schedule(Event("e", 0))
    async with working(timer, lose) as runner:
        await trio.sleep(1)
    assert runner.figures.void == 1
    assert timer.said == []


async def test_a_plain_handler_runs_in_a_thread_of_its_own() -> None:
    timer, threads = FakeTimer(), list[int]()
    timer.schedule(Event("e", 0))
    handled = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def plain(_due: Due) -> None:
        threads.append(threading.get_ident())
        token.run_sync_soon(handled.set)

    runner = Runner(timer, handler(plain), terms(), AtOnce())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.run)
        with trio.fail_after(10):
            await handled.wait()
        runner.stop()
    assert threads != [threading.get_ident()]
    assert timer.said == [("done", "e")]


async def test_a_stuck_plain_handler_ends_its_worker_and_failed() -> None:
    timer, go_on = FakeTimer(), threading.Event()
    timer.schedule(Event("e", 0))
    runner = Runner(timer, handler(lambda _due: go_on.wait()), terms(timeout_s=0.05), AtOnce())
    try:
        with trio.fail_after(10), capture_logs():
            await runner.run()
        assert runner.is_stuck
        assert timer.said == [], "it goes on"
        runner.say_last(timer)
        assert timer.said == [("retry", "e")]
    finally:
        go_on.set()


async def test_a_plain_handler_that_outlasts_the_drain_is_given_back_as_the_last_thing() -> None:
    timer, go_on, begun = FakeTimer(), threading.Event(), trio.Event()
    timer.schedule(Event("e", 0))
    token = trio.lowlevel.current_trio_token()

    def endless(_due: Due) -> None:
        token.run_sync_soon(begun.set)
        go_on.wait()

    runner = Runner(timer, handler(endless), Terms(drain_timeout_s=0.05), AtOnce())
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runner.run)
            with trio.fail_after(10):
                await begun.wait()
            runner.stop()
        assert timer.said == [], "it goes on"
        assert runner.goes_on
        runner.say_last(timer)
        assert timer.said == [("give_back", "e")]
    finally:
        go_on.set()
