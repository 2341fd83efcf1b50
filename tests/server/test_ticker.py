"""The ticker, with a clock that jumps."""

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from presence.common.clock import Clock
from presence.common.histogram import Histogram
from presence.core.sessions import DueSessions
from presence.core.slots import SlotClock
from presence.core.stall_guard import StallGuard
from presence.server.ticker import Ticker


class Ticking:
    """A ticker without due sessions, and the times of its slots."""

    def __init__(self) -> None:
        self.done: list[float] = []
        self.tick_lags = Histogram((0.1, 1.0))
        self.loop_lags = Histogram((0.1, 60.0))
        self.guard = StallGuard(1.0, 30.0, trio.current_time())
        clock = Clock(trio.current_time, lambda: 0.0)
        self.slot_clock = SlotClock(0.5, clock.now())
        self.ticker = Ticker(
            self,
            self.done.append,
            self.slot_clock,
            self.guard,
            clock,
            tick_lags=self.tick_lags,
            loop_lags=self.loop_lags,
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
    assert ticking.tick_lags.report()["counts"] == [20, 0, 0]
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
    lags, slot_s = ticking.loop_lags, ticking.slot_clock.slot_s
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
