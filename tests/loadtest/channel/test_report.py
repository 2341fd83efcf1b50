"""What a run's report says, in words and as JSON, and what the command makes of it."""

import json
from pathlib import Path

import pytest

from loadtest.channel import __main__ as command
from loadtest.channel.report import Report, percentiles, spread_ms
from loadtest.channel.watch import Plan

KEPT = Report("watch: much", {"pushes": "7"}, {"pushes": 7})
BROKEN = Report("watch: much", {"pushes": "7"}, {"pushes": 7}, ["1 x hole", "2 x lost"])


def play_nothing(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(command.SCENARIOS, "watch", (Plan, lambda *_: report, ""))


def test_the_table_says_what_was_broken() -> None:
    assert KEPT.table().splitlines()[2:] == ["| pushes | 7 |", "| promises | kept |"]
    assert BROKEN.table().endswith("| promises | 1 x hole; 2 x lost |")


def test_figures_go_to_json() -> None:
    assert json.loads(BROKEN.as_json())["pushes"] == 7
    assert json.loads(BROKEN.as_json())["broken"] == BROKEN.broken


def test_percentiles() -> None:
    assert percentiles(range(1, 201)) == {"p50": 101, "p99": 199, "max": 200}
    assert spread_ms(percentiles([])) == "p50 0.0, p99 0.0, max 0.0 ms"


def test_the_exit_status_says_whether_a_promise_was_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play_nothing(KEPT, monkeypatch)
    assert command.main(["watch", "--out", str(tmp_path / "found.json")]) == 0
    assert capsys.readouterr().out.endswith("passed\n")
    assert json.loads((tmp_path / "found.json").read_text())["pushes"] == 7
    play_nothing(BROKEN, monkeypatch)
    assert command.main(["watch"]) == 1
    assert capsys.readouterr().out.endswith("FAILED\n")


def test_each_field_of_a_plan_is_a_flag() -> None:
    given = command.parse(["watch", "--watchers", "7", "--grace-s", "0.5", "--seed", "3"])
    assert (given.watchers, given.each, given.grace_s, given.seed) == (7, 50, 0.5, 3)


def test_an_older_tree_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parse(["plain"])
    assert "--against" in capsys.readouterr().err
