"""Which workers a distributed load test misses at its end."""

import pytest

from presence.loadtest.roster import LEFT_EARLY_S, Roster, WorkerReport

DEVICES = 50
END = 100.0


def roster_of(*names: str, expected: int = 0) -> Roster:
    """Return a roster in its first run, whose workers have all reported once."""
    roster = Roster(expected)
    roster.begin(names)
    for name in names:
        roster.reported(name, WorkerReport(pid=7, devices=DEVICES), 1.0)
    return roster


def judged(roster: Roster, name: str, at: float, run: int = 1) -> None:
    roster.reported(name, WorkerReport(7, DEVICES, judged_run=run), at)


def test_a_run_that_all_workers_judged_has_no_failures() -> None:
    roster = roster_of("a", "b", expected=2)
    roster.end(END)
    for name in ("a", "b"):
        judged(roster, name, END + 1)
    assert roster.failures() == []


def test_a_worker_without_a_final_report_is_named_with_its_devices() -> None:
    roster = roster_of("a", "b")
    roster.end(END)
    judged(roster, "a", END)
    (failure,) = roster.failures()
    assert "worker b (pid 7) sent no final report" in failure
    assert f"its judge of {DEVICES} devices is gone" in failure


def test_a_worker_that_connected_during_the_run_owes_a_report() -> None:
    roster = roster_of("a")
    roster.connected("late")
    roster.end(END)
    judged(roster, "a", END)
    assert [each.name for each in roster.missing()] == ["late"]


def test_a_report_of_an_earlier_run_is_not_final() -> None:
    roster = roster_of("a")
    roster.end(END)
    judged(roster, "a", END)
    roster.begin(["a"])
    judged(roster, "a", END + 2, run=1)
    assert [each.name for each in roster.missing()] == ["a"]


@pytest.mark.parametrize(("before_s", "failures"), [(LEFT_EARLY_S - 1, 0), (LEFT_EARLY_S + 1, 1)])
def test_only_a_worker_that_left_long_before_the_end_fails_the_run(before_s: float, failures: int) -> None:
    roster = roster_of("a")
    judged(roster, "a", END - before_s)
    roster.end(END)
    assert len(roster.failures()) == failures


def test_only_reachable_workers_are_waited_for() -> None:
    roster = roster_of("a", "b")
    roster.end(END)
    assert roster.waiting_for(["b"]) == ["b"]
    judged(roster, "b", END)
    assert roster.waiting_for(["a", "b"]) == ["a"]


def test_a_worker_that_never_connected_fails_the_run() -> None:
    roster = roster_of("a", expected=2)
    judged(roster, "a", END)
    roster.end(END)
    assert roster.failures() == ["1 of 2 expected workers took part"]
