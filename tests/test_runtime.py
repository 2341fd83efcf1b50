"""What a node's tasks wait for: calls that are timed."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from presence.histograms import Histogram
from presence.runtime import T, Timed


class Slow:
    """A caller whose calls take half a second."""

    async def call(self, blocking: Callable[[], T]) -> T:
        await trio.sleep(0.5)
        return blocking()


async def test_a_call_is_timed_as_its_task_waits_for_it(autojump_clock: MockClock) -> None:
    took = Histogram((0.4, 0.6))
    assert await Timed(Slow(), took, trio.current_time).call(lambda: 7) == 7
    assert took.report()["counts"] == [0, 1, 0]


async def test_a_call_that_fails_is_timed_too(autojump_clock: MockClock) -> None:
    took = Histogram((0.4, 0.6))
    with pytest.raises(ZeroDivisionError):
        await Timed(Slow(), took, trio.current_time).call(lambda: 1 / 0)
    assert took.report()["counts"] == [0, 1, 0]
