"""Token expiry: never early, soon after, at any distance, and in batches."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presence.core.deadline_wheel import HORIZON_SLOTS, SLOT_S, DeadlineWheel

START = 1000.0
HOUR = HORIZON_SLOTS * SLOT_S


def pop_due(deadlines: DeadlineWheel[str], now: float, limit: int = 100) -> list[str]:
    """Return all keys that are due at a time."""
    keys: list[str] = []
    while (some := deadlines.pop_due(now, limit)) is not None:
        keys += some
    return keys


@settings(deadline=None)
@given(st.floats(START, START + 10 * HOUR))
def test_a_token_ends_at_its_time_or_a_slot_later(at: float) -> None:
    deadlines: DeadlineWheel[str] = DeadlineWheel(START)
    deadlines.set("ann", at)
    now, step = START, 7 * HOUR / 4
    while now + step < at:  # as often as its caller asks
        now += step
        assert pop_due(deadlines, now) == []
    assert pop_due(deadlines, at - 1e-6) == []
    assert pop_due(deadlines, at + SLOT_S) == ["ann"]
    assert len(deadlines) == 0


@pytest.mark.parametrize("second", [20.0, 3 * HOUR])
@pytest.mark.parametrize("first", [10.0, 30.0, 3 * HOUR, 4 * HOUR])
def test_a_fresh_token_replaces_the_previous_one(first: float, second: float) -> None:
    deadlines: DeadlineWheel[str] = DeadlineWheel(START)
    deadlines.set("ann", START + first)
    deadlines.set("ann", START + second)
    assert pop_due(deadlines, START + second - 1) == []
    assert pop_due(deadlines, START + second + SLOT_S) == ["ann"]
    assert pop_due(deadlines, START + 5 * HOUR) == []


def test_a_discarded_key_does_not_expire() -> None:
    deadlines: DeadlineWheel[str] = DeadlineWheel(START)
    for key, at in (("ann", 10.0), ("bob", 10 * HOUR)):
        deadlines.set(key, START + at)
        deadlines.discard(key)
        assert key not in deadlines
    deadlines.discard("absent")
    assert pop_due(deadlines, START + 20 * HOUR) == []


def test_keys_armed_again_do_not_hide_due_ones() -> None:
    deadlines: DeadlineWheel[str] = DeadlineWheel(START)
    for number in range(600):
        deadlines.set(str(number), START + 2 * HOUR)
    deadlines.set("due", START + HOUR)
    assert pop_due(deadlines, START + HOUR + SLOT_S, 100) == ["due"]
    assert len(deadlines) == 600


def test_a_token_of_a_year_needs_no_slots_for_a_year() -> None:
    deadlines: DeadlineWheel[str] = DeadlineWheel(START)
    deadlines.set("ann", START + 365 * 86_400)
    assert len(deadlines._wheel._ring) <= 2 * HORIZON_SLOTS + 1
