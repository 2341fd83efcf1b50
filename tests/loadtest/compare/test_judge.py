"""The judge: tellings beside what users did."""

import math
from array import array
from pathlib import Path

import pytest

from loadtest.compare.judge import judge
from loadtest.compare.ledger import Ledger, Telling, tellings
from loadtest.compare.workload import Plan, Schedule

BEGIN = 1000.0
T = 10.0


@pytest.fixture
def schedule() -> Schedule:
    """User 0 falls silent at second 5, user 1 at second 8, user 2 never."""
    plan = Plan(users=3, idle_timeout_s=T, seconds=30.0)
    return Schedule(plan, array("d"), array("L"), array("d", [5.0, 8.0, math.inf]))


def told(user: int, second: float, silent_s: float) -> Telling:
    return Telling(user, BEGIN + second, silent_s)


def test_lateness_is_from_the_time_out(schedule: Schedule) -> None:
    verdict = judge(schedule, BEGIN, [told(0, 15.1, T + 0.1), told(1, 18.3, T + 0.3)])
    assert (verdict.silent, verdict.found, verdict.missed) == (2, 2, 0)
    assert verdict.p50_ms == pytest.approx(100.0)
    assert verdict.max_ms == pytest.approx(300.0)
    assert (verdict.early, verdict.false, verdict.doubled, verdict.late) == (0, 0, 0, 0)


def test_nobody_told_is_missed(schedule: Schedule) -> None:
    verdict = judge(schedule, BEGIN, [told(1, 18.3, T + 0.3)])
    assert verdict.missed == 1


def test_less_than_the_time_out_is_early(schedule: Schedule) -> None:
    verdict = judge(schedule, BEGIN, [told(0, 14.9, T - 0.1)])
    assert (verdict.early, verdict.false) == (1, 0)
    assert verdict.least_ms == pytest.approx(-100.0)


def test_a_millisecond_is_as_exact_as_redis_counts(schedule: Schedule) -> None:
    assert judge(schedule, BEGIN, [told(0, 15.0, T - 0.0005)]).early == 0


def test_telling_of_who_beats_is_false(schedule: Schedule) -> None:
    verdict = judge(schedule, BEGIN, [told(2, 25.0, T)])
    assert (verdict.false, verdict.early, verdict.found) == (1, 0, 0)


def test_telling_before_the_last_beat_is_false_and_finds_nobody(schedule: Schedule) -> None:
    verdict = judge(schedule, BEGIN, [told(1, 6.0, T)])
    assert (verdict.false, verdict.missed) == (1, 2)


def test_telling_twice_is_counted_and_the_first_one_is_what_was_late(schedule: Schedule) -> None:
    verdict = judge(schedule, BEGIN, [told(0, 15.0, T), told(0, 20.0, T + 5)])
    assert (verdict.doubled, verdict.late) == (1, 0)
    assert verdict.max_ms == pytest.approx(0.0)


def test_beyond_the_slack_is_late(schedule: Schedule) -> None:
    assert judge(schedule, BEGIN, [told(0, 16.0, T + 1)]).late == 1


def test_the_ledger_outlives_who_wrote_it(tmp_path: Path) -> None:
    first = Ledger(tmp_path, 2)
    first.touched[1] = 7.0
    first.tell(1, 17.5)  # and it is never closed
    second = Ledger(tmp_path, 2)
    second.tell(1, 20.0)
    assert tellings(tmp_path) == [Telling(1, 17.5, 10.5), Telling(1, 20.0, 13.0)]
    first.close()
    second.close()
