"""The timer service under a clock that jumps: what it promises, one test a promise."""

import gc
import weakref
from collections.abc import Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from presence.timers.interface import DELAY_S_MAX, TimerError, TimerFull
from presence.timers.service import SLICE_S, TICK_S, open_timer_service


class Calls:
    """Notes who was called when."""

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
    """Return a callback that takes so long, by the mock clock."""
    return partial(clock.jump, seconds)


@pytest.mark.parametrize(
    ("delay_s", "at_s"),
    [
        (0.0, 0.01),
        (0.001, 0.01),
        (0.01, 0.01),
        (0.0101, 0.02),
        (0.07, 0.07),
        (0.29, 0.29),
        (3600.005, 3600.01),
    ],
)
async def test_it_fires_at_the_first_tick_at_or_after_its_deadline(
    autojump_clock: MockClock, calls: Calls, delay_s: float, at_s: float
) -> None:
    async with open_timer_service() as timers:
        timers.schedule(delay_s, calls)
        await trio.sleep(delay_s + 1)
    assert calls.at == [("", at_s)]


async def test_now_between_two_ticks_is_no_reason_to_be_early(
    autojump_clock: MockClock, calls: Calls
) -> None:
    async with open_timer_service() as timers:
        await trio.sleep(0.0075)
        timers.schedule(0.01, calls)  # a truncated delay would make it the tick at 0.01
        await trio.sleep(1)
    assert calls.at == [("", 0.02)]


async def test_any_delay_comes_in_its_time(autojump_clock: MockClock, calls: Calls) -> None:
    delays_s = [0.02, 2.55, 2.56, 2.57, 655.35, 655.36, 655.37, 167_772.16, 9_000_000.0, DELAY_S_MAX]
    async with open_timer_service() as timers:
        for delay_s in reversed(delays_s):
            timers.schedule(delay_s, calls, delay_s)
        await trio.sleep(DELAY_S_MAX + 1)
    assert calls.names == delays_s
    assert all(
        0 <= at_s - delay_s < TICK_S + 1e-6 for delay_s, at_s in calls.at if isinstance(delay_s, float)
    )


async def test_nothing_wakes_while_nothing_is_near(autojump_clock: MockClock, calls: Calls) -> None:
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


async def test_those_of_one_tick_fire_in_the_order_of_scheduling(
    autojump_clock: MockClock, calls: Calls
) -> None:
    async with open_timer_service() as timers:
        timers.schedule(10.0, calls, "from afar")
        await trio.sleep(9)
        timers.schedule(1.0, calls, "later")
        timers.schedule_many([(0.999, calls, "and later"), (1.0, calls, "last")])
        await trio.sleep(2)
    assert calls.names == ["from afar", "later", "and later", "last"]


async def test_what_is_cancelled_does_not_fire(autojump_clock: MockClock, calls: Calls) -> None:
    async with open_timer_service() as timers:
        first, second = timers.schedule(1.0, calls, 1), timers.schedule(1.0, calls, 2)
        assert timers.cancel(first)
        assert not timers.cancel(first)
        await trio.sleep(2)
        assert not timers.cancel(second)
        assert (timers.statistics().fired, timers.statistics().cancelled) == (1, 1)
    assert calls.names == [2]


async def test_equal_callbacks_are_timers_of_their_own(autojump_clock: MockClock, calls: Calls) -> None:
    async with open_timer_service() as timers:
        handles = [timers.schedule(delay_s, calls, "same") for delay_s in (1.0, 2.0, 3.0)]
        timers.cancel(handles[1])
        await trio.sleep(4)
    assert calls.at == [("same", 1.0), ("same", 3.0)]


async def test_a_callback_cancels_another_of_its_tick(autojump_clock: MockClock, calls: Calls) -> None:
    async with open_timer_service() as timers:
        timers.schedule(1.0, lambda: told.append(timers.cancel(victim)))
        victim = timers.schedule(1.0, calls)
        told: list[bool] = []
        await trio.sleep(2)
        assert timers.statistics().pending == 0
    assert told == [True]
    assert calls.names == []


