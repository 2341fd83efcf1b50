"""The timer service with a clock that jumps: one test for each guarantee."""

import math
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from presence.timers.interface import MAX_DELAY_S, TimerError, TimerFull
from presence.timers.service import SLICE_S, open_timer_service

LIMIT_S = 20.0  # a machine under load


class Calls:
    """Records who was called when."""

    def __init__(self, clock: MockClock) -> None:
        self._clock = clock
        self.began = clock.current_time()
        self.at: list[tuple[object, float]] = []

    def __call__(self, name: object = "") -> None:
        self.at.append((name, round(self._clock.current_time() - self.began, 9)))

    @property
    def names(self) -> list[object]:
        return [name for name, _ in self.at]


@pytest.fixture
def calls(autojump_clock: MockClock) -> Calls:
    return Calls(autojump_clock)


def burn(clock: MockClock, seconds: float) -> Callable[[], None]:
    """Return a callback that takes that long, by the mock clock."""
    return partial(clock.jump, seconds)


@pytest.mark.parametrize("begins_s", [0.0, 0.0075])
async def test_a_timer_fires_at_the_first_tick_at_or_after_its_deadline(
    autojump_clock: MockClock, calls: Calls, begins_s: float
) -> None:
    delays_s = [0.0, 0.001, 0.01, 0.0101, 0.07, 0.29, 2.55, 2.56, 2.57, 655.35, 655.36, 655.37, MAX_DELAY_S]
    async with open_timer_service() as timers:
        await trio.sleep(begins_s)
        for delay_s in reversed(delays_s):
            timers.schedule(delay_s, calls, delay_s)
        await trio.sleep(MAX_DELAY_S + 1)
    ticks = [max(1, math.ceil(round((begins_s + delay_s) * 100, 6))) for delay_s in delays_s]
    assert sorted(calls.at) == [(delay_s, tick / 100) for delay_s, tick in zip(delays_s, ticks, strict=True)]
    assert [at_s for _, at_s in calls.at] == sorted(at_s for _, at_s in calls.at)


