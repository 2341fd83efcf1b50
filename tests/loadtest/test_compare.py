"""The judge of the comparison: tellings held against what users did."""

import math
from array import array

import pytest

from loadtest.compare.player import Plan, Row, Schedule, Telling, judge

T = 10.0


@pytest.mark.parametrize(
    ("told", "early", "false", "missed", "max_ms"),
    [
        ([Telling(0, 15.1, T + 0.1), Telling(1, 18.3, T + 0.3)], 0, 0, 0, 300.0),
        ([Telling(1, 18.3, T + 0.3)], 0, 0, 1, 300.0),
        ([Telling(0, 14.9, T - 0.1)], 1, 0, 1, -100.0),
        ([Telling(0, 15.0, T - 0.0005)], 0, 0, 1, -0.5),  # as exact as Redis counts
        ([Telling(2, 25.0, T)], 0, 1, 2, math.nan),
        ([Telling(1, 6.0, T)], 0, 1, 2, math.nan),  # before the last beat
        ([Telling(0, 15.0, T), Telling(0, 20.0, T + 5)], 0, 0, 1, 0.0),
    ],
)
def test_tellings_are_held_against_what_users_did(
    told: list[Telling], early: int, false: int, missed: int, max_ms: float
) -> None:
    schedule = Schedule(array("d"), array("L"), array("d", [5.0, 8.0, math.inf]))
    row = Row(Plan("wheel", 3, idle_timeout_s=T, seconds=30.0))
    judge(row, schedule, told)
    assert (row.early, row.false, row.missed) == (early, false, missed)
    assert row.max_ms == pytest.approx(max_ms, nan_ok=True)
