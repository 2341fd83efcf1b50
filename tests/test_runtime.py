"""Calls that hang are abandoned, keep nobody from ending, and have no second one beside them."""

import threading
from collections.abc import Callable, Iterator

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from presence import runtime
from presence.histograms import QUICK_S, Histogram
from presence.runtime import Aside, Hanging, T, Timed

PATIENCE_S = 30.0


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Make patience short; what waits for the event hangs until it is set, at the latest by the end."""
    monkeypatch.setattr(runtime, "CALL_PATIENCE_S", 0.05)
    event = threading.Event()
    yield event
    event.set()


async def test_while_a_call_hangs_no_other_is_made(stuck: threading.Event) -> None:
    where, made = Aside(), []
    with pytest.raises(Hanging):
        await where.call(stuck.wait)
    with pytest.raises(Hanging):
        await where.call(lambda: made.append(1))
    assert made == []
    stuck.set()
    with trio.fail_after(PATIENCE_S):
        while not made:
            try:
                await where.call(lambda: made.append(1))
            except Hanging:
                await trio.sleep(0.01)


async def test_whoever_waits_for_a_call_that_hangs_can_be_cancelled(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "CALL_PATIENCE_S", 1000.0)
    with trio.move_on_after(0.05) as scope:
        await Aside().call(lambda: stuck.wait(PATIENCE_S))
    assert scope.cancelled_caught
    assert not stuck.is_set()


# Histograms, and calls that are timed


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
