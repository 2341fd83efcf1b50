"""Slots and the stall policy, without a loop; then the ticker itself with a clock that jumps."""

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import MockClock

from presence.common.clock import Clock
from presence.common.histogram import Histogram
from presence.core.sessions import DueSessions
from presence.core.slots import SlotClock
from presence.core.stall_guard import StallGuard
from presence.server.ticker import Ticker


@given(origin=st.floats(0, 1e6), slot_s=st.floats(0.001, 5), after_s=st.floats(0, 4e7))
@example(origin=0.0, slot_s=0.01, after_s=0.07)  # 0.07 / 0.01 is more than 7
@example(origin=0.0, slot_s=0.01, after_s=0.29)  # 0.29 / 0.01 is less than 29
def test_a_slot_is_the_first_at_or_after_a_deadline_and_the_last_begun(
    origin: float, slot_s: float, after_s: float
) -> None:
    slots, at = SlotClock(slot_s, origin), origin + after_s
    due, last_started = slots.at_or_after(at), slots.at_or_before(at)
    assert slots.start_of(due - 1) < at <= slots.start_of(due)
    assert slots.start_of(last_started) <= at < slots.start_of(last_started + 1)
    assert slots.at_or_before(slots.start_of(due)) == due


def test_credit_delays_existing_deadlines_and_not_later_ones() -> None:
    slots = SlotClock(0.5, 0.0)
    before = slots.at_or_after(10.0)
    slots.credit(4.0)
    assert slots.start_of(before) == 14.0
    assert slots.start_of(slots.at_or_after(20.0)) == 20.0


def test_a_stall_is_credited_no_matter_which_part_notices_it_first() -> None:
    guard = StallGuard(tick_s=1.0, idle_timeout=30.0, last=0.0)
    guard.loop_ran(1.0)
    guard.loop_ran(8.0)  # a transport ran before the ticker did
    guard.loop_ran(8.01)
    assert guard.take_credit(8.02) == 7.0
    assert guard.take_credit(8.03) == 0.0


def test_at_most_t_is_credited_and_once_per_t() -> None:
    guard = StallGuard(tick_s=1.0, idle_timeout=30.0, last=0.0)
    guard.loop_ran(100.0)
    assert guard.take_credit(100.0) == 30.0
    guard.loop_ran(110.0)
    assert guard.take_credit(110.0) == 0.0
    for second in range(111, 130):
        guard.loop_ran(float(second))
    guard.loop_ran(140.0)
    assert guard.take_credit(140.0) == 11.0
    assert guard.credited_s == 41.0


class Ticking:
    """A ticker without due sessions, and the times of its slots."""

    def __init__(self) -> None:
        self.done: list[float] = []
        self.lags = Histogram((0.1, 1.0))
        self.guard = StallGuard(1.0, 30.0, trio.current_time())
        clock = Clock(trio.current_time, lambda: 0.0)
        self.ticker = Ticker(
            self, self.done.append, SlotClock(0.5, clock.now()), self.guard, clock, lags=self.lags
        )

    def collect(self, slot: int) -> DueSessions | None:
        return None

    def poll(self, due: DueSessions) -> bool:
        return False

    def handle(self, due: DueSessions) -> int:
        return 0


async def test_ticks_have_absolute_deadlines_and_time_before_the_first_is_no_stall(
    autojump_clock: MockClock,
) -> None:
    ticking = Ticking()
    await trio.sleep(20)
    start = trio.current_time()
    with trio.move_on_after(10.2):
        await ticking.ticker.run()
    assert [round(at - start, 6) for at in ticking.done] == [0.5 * n for n in range(1, 21)]
    assert ticking.lags.report()["counts"] == [20, 0, 0]
    statistics = ticking.ticker.statistics()
    assert (statistics.slots, statistics.stall_credit_s) == (20, 0.0)
    assert statistics.overrun_max_s < 1e-6


async def test_credit_does_not_delay_the_ticker(autojump_clock: MockClock) -> None:
    ticking = Ticking()
    guard, now = ticking.guard, trio.current_time()
    guard.loop_ran(now + 20.0)
    guard.last = now
    with trio.move_on_after(10.2):
        await ticking.ticker.run()
    assert guard.credited_s == 20.0
    assert len(ticking.done) == 20
    assert trio.current_time() - guard.last < 0.5


@pytest.mark.parametrize(("stopped_s", "logged"), [(1.0, []), (32.0, [32.0])])
async def test_loop_stall_is_measured_and_a_long_one_logged_once_with_its_length(
    stopped_s: float, logged: list[float], autojump_clock: MockClock
) -> None:
    ticking = Ticking()
    lags = ticking.ticker.loop_lags = Histogram((0.1, 60.0))
    slot_s = ticking.ticker.slot_clock.slot_s
    with trio.move_on_after(stopped_s + 10.3), capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ticking.ticker.run)
            await trio.sleep(slot_s / 2)
            autojump_clock.jump(slot_s / 2 + stopped_s)
            await trio.sleep_forever()
    assert [line["seconds"] for line in lines] == logged
    assert all(line["log_level"] == "warning" for line in lines)
    usual, *late = lags.report()["counts"]
    assert late == [1, 0]
    assert usual == pytest.approx(10 / slot_s, abs=1)
