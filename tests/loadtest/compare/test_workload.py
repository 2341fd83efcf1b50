"""The workload: who beats when, and who falls silent."""

import math
from itertools import pairwise
from pathlib import Path

import pytest

from loadtest.compare.workload import BEAT_SHARE, JITTER, Plan, Schedule, draw, percentile, read

PLAN = Plan(users=200, idle_timeout_s=10.0, seconds=25.0, silent_share=0.3)


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return draw(PLAN)


def beats(schedule: Schedule) -> list[list[float]]:
    found: list[list[float]] = [[] for _ in range(schedule.plan.users)]
    for at, user in zip(schedule.times, schedule.who, strict=True):
        found[user].append(at)
    return found


def test_touches_are_in_order_of_time(schedule: Schedule) -> None:
    assert list(schedule.times) == sorted(schedule.times)


def test_the_share_falls_silent_after_the_last_beat(schedule: Schedule) -> None:
    silent = [user for user, last in enumerate(schedule.last_beats) if math.isfinite(last)]
    assert len(silent) == 60
    of_all = beats(schedule)
    assert all(of_all[user][-1] == schedule.last_beats[user] for user in silent)


def test_all_who_fall_silent_are_due_before_the_end(schedule: Schedule) -> None:
    last = max(each for each in schedule.last_beats if math.isfinite(each))
    assert last + PLAN.idle_timeout_s + PLAN.slack_s <= PLAN.seconds


def test_who_beats_is_never_silent_for_longer_than_a_beat_and_its_jitter(schedule: Schedule) -> None:
    longest = BEAT_SHARE * PLAN.idle_timeout_s * (1 + JITTER)
    for user, times in enumerate(beats(schedule)):
        assert all(later - earlier <= longest + 1e-9 for earlier, later in pairwise(times))
        if math.isinf(schedule.last_beats[user]):
            assert PLAN.seconds - times[-1] <= longest


def test_a_seed_draws_the_same_again_and_another_does_not(schedule: Schedule) -> None:
    assert draw(PLAN).times == schedule.times
    assert draw(Plan(200, 10.0, 25.0, 0.3, seed=2)).times != schedule.times


def test_what_is_written_is_read(schedule: Schedule, tmp_path: Path) -> None:
    schedule.write(tmp_path)
    again = read(tmp_path)
    assert again.plan == PLAN
    assert (again.times, again.who, again.last_beats) == (schedule.times, schedule.who, schedule.last_beats)


def test_a_run_that_is_too_short_for_a_silence_is_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        draw(Plan(10, 30.0, 30.0))


def test_percentiles_are_of_the_nearest_rank() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([float(n) for n in range(1, 101)], 0.99) == 99.0
    assert math.isnan(percentile([], 0.5))
