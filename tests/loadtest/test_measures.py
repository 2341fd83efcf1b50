"""Measurements report their own faults; techniques are compared with what users did."""

import dataclasses
import math
from array import array
from typing import Any

import pytest

from loadtest.bench import visits
from loadtest.bench.generator import ANSWERED, UNANSWERED, GeneratorReport
from loadtest.compare.player import ComparePlan, CompareRow, Schedule, Telling, judge
from loadtest.usage import WINDOW_SAMPLES, Stolen

FINE = GeneratorReport(wanted=1000, sent=1000, answers=1000, rate=1000.0, core_share=0.3, late_max_s=0.01)


@pytest.mark.parametrize(
    ("changed", "kind", "word"),
    [
        ({}, ANSWERED, ""),
        ({"answers": 0}, UNANSWERED, ""),  # none was requested
        ({"answers": 980}, ANSWERED, "unanswered"),
        ({"core_share": 0.71}, ANSWERED, "of a core"),
        ({"late_max_s": 0.2}, ANSWERED, "late"),
        ({"rate": 980.0}, ANSWERED, "late"),
    ],
)
def test_a_generator_that_was_the_bottleneck_reports_it(
    changed: dict[str, Any], kind: str, word: str
) -> None:
    complaints = dataclasses.replace(FINE, **changed).complaints(kind)
    assert bool(complaints) is bool(word)
    assert all(word in each for each in complaints)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({}, ""),
        ({"core_share": 0.71}, "of a core"),
        ({"late_max_s": 0.2}, "late"),
        ({"finished": 980}, "end"),
    ],
)
def test_a_load_of_visits_that_was_not_as_ordered_reports_it(changed: dict[str, Any], word: str) -> None:
    fine = visits.VisitReport(visits=1000, finished=1000, login_ms=[], core_share=0.3, late_max_s=0.01)
    complaints = visits.complaints(dataclasses.replace(fine, **changed))
    assert bool(complaints) is bool(word)
    assert all(word in each for each in complaints)


@pytest.mark.parametrize(
    ("samples", "worst_s"),
    [
        ([[50.0, 7.0]], 0.0),  # time stolen earlier does not count
        ([[50.0, 7.0], [50.1, 7.3]], 0.3),  # the CPU that lost most counts
        ([[0.02 * sample] for sample in range(5 * WINDOW_SAMPLES)], 0.02 * WINDOW_SAMPLES),
    ],
)
def test_the_cpu_time_stolen_in_the_worst_second_is_reported(
    samples: list[list[float]], worst_s: float
) -> None:
    remaining = iter(samples)
    stolen = Stolen(lambda: next(remaining))
    for _ in samples:
        stolen.sample()
    assert stolen.worst_s == pytest.approx(worst_s)


T = 10.0


@pytest.mark.parametrize(
    ("reports", "early", "false", "missed", "max_ms"),
    [
        ([Telling(0, 15.1, T + 0.1), Telling(1, 18.3, T + 0.3)], 0, 0, 0, 300.0),
        ([Telling(1, 18.3, T + 0.3)], 0, 0, 1, 300.0),
        ([Telling(0, 14.9, T - 0.1)], 1, 0, 1, -100.0),
        ([Telling(0, 15.0, T - 0.0005)], 0, 0, 1, -0.5),  # within the precision of Redis
        ([Telling(2, 25.0, T)], 0, 1, 2, math.nan),
        ([Telling(1, 6.0, T)], 0, 1, 2, math.nan),  # before the last keepalive
        ([Telling(0, 15.0, T), Telling(0, 20.0, T + 5)], 0, 0, 1, 0.0),
    ],
)
def test_offline_reports_are_compared_with_what_users_did(
    reports: list[Telling], early: int, false: int, missed: int, max_ms: float
) -> None:
    schedule = Schedule(array("d"), array("L"), array("d", [5.0, 8.0, math.inf]))
    row = CompareRow(ComparePlan("wheel", 3, idle_timeout_s=T, seconds=30.0))
    judge(row, schedule, reports)
    assert (row.early, row.false, row.missed) == (early, false, missed)
    assert row.max_ms == pytest.approx(max_ms, nan_ok=True)
