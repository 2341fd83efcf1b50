"""Hanging calls are abandoned, do not keep the process from ending, and block further calls; histograms."""

import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from presence.common import runtime
from presence.common.errors import StoreUnavailable
from presence.common.histogram import QUICK_S, Histogram, detection_bounds
from presence.common.runtime import (
    AbandonableThread,
    Linger,
    LoopCaller,
    T,
    ThreadTimeout,
    TimedCaller,
    run_in_thread,
)
from presence.common.threads import NoThread
from tests.support.no_threads import MESSAGE, forbid_threads

PATIENCE_S = 30.0
# The C library keeps the stack of a thread that has ended, so that the kernel refuses the next one nothing.
WITHOUT_MEMORY = """
import pathlib, resource, time
import trio
import trio._core._thread_cache as cache
from presence.common.runtime import run_in_thread
from presence.common.threads import NoThread

async def main():
    cache.IDLE_TIMEOUT = 0.02
    await run_in_thread(lambda: None)
    time.sleep(0.2)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), resource.RLIM_INFINITY))
    try:
        await run_in_thread(lambda: None)
    except NoThread:
        return
    raise SystemExit("a thread was started")

trio.run(main)
"""


async def test_while_a_call_hangs_no_other_is_made_and_its_caller_can_be_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where, stuck, made = AbandonableThread(), threading.Event(), list[int]()
    with trio.move_on_after(0.05) as scope:
        await where.call(lambda: stuck.wait(PATIENCE_S))
    assert scope.cancelled_caught
    with pytest.raises(ThreadTimeout):
        await where.call(lambda: made.append(1))
    stuck.set()
    with trio.fail_after(PATIENCE_S):
        while not made:
            try:
                await where.call(lambda: made.append(1))
            except ThreadTimeout:
                await trio.sleep(0.01)
    stuck.clear()
    monkeypatch.setattr(runtime, "CALL_TIMEOUT_S", 0.05)
    with pytest.raises(ThreadTimeout):
        await where.call(lambda: stuck.wait(PATIENCE_S))
    stuck.set()


# No thread can be started


async def test_a_call_without_a_thread_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    forbid_threads(monkeypatch)
    with pytest.raises(NoThread, match=MESSAGE):
        await run_in_thread(lambda: made.append(1))
    with pytest.raises(NoThread):
        await AbandonableThread().call(lambda: made.append(2))
    assert not made


async def test_an_error_of_the_function_itself_is_its_own() -> None:
    def fail() -> None:
        raise RuntimeError(MESSAGE)

    with pytest.raises(RuntimeError, match=MESSAGE):
        await run_in_thread(fail)


def test_a_thread_that_has_no_memory_to_begin_is_not_started() -> None:
    """Python would wait for it for ever."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MEMORY], check=False, capture_output=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr.decode()


# No memory for a call on the loop


async def test_a_call_that_has_no_memory_to_begin_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def fail(*_: object) -> NoReturn:
        raise MemoryError

    with monkeypatch.context() as context:
        context.setattr("presence.common.runtime.LoopCall.switch", fail)
        with pytest.raises(StoreUnavailable, match="out of memory"):
            await LoopCaller().call(lambda: made.append(1))
    assert not made
    assert await LoopCaller().call(lambda: 2) == 2


async def test_a_call_that_runs_out_of_memory_may_have_been_made() -> None:
    def fail() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        await LoopCaller().call(fail)


# Histograms and timed calls


@given(st.lists(st.floats(0, 1000)))
def test_each_value_is_counted_below_the_first_bound_that_it_does_not_exceed(values: list[float]) -> None:
    histogram, bounds = Histogram(QUICK_S), [*QUICK_S, float("inf")]
    for value in values:
        histogram.observe(value)
    counts = [0] * len(bounds)
    for value in values:
        counts[next(n for n, bound in enumerate(bounds) if value <= bound)] += 1
    assert histogram.report()["counts"] == counts
    assert histogram.report()["sum"] == pytest.approx(sum(values))


def test_a_negative_value_counts_as_zero() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(-0.5)
    assert histogram.report() == {"bounds": [1.0], "counts": [1, 0], "sum": 0.0}


@pytest.mark.parametrize("tick_s", [0.2, 1.0, 4.0, 60.0])
def test_delays_by_design_are_told_from_late_ones(tick_s: float) -> None:
    histogram = Histogram(detection_bounds(tick_s))
    histogram.observe(tick_s)
    histogram.observe(tick_s * 1.01)
    report = histogram.report()
    in_time = sum(n for bound, n in zip(report["bounds"], report["counts"], strict=False) if bound <= tick_s)
    assert in_time == 1


class Slow:
    """A caller whose calls take half a second."""

    async def call(self, blocking: Callable[[], T], linger: Linger | None = None) -> T:
        await trio.sleep(0.5)
        if linger is not None:
            await linger()
        return blocking()


async def test_time_spent_lingering_is_no_time_of_the_call(autojump_clock: MockClock) -> None:
    took = Histogram((0.4, 0.6))
    await TimedCaller(Slow(), took, trio.current_time).call(lambda: 7, partial(trio.sleep, 10))
    assert took.report()["counts"] == [0, 1, 0]


async def test_a_failed_call_is_timed_too(autojump_clock: MockClock) -> None:
    took = Histogram((0.4, 0.6))
    assert await TimedCaller(Slow(), took, trio.current_time).call(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await TimedCaller(Slow(), took, trio.current_time).call(lambda: 1 / 0)
    assert took.report()["counts"] == [0, 2, 0]
