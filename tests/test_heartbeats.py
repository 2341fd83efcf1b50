"""How long a process has been silent, as its watcher counts it; time is an argument."""

import math

from presence.orders import FIRST_TIMEOUT_S, SilenceWatch, interval_s

TIMEOUT_S = 40.0  # longer than what a start may take


def looked_at(watch: SilenceWatch, begin: float, end: float) -> list[float]:
    """Look each interval; return when it was found to hang."""
    times = [begin + n * interval_s(TIMEOUT_S) for n in range(1, math.ceil(end - begin) + 1)]
    return [now for now in times if watch.is_hung(now)]


def test_a_process_is_left_alone_that_stands_still_for_no_longer_than_the_timeout() -> None:
    watch = SilenceWatch(TIMEOUT_S, 0.0)
    watch.heard()
    assert not looked_at(watch, 0.0, TIMEOUT_S)


def test_one_that_stands_still_for_longer_hangs() -> None:
    watch = SilenceWatch(TIMEOUT_S, 0.0)
    watch.heard()
    assert looked_at(watch, 0.0, 2 * TIMEOUT_S)[0] <= TIMEOUT_S + 2 * interval_s(TIMEOUT_S)


def test_a_pause_that_the_watcher_shared_is_no_silence() -> None:
    watch = SilenceWatch(TIMEOUT_S, 0.0)
    watch.heard()
    assert not watch.is_hung(1.0)
    assert not watch.is_hung(10_000.0)
    assert not looked_at(watch, 10_000.0, 10_000.0 + TIMEOUT_S - 5)


def test_a_process_that_starts_has_time_to_load_its_modules() -> None:
    watch = SilenceWatch(1.0, 0.0)
    assert not any(watch.is_hung(n / 10) for n in range(int(FIRST_TIMEOUT_S) * 10))
    watch.heard()
    assert any(watch.is_hung(FIRST_TIMEOUT_S + n / 10) for n in range(20))


def test_a_heartbeat_begins_the_count_anew() -> None:
    watch = SilenceWatch(TIMEOUT_S, 0.0)
    assert not looked_at(watch, 0.0, TIMEOUT_S - 1)
    watch.heard()
    assert not looked_at(watch, TIMEOUT_S - 1, 2 * TIMEOUT_S - 2)
