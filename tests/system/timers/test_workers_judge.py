"""Workers that share a timer and are killed: the verdict notices each fault."""

import pytest

from tests.system.timers.workers import Handling, WorkersVerdict, handlings, judge

GOOD = Handling(event=0, attempt=1, at_ms=1005, worker=0, is_unacknowledged=False)
HELD = GOOD._replace(is_unacknowledged=True)
SECOND = Handling(event=0, attempt=2, at_ms=1900, worker=1, is_unacknowledged=False)


@pytest.mark.parametrize(
    ("seen", "killed", "verdict"),
    [
        ([GOOD], set(), WorkersVerdict(0, 0, 0, 0)),
        ([], set(), WorkersVerdict(1, 0, 0, 0)),
        ([GOOD._replace(at_ms=999)], set(), WorkersVerdict(0, 1, 0, 0)),
        ([HELD, SECOND], {0}, WorkersVerdict(0, 0, 1, 0)),
        ([HELD, SECOND], set(), WorkersVerdict(0, 0, 1, 1)),  # the first worker lives
        ([GOOD, SECOND], {0}, WorkersVerdict(0, 0, 1, 1)),  # it had been told that this was done
        ([HELD._replace(attempt=2), SECOND], {0}, WorkersVerdict(0, 0, 1, 1)),  # one attempt for two
    ],
)
def test_only_a_double_of_what_a_killed_worker_held_is_good(
    seen: list[Handling], killed: set[int], verdict: WorkersVerdict
) -> None:
    found = judge([1000.0], seen, killed)
    assert found == verdict
    assert found.is_good == (verdict in (WorkersVerdict(0, 0, 0, 0), WorkersVerdict(0, 0, 1, 0)))


def test_what_is_done_is_held_no_more_and_half_a_line_counts_for_nothing() -> None:
    assert list(handlings(0, "0 1 1005\n-\n1 1 1007\n2 1 10")) == [GOOD, HELD._replace(event=1, at_ms=1007)]
