"""The next slots of the wheel, for operators."""

import pytest

from presence.outlook import SLOTS_MAX, outlook
from presence.ticks import Ticks
from presence.wheel import TimingWheel

T, SLOT = 30.0, 0.5


def wheel_of(*slots: int) -> TimingWheel[str]:
    """A wheel with one key due at each of these slots."""
    wheel: TimingWheel[str] = TimingWheel()
    for n, slot in enumerate(slots):
        wheel.touch(f"u{n}", slot)
    return wheel


def test_the_first_slot_is_due_when_the_hand_comes_to_it() -> None:
    assert outlook(wheel_of(1), Ticks(SLOT, 10.0), 10.1, T)["next_s"] == pytest.approx(0.4)


def test_a_slot_that_is_overdue_is_due_at_once() -> None:
    assert outlook(wheel_of(1), Ticks(SLOT, 0.0), 7.0, T)["next_s"] == 0.0


def test_there_are_not_more_slots_than_a_sample_can_hold() -> None:
    found = outlook(wheel_of(1, 5000), Ticks(0.025, 0.0), 0.0, 3600.0)
    assert len(found["sizes"]) == SLOTS_MAX
    assert found["later"] == 1
