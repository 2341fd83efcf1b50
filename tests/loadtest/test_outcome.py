"""What a scenario came to: one that injected nothing has failed, and what was wrong is counted and shown."""

from loadtest.outcome import Outcome, Verdict, table


def test_a_run_that_injected_nothing_fails() -> None:
    assert Outcome("kill", "", "offline 0 of 0").failures == ["nothing was injected"]
    assert Outcome("kill", "one worker", "offline 9 of 9").failures == []


def test_the_table_says_what_was_broken() -> None:
    rows = table([Outcome("a", "x", "1 s"), Outcome("b", "x", "2 s", ["late", "lost"])]).splitlines()
    assert rows[2:] == ["| a | x | 1 s | kept |", "| b | x | 2 s | late; lost |"]


def test_what_is_wrong_is_counted_and_shown() -> None:
    verdict = Verdict()
    assert verdict.broken == []
    for number in range(30):
        verdict.note("online event lost", f"user-{number}")
    count, *examples = verdict.broken
    assert count == "30 x online event lost"
    assert len(examples) == 5
    assert "user-0" in examples[0]
