"""The comparison's command, small: real processes, a real Redis."""

from pathlib import Path

import pytest

from benchmarks.compare.__main__ import main, play
from benchmarks.compare.player import ComparePlan


@pytest.mark.alone
def test_techniques_are_played_and_none_is_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = tmp_path / "compare.md", tmp_path / "compare.png"
    flags = ["--users", "60", "--idle-timeout", "1", "--kinds", "wheel", "queue"]
    assert main([*flags, "--out", str(out), "--plot", str(plot)]) == 0
    lines = [line for line in out.read_text().splitlines() if line.startswith("| ") and "---" not in line]
    rows = [line[2:-2].split(" | ") for line in lines]
    assert [row[0] for row in rows[1:]] == [
        "presence wheel",
        "presence wheel, batched",
        "`DelayQueue`",
        "`DelayQueue`, batched",
    ]
    assert all(row[rows[0].index("early")] == "0" for row in rows[1:])
    assert float(rows[3][rows[0].index("scripts")]) >= 1, "a script a touch"
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["wheel", "queue", "expiry", "ring", "redis-wheel"])
def test_each_finds_those_who_fall_silent(kind: str) -> None:
    row = play(ComparePlan(kind, 60, idle_timeout_s=1.0, seconds=2.5, silent_share=0.5))
    assert (row.error, row.early) == ("", 0)
    assert row.missed <= 5, "some may be due at the very end"


def test_a_technique_that_ends_with_an_error_says_so() -> None:
    assert "no such technique" in play(ComparePlan("abacus", 10, idle_timeout_s=0.5, seconds=1.0)).error
