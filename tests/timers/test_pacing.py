"""How much at once, and how soon again."""

import pytest

from presence.timers.pacing import (
    LOOK_LEAST_S,
    LOOK_MAX_S,
    QUICK_S,
    SLOW_S,
    Ahead,
    look_delay_s,
)


def test_batches_double_while_they_are_quick_up_to_a_bound() -> None:
    ahead = Ahead(9)
    sizes = []
    for _ in range(6):
        ahead.lasted(QUICK_S / 2)
        sizes.append(ahead.events)
    assert sizes == [1, 2, 4, 8, 9, 9]


def test_batches_shrink_to_nothing_ahead_while_they_are_slow() -> None:
    ahead = Ahead(9)
    for _ in range(5):
        ahead.lasted(0)
    sizes = []
    for _ in range(5):
        ahead.lasted(SLOW_S * 2)
        sizes.append(ahead.events)
    assert sizes == [4, 2, 1, 0, 0]


def test_between_quick_and_slow_nothing_changes() -> None:
    ahead = Ahead(9)
    ahead.lasted(0)
    ahead.lasted((QUICK_S + SLOW_S) / 2)
    assert ahead.events == 1


@pytest.mark.parametrize(
    ("next_s", "delay_s"), [(None, LOOK_MAX_S), (0.0, LOOK_LEAST_S), (0.05, 0.05), (99.0, LOOK_MAX_S)]
)
def test_the_next_look_comes_when_something_is_due_and_soon_in_any_case(
    next_s: float | None, delay_s: float
) -> None:
    assert look_delay_s(next_s) == delay_s
