"""Slots: their arithmetic, and credit."""

from hypothesis import example, given
from hypothesis import strategies as st

from presence.core.slots import SlotClock


@given(origin=st.floats(0, 1e6), slot_s=st.floats(0.001, 5), after_s=st.floats(0, 4e7))
@example(origin=0.0, slot_s=0.01, after_s=0.07)  # 0.07 / 0.01 is more than 7
@example(origin=0.0, slot_s=0.01, after_s=0.29)  # 0.29 / 0.01 is less than 29
def test_a_slot_is_the_first_at_or_after_a_deadline_and_the_last_begun(
    origin: float, slot_s: float, after_s: float
) -> None:
    slots, at = SlotClock(slot_s, origin), origin + after_s
    due, last_started = slots.at_or_after(at), slots.at_or_before(at)
    assert slots.start_of(due - 1) < at <= slots.start_of(due)
    assert slots.start_of(last_started) <= at < slots.start_of(last_started + 1)
    assert slots.at_or_before(slots.start_of(due)) == due


def test_credit_delays_existing_deadlines_and_not_later_ones() -> None:
    slots = SlotClock(0.5, 0.0)
    before = slots.at_or_after(10.0)
    slots.credit(4.0)
    assert slots.start_of(before) == 14.0
    assert slots.start_of(slots.at_or_after(20.0)) == 20.0