async def test_a_callback_puts_off_another_of_its_tick(autojump_clock: MockClock, calls: Calls) -> None:
    async with open_timer_service() as timers:
        timers.schedule(1.0, lambda: timers.reschedule(later, 0.5))
        later = timers.schedule(1.0, calls)
        await trio.sleep(2)
        assert timers.statistics().fired == 2
    assert calls.at == [("", 1.5)]


async def test_a_callback_cannot_cancel_itself(autojump_clock: MockClock, calls: Calls) -> None:
    async with open_timer_service() as timers:
        own = timers.schedule(1.0, lambda: calls((timers.cancel(own), timers.reschedule(own, 1.0))))
        await trio.sleep(3)
    assert calls.at == [((False, False), 1.0)]


async def test_rescheduling_counts_from_now(autojump_clock: MockClock, calls: Calls) -> None:
    async with open_timer_service() as timers:
        handle = timers.schedule(1.0, calls)
        for _ in range(50):
            await trio.sleep(0.9)
            assert timers.reschedule(handle, 1.0)
        await trio.sleep(5)
        assert not timers.reschedule(handle, 1.0)
    assert calls.at == [("", 46.0)]


async def test_a_chain_without_delay_leaves_the_loop_to_others(
    autojump_clock: MockClock, calls: Calls
) -> None:
    async with open_timer_service() as timers:

        def again() -> None:
            calls()
            timers.schedule(0.0, again)

        again()
        await trio.sleep(0.105)
    assert len(calls.at) == 11, "one a tick"


async def test_a_chain_of_timers_does_not_drift(calls: Calls, autojump_clock: MockClock) -> None:
    async with open_timer_service() as timers:

        def at_tick(number: int) -> None:
            calls(number)
            autojump_clock.jump(0.003)  # the work
            timers.schedule(calls.began + (number + 1) * 0.01 - trio.current_time(), at_tick, number + 1)

        timers.schedule(0.01, at_tick, 1)
        await trio.sleep(10)
    assert calls.at == [(n, round(n * 0.01, 9)) for n in range(1, len(calls.at) + 1)]
    assert len(calls.at) >= 999


async def test_a_stalled_loop_catches_up_in_order_and_skips_nothing(
    calls: Calls, autojump_clock: MockClock
) -> None:
    async with open_timer_service() as timers:
        for n in range(1, 301):
            timers.schedule(n * 0.01, calls, n)
        await trio.sleep(0.105)
        autojump_clock.jump(60.0)
        await trio.sleep(0.1)
        assert timers.statistics().late_max_s == pytest.approx(60, abs=0.1)
    assert calls.names == list(range(1, 301))


async def test_a_long_slice_is_cut_for_the_others(calls: Calls, autojump_clock: MockClock) -> None:
    turns = 0
    async with open_timer_service() as timers, trio.open_nursery() as nursery:

        async def other() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 0 < timers.statistics().fired < 1000

        for _ in range(1000):
            timers.schedule(1.0, burn(autojump_clock, SLICE_S / 10))
        await trio.sleep(1.0)
        nursery.start_soon(other)
        while timers.statistics().fired < 1000:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
        assert timers.statistics().slice_max_s < 2 * SLICE_S
    assert turns >= 50


async def test_others_run_while_many_short_ticks_are_caught_up(
    autojump_clock: MockClock, calls: Calls
) -> None:
    turns = 0
    async with open_timer_service() as timers, trio.open_nursery() as nursery:

        async def other() -> None:
            nonlocal turns
            while timers.statistics().fired < 100:
                await trio.lowlevel.checkpoint()
                turns += 1

        timers.schedule_many((n * 0.01, burn(autojump_clock, SLICE_S / 2)) for n in range(1, 101))
        autojump_clock.jump(10.0)
        nursery.start_soon(other)
    assert turns >= 30


