"""Workers that share a timer and are killed: the verdict on what they noted, and a small run."""

import pytest

from loadtest.timers.workers.verdict import Handling, Verdict, handlings, judge, percentiles

SETTLED = "0 1 1000 5\n-\n"


def verdict(*seen: Handling, killed: set[int] | None = None, asked_ms: tuple[int, ...] = (1000,)) -> Verdict:
    return judge([ms * 1000 for ms in asked_ms], seen, killed or set())


def handling(
    attempt: int = 1, *, event: int = 0, late_ms: int = 5, worker: int = 0, is_held: bool = False
) -> Handling:
    return Handling(event, attempt, 1000, late_ms, worker, is_held)


def test_what_was_settled_is_held_no_more() -> None:
    notes = list(handlings(3, SETTLED + "1 1 1000 7\n"))
    assert notes == [handling(worker=3), handling(event=1, late_ms=7, worker=3, is_held=True)]


def test_half_a_line_was_never_acted_upon() -> None:
    assert len(list(handlings(3, SETTLED + "1 1 1000"))) == 1


def test_each_event_once_and_in_time_is_good() -> None:
    assert verdict(handling()).is_good


def test_an_event_that_nobody_handled_is_missing() -> None:
    result = verdict(handling(), asked_ms=(1000, 1000))
    assert (result.missing, result.is_good) == (1, False)


def test_an_event_before_its_time_is_early() -> None:
    result = verdict(handling(late_ms=-1))
    assert (result.early, result.is_good) == (1, False)


def test_a_double_of_what_a_killed_worker_held_is_explained() -> None:
    result = verdict(handling(is_held=True), handling(2, worker=1), killed={0})
    assert (result.again, result.unexplained, result.is_good) == (1, 0, True)


@pytest.mark.parametrize(
    ("first", "killed"),
    [
        (handling(is_held=True), set[int]()),  # it lives
        (handling(is_held=False), {0}),  # it had said that it was done
        (handling(2, is_held=True), {0}),  # one token for two
    ],
)
def test_any_other_double_is_not(first: Handling, killed: set[int]) -> None:
    result = verdict(first, handling(2, worker=1), killed=killed)
    assert (result.again, result.unexplained, result.is_good) == (1, 1, False)


def test_lateness_is_told_with_and_without_those_that_waited_for_a_lease() -> None:
    held, again = handling(event=2, is_held=True), handling(2, event=2, late_ms=800)
    result = verdict(handling(), handling(2, event=1, late_ms=900), held, again, asked_ms=(1000,) * 3)
    assert (result.unhindered_ms, result.all_ms) == ([5, 5], [5, 800, 900])


def test_percentiles_of_none_are_nought() -> None:
    assert percentiles([]) == {"p50": 0, "p99": 0, "max": 0}