async def test_the_loop_sleeps_while_no_timer_is_near(autojump_clock: MockClock, calls: Calls) -> None:
    woken = 0

    class Passes(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            nonlocal woken
            woken += 1

    async with open_timer_service() as timers:
        timers.schedule(80_000.0, calls)
        await trio.sleep(1)
        trio.lowlevel.add_instrument(Passes())
        await trio.sleep(80_001)
    assert calls.names == [""]
    assert woken < 20


async def test_timers_of_one_tick_fire_in_the_order_of_scheduling(
    autojump_clock: MockClock, calls: Calls
) -> None:
    async with open_timer_service() as timers:
        timers.schedule(10.0, calls, "far ahead")
        await trio.sleep(9)
        timers.schedule(1.0, calls, "later")
        timers.schedule_many([(0.999, calls, "even later"), (1.0, calls, "last")])
        await trio.sleep(2)
    assert calls.names == ["far ahead", "later", "even later", "last"]


async def test_a_cancelled_timer_does_not_fire(autojump_clock: MockClock, calls: Calls) -> None:
    async with open_timer_service() as timers:
        first, second = timers.schedule(1.0, calls, 1), timers.schedule(1.0, calls, 2)
        assert timers.cancel(first)
        assert not timers.cancel(first)
        await trio.sleep(2)
        assert not timers.cancel(second)
        assert (timers.statistics().fired, timers.statistics().cancelled) == (1, 1)
    assert calls.names == [2]


async def test_a_callback_may_cancel_and_reschedule_others_of_its_tick_but_not_itself(
    autojump_clock: MockClock, calls: Calls
) -> None:
    async with open_timer_service() as timers:

        def first() -> None:
            calls((timers.cancel(victim), timers.reschedule(later, 0.5)))
            calls((timers.cancel(own), timers.reschedule(own, 1.0)))

        own = timers.schedule(1.0, first)
        victim, later = timers.schedule(1.0, calls), timers.schedule(1.0, calls, "later")
        await trio.sleep(3)
        statistics = timers.statistics()
        assert (statistics.fired, statistics.cancelled, statistics.pending) == (2, 1, 0)
    assert calls.at == [((True, True), 1.0), ((False, False), 1.0), ("later", 1.5)]


async def test_rescheduling_counts_from_now(autojump_clock: MockClock, calls: Calls) -> None:
    async with open_timer_service() as timers:
        handle = timers.schedule(1.0, calls)
        for _ in range(50):
            await trio.sleep(0.9)
            assert timers.reschedule(handle, 1.0)
        await trio.sleep(5)
        assert not timers.reschedule(handle, 1.0)
    assert calls.at == [("", 46.0)]


async def test_a_chain_fires_once_a_tick_and_does_not_drift(calls: Calls, autojump_clock: MockClock) -> None:
    async with open_timer_service(pending_max=1) as timers:

        def again() -> None:
            calls()
            autojump_clock.jump(0.003)  # the work
            timers.schedule(0.0, again)

        timers.schedule(0.0, again)
        await trio.sleep(10.005)
        assert timers.statistics().errors == 0, "at the limit a callback may still reschedule"
    assert [at_s for _, at_s in calls.at] == [n / 100 for n in range(1, 1001)]


async def test_after_a_stall_all_timers_fire_in_order(calls: Calls, autojump_clock: MockClock) -> None:
    async with open_timer_service() as timers:
        for n in range(1, 301):
            timers.schedule(n * 0.01, calls, n)
        await trio.sleep(0.105)
        autojump_clock.jump(60.0)
        await trio.sleep(0.1)
        assert timers.statistics().late_max_s == pytest.approx(60, abs=0.1)
    assert calls.names == list(range(1, 301))


@pytest.mark.parametrize("apart_s", [0.0, 0.01], ids=["one tick", "many ticks to catch up"])
async def test_a_long_slice_yields_to_other_tasks(
    calls: Calls, autojump_clock: MockClock, apart_s: float
) -> None:
    turns = 0
    async with open_timer_service() as timers:
        timers.schedule_many((1 + n * apart_s, burn(autojump_clock, SLICE_S / 10)) for n in range(1000))
        autojump_clock.jump(20.0)
        while (fired := timers.statistics().fired) < 1000:
            await trio.lowlevel.checkpoint()
            turns += fired > 0
        assert timers.statistics().slice_max_s < 2 * SLICE_S
    assert turns >= 50


async def test_an_error_reaches_the_error_handler_only(autojump_clock: MockClock, calls: Calls) -> None:
    errors: list[tuple[str, object]] = []

    def fail() -> None:
        raise ValueError("a callback's own")

    async with open_timer_service(on_error=lambda error, fn: errors.append((str(error), fn))) as timers:
        timers.schedule_many([(1.0, calls, 1), (1.0, fail), (1.0, calls, 2), (2.0, calls, 3)])
        await trio.sleep(3)
        assert timers.statistics().errors == 1
    assert calls.names == [1, 2, 3]
    assert errors == [("a callback's own", fail)]


@pytest.mark.parametrize(
    ("settings", "event"),
    [({}, "timer callback failed"), ({"on_error": int}, "timer error handler failed")],
)
async def test_an_error_without_an_error_handler_is_logged(
    autojump_clock: MockClock, calls: Calls, settings: dict[str, Any], event: str
) -> None:
    def fail() -> None:
        raise ValueError("look here")

    with capture_logs() as logs:
        async with open_timer_service(**settings) as timers:
            timers.schedule_many([(1.0, fail), (1.0, calls)])
            await trio.sleep(2)
            assert timers.statistics().handler_errors == len(settings)
    assert calls.names == [""]
    assert [(line["event"], line["log_level"]) for line in logs] == [(event, "error")]


async def test_an_interrupt_is_not_swallowed(autojump_clock: MockClock, calls: Calls) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.RaisesGroup(KeyboardInterrupt):
        async with open_timer_service() as timers:
            timers.schedule(1.0, interrupt)
            await trio.sleep(5)
    assert trio.current_time() - calls.began == pytest.approx(1.0)


async def test_the_number_of_timers_is_limited(autojump_clock: MockClock, calls: Calls) -> None:
    async with open_timer_service(pending_max=3) as timers:
        handles = timers.schedule_many([(1.0, calls), (2.0, calls)])
        with pytest.raises(TimerFull):
            timers.schedule_many([(1.0, calls), (1.0, calls)])
        timers.schedule(1.0, calls)
        with pytest.raises(TimerFull):
            timers.schedule(1.0, calls)
        timers.cancel(handles[0])
        timers.schedule(1.0, calls)
        assert timers.statistics().pending == 3


@pytest.mark.parametrize("delay_s", [-0.001, float("nan"), float("inf"), MAX_DELAY_S * 1.001])
async def test_an_invalid_delay_is_refused(autojump_clock: MockClock, calls: Calls, delay_s: float) -> None:
    async with open_timer_service() as timers:
        handle = timers.schedule(1.0, calls)
        for refused in (
            partial(timers.schedule, delay_s, calls),
            partial(timers.schedule_many, [(1.0, calls), (delay_s, calls)]),
            partial(timers.reschedule, handle, delay_s),
        ):
            with pytest.raises(TimerError, match="delay_s"):
                refused()
        assert timers.statistics().pending == 1


async def test_after_the_block_no_timer_fires_and_none_is_accepted(
    autojump_clock: MockClock, calls: Calls
) -> None:
    async with open_timer_service() as timers:
        handle = timers.schedule(1.0, calls)
    await trio.sleep(5)
    assert calls.names == []
    assert timers.statistics().pending == 1
    for refused in (partial(timers.schedule, 1.0, calls), partial(timers.reschedule, handle, 1.0)):
        with pytest.raises(TimerError, match="closed"):
            refused()


@pytest.mark.parametrize("fires", [True, False])
async def test_a_fired_or_cancelled_timer_keeps_nothing_alive(autojump_clock: MockClock, fires: bool) -> None:
    class Owner:
        def fire(self, other: object) -> None: ...

    async with open_timer_service() as timers:
        owner, argument = Owner(), Owner()
        handle = timers.schedule(1.0, owner.fire, argument)
        gone = weakref.ref(owner), weakref.ref(argument)
        if fires:
            await trio.sleep(2)
        assert timers.cancel(handle) != fires
        del owner, argument
        assert [ref() for ref in gone] == [None, None]


# Async callbacks: tasks of their own, limited, and none is lost


class Work:
    """An async callback that takes a second, and counts how many run concurrently."""

    def __init__(self) -> None:
        self.running = self.most = self.done = 0

    async def __call__(self) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        await trio.sleep(1.0)
        self.running -= 1
        self.done += 1


async def test_async_callbacks_beyond_the_limit_wait_and_none_is_lost(autojump_clock: MockClock) -> None:
    work, fired = Work(), trio.Event()
    async with open_timer_service(async_max=3, pending_max=11) as timers:
        handles = timers.schedule_many((0.01, work) for _ in range(10))
        timers.schedule(0.02, fired.set)
        with trio.fail_after(0.5):
            await fired.wait()  # plain callbacks do not wait for async ones
        statistics = timers.statistics()
        assert (statistics.running, statistics.held, statistics.pending) == (3, 7, 7)
        assert not any(timers.cancel(handle) for handle in handles), "all have started"
        await trio.sleep(10)
        statistics = timers.statistics()
        assert (statistics.running, statistics.held, statistics.pending) == (0, 0, 0)
    assert (work.most, work.done) == (3, 10)


async def test_an_error_of_an_async_callback_affects_no_other(autojump_clock: MockClock) -> None:
    errors: list[str] = []
    work = Work()

    async def fail() -> None:
        await trio.sleep(0.1)
        raise ValueError("late")

    async with open_timer_service(async_max=1, on_error=lambda error, _: errors.append(str(error))) as timers:
        timers.schedule_many([(0.01, fail), (0.01, work)])
        await trio.sleep(3)
        assert timers.statistics().errors == 1
    assert errors == ["late"]
    assert work.done == 1


async def test_a_cancellation_with_an_error_is_passed_on(autojump_clock: MockClock) -> None:
    errors: list[str] = []

    async def fail_at_the_end() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while it ended")

    async with open_timer_service(on_error=lambda error, _: errors.append(repr(error))) as timers:
        timers.schedule(0.01, fail_at_the_end)
        await trio.sleep(1)
    assert len(errors) == 1
    assert "while it ended" in errors[0]


async def test_a_callback_that_ends_after_the_block_starts_no_queued_one(autojump_clock: MockClock) -> None:
    errors: list[Exception] = []
    started: list[str] = []

    async def stubborn() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(1.0)

    async def next_one() -> None:
        started.append("after the end")

    async with open_timer_service(async_max=1, on_error=lambda error, _: errors.append(error)) as timers:
        timers.schedule_many([(0.01, stubborn), (0.01, next_one)])
        await trio.sleep(0.5)
    assert (errors, started, timers.statistics().pending) == ([], [], 1)


async def test_timers_scheduled_by_threads_fire_once_and_never_early() -> None:
    fired: list[tuple[int, float]] = []
    count, all_fired = 100, trio.Event()

    def fire(number: int, asked: float) -> None:
        fired.append((number, time.perf_counter() - asked))
        if len(fired) == count:
            all_fired.set()

    async with open_timer_service() as timers:

        def schedule() -> None:
            for n in range(count):
                asked = time.perf_counter()
                trio.from_thread.run_sync(timers.schedule, 0.02, fire, n, asked)

        with trio.fail_after(LIMIT_S):
            await trio.to_thread.run_sync(schedule)
            await all_fired.wait()
    assert sorted(number for number, _ in fired) == list(range(count))
    assert min(after_s for _, after_s in fired) >= 0.02
