"""Rows to figures, tables and a plot; and which trials are played side by side."""

from pathlib import Path
from typing import Any

import pytest

from loadtest.compare import plot, report, results
from loadtest.compare.figures import figures
from loadtest.compare.technique import NOTHING
from loadtest.compare.trials import EMPTY, PROCESS, Trial, rounds
from loadtest.compare.workload import Plan

PLAN: dict[str, Any] = {"users": 100, "idle_timeout_s": 30.0, "seconds": 60.0, "silent_share": 0.1, "seed": 1}


def row(kind: str, cpu_s: float, fault: str = "", **verdict: Any) -> results.Row:
    used = {"at": 10.0, "cpu_s": cpu_s, "redis_cpu_s": 0.5, "scripts": 1100, "commands": 7000}
    said = {"touches": 1000, "used": used, "process_bytes": 150.0, "redis_bytes": 0.0, "lag_max_ms": 3.0}
    found = {"silent": 10, "found": 10, "missed": 0, "early": 0, "false": 0, "doubled": 0, "late": 0}
    found |= {"p50_ms": 100.0, "p99_ms": 400.0, "max_ms": 6500.0} | verdict
    trial = {"kind": kind, "users": 100, "batched": False, "fault": fault, "plan": PLAN}
    return trial | {"report": said, "verdict": found}


@pytest.fixture
def found() -> results.Results:
    """Of 1,000 touches by a wheel and a queue."""
    every = results.Results({"kernel": "Linux 1"})
    for each in (
        row(NOTHING, 0.010),
        row("wheel", 0.012),
        row("queue", 0.110, early=1, missed=2),
        row("wheel", 0.0, PROCESS, found=6, missed=4, late=1),
        row("queue", 0.0, EMPTY, doubled=2),
    ):
        every.add(each)
    return every


def test_what_the_player_costs_is_taken_off(found: results.Results) -> None:
    each = figures(found, "wheel", 100)
    assert each is not None
    assert each.process_us == pytest.approx(2.0)
    assert each.redis_us == pytest.approx(500.0)
    assert each.scripts == pytest.approx(1.1)
    assert each.touches_s == pytest.approx(100.0)


def test_the_short_table_has_a_line_for_each_technique_played(found: results.Results) -> None:
    lines = report.short(found).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| presence wheel", "| `DelayQueue`"]
    assert " | 100, 400, 6,500 | 3 | " in lines[3]


def test_losses_say_in_time_late_and_never(found: results.Results) -> None:
    text = report.whole(found)
    assert "| presence wheel | 5 / 1 (6.5 s) / 4 | -" in text
    assert "10 / 0 / 0; 2 twice" in text


def test_a_row_that_is_measured_anew_takes_the_place_of_the_old(found: results.Results) -> None:
    found.add(row("wheel", 0.020))
    each = figures(found, "wheel", 100)
    assert each is not None
    assert each.process_us == pytest.approx(10.0)


def test_what_failed_is_told(found: results.Results) -> None:
    found.add({"kind": "trio", "users": 100, "batched": False, "fault": "", "error": "MemoryError"})
    assert found.errors() == ["trio at 100: MemoryError"]
    assert "MemoryError" in report.whole(found)


def test_breaking_rates_stand_beside_each_other(found: results.Results) -> None:
    trial = {"kind": "queue", "users": 100, "batched": False, "fault": "", "plan": PLAN}
    found.add(trial | {"breaking": {"kept": 9_000.0, "broken": 10_350.0}})
    assert "| `DelayQueue` | 9.0k to 10.3k | - |" in report.whole(found)


def test_rows_are_read_as_they_were_written(found: results.Results, tmp_path: Path) -> None:
    found.write(tmp_path / "rows.json")
    assert report.whole(results.read(tmp_path / "rows.json")) == report.whole(found)


def test_a_plot_is_drawn(found: results.Results, tmp_path: Path) -> None:
    plot.draw(found, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_rounds_do_not_overload_the_machine() -> None:
    trials = [Trial("queue", 100), Trial("ring", 100), Trial("wheel", 100), Trial("heap", 100)]
    assert rounds(trials, abreast=120) == [[trials[0], trials[2], trials[3]], [trials[1]]]


def test_the_time_of_the_last_silence_follows_from_the_plan() -> None:
    assert Plan(**PLAN).last_silence_s == pytest.approx(28.5)
