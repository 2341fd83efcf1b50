"""What makes a run fail beside a broken promise."""

from argparse import Namespace

import pytest

from loadtest.options import exceeded


class Entry:
    """A row of locust's statistics."""

    def __init__(self, p99_ms: float) -> None:
        self._p99_ms = p99_ms

    def get_response_time_percentile(self, percent: float) -> float:
        assert percent == 0.99
        return self._p99_ms


def over(failures: int = 0, login_ms: float = 10.0, answer_ms: float = 10.0, **options: float) -> list[str]:
    limits = {"login_p99_max": 1.0, "answer_p99_max": 0.5, "failures_max": 0} | options
    rows = {("login", "device"): Entry(login_ms), ("keepalive, answered", "device"): Entry(answer_ms)}
    return exceeded(rows, failures, Namespace(**limits))


def test_a_run_within_all_limits_passes() -> None:
    assert over(login_ms=1000.0, answer_ms=500.0) == []


@pytest.mark.parametrize(
    ("run", "word"),
    [({"failures": 1}, "1 failures"), ({"login_ms": 1001.0}, "login"), ({"answer_ms": 501.0}, "answered")],
)
def test_a_run_over_one_limit_fails_by_its_name(run: dict[str, float], word: str) -> None:
    (found,) = over(**run)  # type: ignore[arg-type] # failures are whole
    assert word in found


def test_a_limit_of_no_seconds_is_none() -> None:
    assert over(login_ms=9e9, login_p99_max=0.0) == []


def test_failures_that_are_allowed_pass() -> None:
    assert over(failures=3, failures_max=3) == []


def test_what_was_never_done_is_within_its_limit() -> None:
    assert exceeded({}, 0, Namespace(login_p99_max=1.0, answer_p99_max=0.5, failures_max=0)) == []
