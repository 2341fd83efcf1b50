"""How late the event loop is."""

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from presence.clock import Clock
from presence.histograms import Histogram
from presence.runtime import TrioRuntime
from presence.ticker import LAG_INTERVAL_S, watch_lag


@pytest.mark.parametrize(("stopped_s", "logged"), [(1.0, []), (32.0, [32.0])])
async def test_a_stall_is_logged_once_with_its_length(
    stopped_s: float, logged: list[float], autojump_clock: trio.testing.MockClock
) -> None:
    with trio.move_on_after(1000), capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                watch_lag, Histogram((0.1,)), Clock(trio.current_time, lambda: 0.0), TrioRuntime()
            )
            await trio.sleep(LAG_INTERVAL_S / 2)
            autojump_clock.jump(LAG_INTERVAL_S / 2 + stopped_s)
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
    assert [line["seconds"] for line in lines] == logged
    assert all(line["log_level"] == "warning" for line in lines)