async def test_a_timer_cancelled_between_two_slices_of_its_tick_does_not_fire(
    calls: Calls, autojump_clock: MockClock
) -> None:
    async with open_timer_service() as timers:
        for _ in range(20):
            timers.schedule(1.0, burn(autojump_clock, SLICE_S))
        last = timers.schedule(1.0, calls)
        await trio.sleep(1.0)
        while timers.statistics().fired == 0:
            await trio.lowlevel.checkpoint()
        assert timers.cancel(last)
        await trio.sleep(1)
        assert timers.statistics().pending == 0
    assert calls.names == []


async def test_an_error_reaches_the_handler_and_nobody_else(autojump_clock: MockClock, calls: Calls) -> None:
    told: list[tuple[str, object]] = []

    def fail() -> None:
        raise ValueError("a callback's own")

    async with open_timer_service(on_error=lambda error, fn: told.append((str(error), fn))) as timers:
        timers.schedule_many([(1.0, calls, 1), (1.0, fail), (1.0, calls, 2), (2.0, calls, 3)])
        await trio.sleep(3)
        assert timers.statistics().errors == 1
    assert calls.names == [1, 2, 3]
    assert told == [("a callback's own", fail)]


async def test_a_handler_that_fails_harms_nobody(
    autojump_clock: MockClock, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("again")

    async with open_timer_service(on_error=fail) as timers:
        timers.schedule_many([(1.0, fail), (1.0, calls)])
        await trio.sleep(2)
        assert timers.statistics().handler_errors == 1
    assert calls.names == [""]
    assert "the handler of timer errors failed" in capsys.readouterr().out


async def test_without_a_handler_an_error_is_logged(
    autojump_clock: MockClock, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ValueError("look here")

    async with open_timer_service() as timers:
        timers.schedule(1.0, fail)
        await trio.sleep(2)
    logged = capsys.readouterr().out
    assert "timer callback failed" in logged
    assert "look here" in logged


async def test_an_interrupt_is_nobodys_to_swallow(autojump_clock: MockClock, calls: Calls) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.RaisesGroup(KeyboardInterrupt):
        async with open_timer_service() as timers:
            timers.schedule(1.0, interrupt)
            await trio.sleep(5)
    assert trio.current_time() - calls.began == pytest.approx(1.0)


async def test_no_more_timers_than_it_may_hold(autojump_clock: MockClock, calls: Calls) -> None:
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


async def test_at_the_limit_a_callback_may_still_come_again(autojump_clock: MockClock, calls: Calls) -> None:
    async with open_timer_service(pending_max=1) as timers:

        def again() -> None:
            calls()
            timers.schedule(1.0, again)

        timers.schedule(1.0, again)
        await trio.sleep(3.5)
        assert timers.statistics().errors == 0
    assert len(calls.at) == 3


@pytest.mark.parametrize("delay_s", [-0.001, float("nan"), float("inf"), DELAY_S_MAX * 1.001])
async def test_a_delay_out_of_bounds_is_refused(
    autojump_clock: MockClock, calls: Calls, delay_s: float
) -> None:
    async with open_timer_service() as timers:
        handle = timers.schedule(1.0, calls)
        for refused in (
            partial(timers.schedule, delay_s, calls),
            partial(timers.schedule_many, [(1.0, calls), (delay_s, calls)]),
            partial(timers.reschedule, handle, delay_s),
        ):
            with pytest.raises(TimerError, match="a delay of"):
                refused()
        assert timers.statistics().pending == 1


async def test_after_the_block_nothing_fires_and_nothing_is_taken(
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


async def test_a_cancelled_timer_keeps_nothing_alive(autojump_clock: MockClock) -> None:
    class Owner:
        def fire(self, other: object) -> None: ...

    async with open_timer_service() as timers:
        owner, argument = Owner(), Owner()
        handle = timers.schedule(1000.0, owner.fire, argument)
        gone = weakref.ref(owner), weakref.ref(argument)
        timers.cancel(handle)
        del owner, argument
        assert [ref() for ref in gone] == [None, None]


async def test_a_fired_timer_is_in_no_circle(autojump_clock: MockClock) -> None:
    async with open_timer_service() as timers:
        timers.schedule_many((n / 100, int) for n in range(1000))
        timers.cancel(timers.schedule(5.0, int))
        gc.collect()
        await trio.sleep(11)
        assert gc.collect() < 500
