"""Histograms: each value in one bucket, and their sum."""

from collections.abc import Callable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from presence.histograms import QUICK_S, Histogram
from presence.runtime import T, Timed


@given(st.lists(st.floats(0, 1000)))
def test_each_value_is_counted_below_the_first_bound_that_it_does_not_exceed(values: list[float]) -> None:
    histogram, bounds = Histogram(QUICK_S), [*QUICK_S, float("inf")]
    for value in values:
        histogram.note(value)
    counts = [0] * len(bounds)
    for value in values:
        counts[next(n for n, bound in enumerate(bounds) if value <= bound)] += 1
    assert histogram.report()["counts"] == counts
    assert histogram.report()["sum"] == pytest.approx(sum(values))


def test_what_clocks_make_negative_is_nothing() -> None:
    histogram = Histogram((1.0,))
    histogram.note(-0.5)
    assert histogram.report() == {"bounds": [1.0], "counts": [1, 0], "sum": 0.0}


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
