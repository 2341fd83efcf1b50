"""The measurement of the presence wheel in Redis, small."""

from pathlib import Path

from loadtest.timers.wheel import main


def test_all_sizes_are_in_the_table(tmp_path: Path) -> None:
    out = tmp_path / "table.md"
    assert main(["--users", "600", "--seconds", "0.03", "--out", str(out)]) == 0
    lines = [line.split(" | ") for line in out.read_text("utf-8").splitlines() if line[2:3].isdigit()]
    assert [(line[0], line[2]) for line in lines if len(line) == 6] == [
        ("| 600", "1"),
        ("| 600", "20"),
        ("| 600", "500"),
    ]
    assert [line[0] for line in lines if len(line) == 3] == ["| 600"]
