"""Slots and the stall policy, without a loop; then the ticker itself under a clock that jumps."""

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st
from trio.testing import MockClock

from presence.clock import Clock
from presence.histograms import Histogram
from presence.ticker import Ticker
from presence.ticks import StallGuard, Ticks


@given(origin=st.floats(0, 1e6), slot_s=st.floats(0.001, 5), after_s=st.floats(0, 4e7))
@example(origin=0.0, slot_s=0.01, after_s=0.07)  # 0.07 / 0.01 is more than 7
@example(origin=0.0, slot_s=0.01, after_s=0.29)  # 0.29 / 0.01 is less than 29
def test_a_slot_is_the_first_at_or_after_a_deadline_and_the_last_begun(
    origin: float, slot_s: float, after_s: float
) -> None:
    ticks, at = Ticks(slot_s, origin), origin + after_s
    due, begun = ticks.at_or_after(at), ticks.begun(at)
    assert ticks.starts(due - 1) < at <= ticks.starts(due)
    assert ticks.starts(begun) <= at < ticks.starts(begun + 1)
    assert ticks.begun(ticks.starts(due)) == due


def test_a_credit_puts_off_what_is_set_and_not_what_comes() -> None:
    ticks = Ticks(0.5, 0.0)
    before = ticks.at_or_after(10.0)
    ticks.credit(4.0)
    assert ticks.starts(before) == 14.0
    assert ticks.starts(ticks.at_or_after(20.0)) == 20.0


def test_a_stall_is_credited_whoever_notices_it_first() -> None:
    guard = StallGuard(tick_s=1.0, idle_timeout=30.0, last=0.0)
    guard.alive(1.0)
    guard.alive(8.0)  # a transport ran before the ticker did
    guard.alive(8.01)
    assert guard.take_credit(8.02) == 7.0
    assert guard.take_credit(8.03) == 0.0


def test_at_most_t_is_credited_and_once_per_t() -> None:
    guard = StallGuard(tick_s=1.0, idle_timeout=30.0, last=0.0)
    guard.alive(100.0)
    assert guard.take_credit(100.0) == 30.0
    guard.alive(110.0)
    assert guard.take_credit(110.0) == 0.0
    for second in range(111, 130):
        guard.alive(float(second))
    guard.alive(140.0)
    assert guard.take_credit(140.0) == 11.0
    assert guard.credited_s == 41.0


class Recorder:
    """Counts what a ticker asks for; pretends that some slices are due."""

    awaits_readers = False

    def __init__(self, slices: int = 0) -> None:
        self.slices = slices
        self.asked: list[int] = []
        self.finished: list[float] = []

    def take_due(self, tick: int) -> bool:
        self.asked.append(tick)
        self.slices -= 1
        return self.slices >= 0

    def end_silent(self, now: float) -> int:
        return 3

    def ticked(self, now: float) -> None:
        self.finished.append(now)


def ticker_of(recorder: Recorder) -> tuple[Ticker, Clock]:
    clock = Clock(trio.current_time, lambda: 0.0)
    now = clock.now()
    return Ticker(recorder, Ticks(0.5, now), StallGuard(1.0, 30.0, now), clock), clock


async def test_ticks_stand_on_absolute_deadlines(autojump_clock: MockClock) -> None:
    recorder = Recorder()
    ticker, clock = ticker_of(recorder)
    start = clock.now()
    with trio.move_on_after(10.2):
        await ticker.run()
    assert [round(at - start, 6) for at in recorder.finished] == [0.5 * n for n in range(1, 21)]
    assert ticker.statistics().overrun_max_s < 1e-6


async def test_each_tick_is_counted_with_what_it_was_late(autojump_clock: MockClock) -> None:
    recorder, clock, lags = Recorder(), Clock(trio.current_time, lambda: 0.0), Histogram((0.1, 1.0))
    now = clock.now()
    ticker = Ticker(recorder, Ticks(0.5, now), StallGuard(1.0, 30.0, now), clock, lags=lags)
    with trio.move_on_after(2.2):
        await ticker.run()
    assert lags.report() == {"bounds": [0.1, 1.0], "counts": [4, 0, 0], "sum": pytest.approx(0.0, abs=1e-6)}


async def test_a_credit_does_not_put_the_ticker_to_sleep(autojump_clock: MockClock) -> None:
    recorder, clock = Recorder(), Clock(trio.current_time, lambda: 0.0)
    now = clock.now()
    guard = StallGuard(1.0, 30.0, now)
    guard.alive(now + 20.0)
    guard.last = now
    ticker = Ticker(recorder, Ticks(0.5, now), guard, clock)
    with trio.move_on_after(10.2):
        await ticker.run()
    assert guard.credited_s == 20.0
    assert len(recorder.finished) == 20
    assert clock.now() - guard.last < 0.5


async def test_the_time_before_the_first_tick_is_no_stall(autojump_clock: MockClock) -> None:
    ticker, _ = ticker_of(Recorder())
    await trio.sleep(20)
    with trio.move_on_after(5.2):
        await ticker.run()
    assert ticker.statistics().stall_credit_s == 0.0
