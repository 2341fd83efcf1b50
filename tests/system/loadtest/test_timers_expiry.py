"""The measurement of the timer by key expiry, small."""

from pathlib import Path

import pytest

from loadtest.timers.expiry.__main__ import main, table
from loadtest.timers.expiry.watch import Outcome


def run(folder: Path, *arguments: str) -> str:
    out = folder / "table.md"
    few = ("--events", "60", "--span", "0.3", "--first", "0.1", "--patience", "3", "--others", "100")
    assert main([*few, *arguments, "--out", str(out)]) == 0
    return out.read_text("utf-8")


@pytest.mark.parametrize("what", ["listener", "process"])
def test_what_is_due_while_something_is_cut_off_comes_afterwards(tmp_path: Path, what: str) -> None:
    text = run(tmp_path, "--only", f"{what} cut off", "--cut", "0.2")
    events, cut = (line.split(" | ") for line in text.splitlines() if line.startswith(f"| {what} cut off"))
    early, twice, never, told, found = map(int, events[4:9])
    assert (early, twice, never, told + found) == (0, 0, 0, 60)
    assert found > 0
    assert int(cut[1]) == 40
    assert float(cut[5].removesuffix(" |")) > 0.0


def test_keys_of_others_are_no_events(tmp_path: Path) -> None:
    name = "100 other keys, near, no scan"
    assert f"| {name} |" in run(tmp_path, "--only", name)


def test_an_event_that_never_came_is_in_the_table() -> None:
    assert "| lost |  |  |  | 0 | 0 | 7 |" in table({"lost": Outcome(never=7)})
