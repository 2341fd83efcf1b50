"""What benchmarks share: tables, files of results, and the exit status."""

import json
from pathlib import Path

import pytest

from loadtest.outcome import markdown, print_verdict, write_results


def test_a_table_takes_cells_or_lines_of_them() -> None:
    assert markdown("a | b", [("1", "2"), "3 | 4"]).splitlines()[1:] == [
        "| --- | --- |",
        "| 1 | 2 |",
        "| 3 | 4 |",
    ]


def test_results_are_written_with_the_machine(tmp_path: Path) -> None:
    write_results(tmp_path / "new", "rooms", "| a |", {"rate": 5})
    assert (tmp_path / "new" / "rooms.md").read_text() == "| a |\n"
    found = json.loads((tmp_path / "new" / "rooms.json").read_text())
    assert found["rate"] == 5
    assert found["machine"]


@pytest.mark.parametrize(("broken", "status"), [([], 0), (["a room is wrong"], 1)])
def test_a_broken_promise_fails_a_benchmark(
    broken: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_verdict("benchmarks.rooms", broken) == status
    assert ("a room is wrong" in capsys.readouterr().out) == bool(broken)
