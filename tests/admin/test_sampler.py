"""The sampler of the live page, while something is lacking."""

from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from presence.admin.sampler import UNSEEN_INTERVAL_S, Sampler


class Workers:
    """Workers whose answers cannot be had."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.asked = 0

    async def samples(self) -> Any:
        self.asked += 1
        raise self._error


@pytest.mark.parametrize(
    ("error", "has_traceback"),
    [(RuntimeError("can't start new thread"), False), (MemoryError(), False), (KeyError("next_s"), True)],
)
async def test_a_lack_is_one_line_and_the_sampler_goes_on(
    autojump_clock: trio.testing.MockClock, error: Exception, has_traceback: bool
) -> None:
    workers: Any = Workers(error)
    sampler = Sampler(workers, "redis://127.0.0.1:1", "presence")
    with capture_logs() as lines, trio.move_on_after(3 * UNSEEN_INTERVAL_S + 1):
        await sampler.run()
    assert workers.asked == 4
    (line,) = [each for each in lines if each["event"] == "cannot build snapshot from workers"]
    assert bool(line.get("exc_info")) is has_traceback
