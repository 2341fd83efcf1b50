"""How late the event loop is."""

import time

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from presence import loop_lag
from presence.clock import Clock
from presence.histograms import Histogram
from presence.runtime import TrioRuntime


async def test_a_task_that_holds_the_loop_is_noticed() -> None:
    lags = Histogram((0.1, 60.0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop_lag.watch, lags, Clock(), TrioRuntime())
        await trio.testing.wait_all_tasks_blocked()
        time.sleep(loop_lag.INTERVAL_S + 0.3)  # noqa: ASYNC251 - that is what is to be noticed
        with trio.fail_after(30):
            while not sum(lags.report()["counts"]):  # noqa: ASYNC110 - nobody tells of it
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert lags.report()["counts"][1] >= 1
    assert lags.report()["sum"] >= 0.3


@pytest.mark.parametrize(("stopped_s", "logged"), [(1.0, []), (32.0, [32.0])])
async def test_a_stall_is_logged_once_with_its_length(
    stopped_s: float, logged: list[float], autojump_clock: trio.testing.MockClock
) -> None:
    with trio.move_on_after(1000), capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                loop_lag.watch, Histogram((0.1,)), Clock(trio.current_time, lambda: 0.0), TrioRuntime()
            )
            await trio.sleep(loop_lag.INTERVAL_S / 2)
            autojump_clock.jump(loop_lag.INTERVAL_S / 2 + stopped_s)
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
    assert [line["seconds"] for line in lines] == logged
    assert all(line["log_level"] == "warning" for line in lines)


async def test_it_looks_four_times_a_second(autojump_clock: trio.testing.MockClock) -> None:
    lags = Histogram((0.1,))
    with trio.move_on_after(10.1):
        await loop_lag.watch(lags, Clock(trio.current_time, lambda: 0.0), TrioRuntime())
    assert lags.report()["counts"] == [40, 0]
