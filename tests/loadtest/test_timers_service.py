"""The command that measures the timer service: small, and its verdict on outcomes that are bad."""

import pytest

from loadtest.timers.service import __main__ as command
from loadtest.timers.service.report import broken, tables
from loadtest.timers.service.trial import Outcome, trial


def here(kind: str, count: int, span_s: float, mode: str, _: object) -> Outcome:
    outcome = Outcome(kind, count, span_s, mode)
    trial(outcome, lead_s=0.02)
    return outcome


def test_a_small_run_gives_a_table_of_every_kind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "run_trial", here)  # a process each takes ten seconds
    small = ["--few", "20", "--few-span", "0.02", "--many", "30", "--many-span", "0.02", "--hour", "2"]
    assert command.main([*small, "--tasks-max", "25", "--slack", "10000"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("| TimerService |") == 4
    assert printed.count("| heapq, 10 ms ticks |") == 4
    assert printed.count("| trio tasks |") == 4
    assert "passed" in printed


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, ""),
        ({"early": 1}, "1 were early"),
        ({"fired": 9}, "1 did not fire"),
        ({"p99_ms": 20.1}, "p99 20.1 ms"),
        ({"error": "killed"}, "killed"),
    ],
)
def test_what_is_broken_is_told(change: dict[str, object], told: str) -> None:
    values: dict[str, object] = {"fired": 10, "p99_ms": 19.9, **change}
    faults = broken([Outcome("TimerService", 10, 5.0, "real", **values)], 10.0)  # type: ignore[arg-type] # fields by name
    assert bool(faults) == bool(told)
    assert told in "".join(faults)


def test_a_trial_without_figures_stands_in_the_table_with_its_reason() -> None:
    assert "| heapq | out of memory |" in tables([Outcome("heapq", 10, 5.0, "mock", error="out of memory")])
