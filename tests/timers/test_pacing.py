"""How much at once, and how soon again."""

import pytest

from presence.timers.pacing import (
    LOOK_LEAST_S,
    LOOK_MAX_S,
    OUTAGE_FIRST_S,
    OUTAGE_MAX_S,
    QUICK_S,
    SLOW_S,
    Ahead,
    jittered,
    look_delay_s,
    outage_delay_s,
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
    ("failures", "delay_s"), [(1, OUTAGE_FIRST_S), (2, 2 * OUTAGE_FIRST_S), (9999, OUTAGE_MAX_S)]
)
def test_pauses_in_an_outage_double_up_to_a_bound(failures: int, delay_s: float) -> None:
    assert outage_delay_s(failures) == delay_s


@pytest.mark.parametrize(
    ("next_s", "delay_s"), [(None, LOOK_MAX_S), (0.0, LOOK_LEAST_S), (0.05, 0.05), (99.0, LOOK_MAX_S)]
)
def test_the_next_look_comes_when_something_is_due_and_soon_in_any_case(
    next_s: float | None, delay_s: float
) -> None:
    assert look_delay_s(next_s) == delay_s


def test_jitter_takes_at_most_half_away() -> None:
    drawn = [jittered(1.0) for _ in range(1000)]
    assert 0.5 <= min(drawn) < max(drawn) <= 1.0
