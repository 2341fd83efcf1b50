"""The budget of processor time: what is left of it goes to those who have more to lose."""

import pytest

from presence.admission import RETRY_MAX_S
from presence.auth.effort import BURST_S, Caller, Effort

COST_S = 0.001


def spend(effort: Effort, caller: Caller, now: float) -> int:
    """Return how many checks a caller gets at a moment."""
    count = 0
    while effort.take(COST_S, caller, now):
        count += 1
    return count


@pytest.mark.parametrize("caller", Caller)
def test_each_caller_has_his_share_at_once(caller: Caller) -> None:
    granted = spend(Effort(0.5, 0.0), caller, 0.0)
    assert granted == pytest.approx(BURST_S * (1 - caller.value) / COST_S, abs=2)


def test_in_the_long_run_there_is_the_share() -> None:
    effort = Effort(0.25, 0.0)
    spend(effort, Caller.STRANGER, 0.0)
    granted = sum(spend(effort, Caller.STRANGER, now / 10) for now in range(1, 1001))
    assert granted * COST_S == pytest.approx(0.25 * 100, rel=0.01)


def test_who_is_logged_in_is_checked_beside_any_flood() -> None:
    effort = Effort(0.5, 0.0)
    checked = 0
    for now in range(100):
        spend(effort, Caller.GUESSER, float(now))
        spend(effort, Caller.STRANGER, float(now))
        checked += sum(effort.take(COST_S, Caller.CONNECTED, now + 0.5) for _ in range(400))
    assert checked == 100 * 400


def test_strangers_are_checked_beside_a_flood_from_addresses_that_guess() -> None:
    effort = Effort(0.5, 0.0)
    checked = 0
    for now in range(100):
        spend(effort, Caller.GUESSER, float(now))
        checked += sum(effort.take(COST_S, Caller.STRANGER, now + 0.5) for _ in range(400))
    assert checked == 100 * 400


def test_who_is_refused_is_counted_and_told_when_to_return() -> None:
    effort = Effort(0.5, 0.0)
    spend(effort, Caller.STRANGER, 0.0)
    assert effort.refused == 1
    assert 1.0 <= effort.retry_after() <= 2.0
    for _ in range(20_000):
        effort.take(COST_S, Caller.STRANGER, 0.0)
    waits = [effort.retry_after() for _ in range(200)]
    assert min(waits) >= 1.0
    assert max(waits) <= RETRY_MAX_S
    assert max(waits) > 20.0, "they are spread over the time that all of them take"


def test_nothing_is_saved_beyond_the_burst() -> None:
    effort = Effort(0.5, 0.0)
    assert spend(effort, Caller.CONNECTED, 10_000.0) == pytest.approx(BURST_S / COST_S, abs=2)
