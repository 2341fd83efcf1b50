"""Buckets by key: each as a bucket by itself, in a table that holds no more than it must."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presence.buckets import RETRY_MIN_S, Buckets

STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 3), st.integers(1, 4)), max_size=200)


@given(STEPS, st.integers(1, 20), st.integers(4, 30))
def test_each_is_granted_what_a_bucket_by_itself_would_grant(
    steps: list[tuple[str, float, int]], rate: int, burst: int
) -> None:
    buckets = Buckets[str](rate, burst)
    tokens, at, now = dict.fromkeys("abc", float(burst)), dict.fromkeys("abc", 0.0), 0.0
    for key, pause, wanted in steps:
        now += pause
        tokens[key] = min(burst, tokens[key] + (now - at[key]) * rate)
        at[key] = now
        if 1e-12 < abs(tokens[key] - wanted) < 1e-6:
            continue  # a matter of rounding
        granted = tokens[key] >= wanted - 1e-12
        assert buckets.has(key, now, wanted) is granted
        assert buckets.take(key, now, wanted) is granted
        if granted:
            tokens[key] -= wanted


def test_looking_takes_nothing() -> None:
    buckets = Buckets[str](rate=1, burst=1)
    assert all(buckets.has("ada", 0.0) for _ in range(10))
    assert len(buckets) == 0
    assert buckets.take("ada", 0.0)


def test_the_wait_is_the_time_in_which_all_who_were_refused_can_be_served() -> None:
    buckets = Buckets[str](rate=10, burst=5)
    for _ in range(25):
        buckets.take("ada", 0.0)
    waits = [buckets.retry_after("ada", 0.0) for _ in range(200)]
    assert min(waits) >= RETRY_MIN_S
    assert 4.0 < max(waits) <= RETRY_MIN_S + 2 * 2.0, "spread over twice that time"
    assert max(buckets.retry_after("ada", 1.9) for _ in range(200)) <= 2 * RETRY_MIN_S


def test_whoever_lacks_tokens_is_told_for_how_long_and_pays_for_what_he_gets_only() -> None:
    buckets = Buckets[str](rate=10, burst=100)
    assert not buckets.take("ada", 0.0, 200)
    assert buckets.lack_s("ada", 0.0, 200) == 10
    assert buckets.take("ada", 0.0, 100)
    assert buckets.lack_s("ada", 0.0) == pytest.approx(0.1)
    assert buckets.lack_s("ada", 2.0, 30) == pytest.approx(1.0)
    assert buckets.lack_s("bob", 0.0, 100) == 0


def test_what_is_never_refused_is_paid_for_all_the_same() -> None:
    buckets = Buckets[str](rate=10, burst=100)
    buckets.charge("ada", 0.0, 90)
    assert buckets.lack_s("ada", 0.0, 20) == pytest.approx(1.0)
    buckets.charge("ada", 0.0, 10**6)
    assert not buckets.has("ada", 10.0, 10)
    assert buckets.has("ada", 11.0, 10), "a debt has a bound"
    buckets.drop("ada")
    assert len(buckets) == 0


def test_one_that_stays_empty_keeps_no_full_one_in_the_table() -> None:
    buckets = Buckets[int](rate=10, burst=10_000)
    assert buckets.take(-1, 0.0, 10_000)
    for number in range(10_000):
        buckets.take(number, now=number / 1000)
    assert len(buckets) < 500
    assert not buckets.has(-1, 10.0, 5000)


def test_tidying_empties_a_table_that_nobody_uses_any_more() -> None:
    buckets = Buckets[int](rate=10, burst=10)
    for number in range(1000):
        buckets.take(number, 0.0)
    buckets.tidy(1.0, 600)
    assert len(buckets) == 400
    buckets.tidy(1.0, 600)
    assert len(buckets) == 0


def test_the_table_is_bounded_and_the_idlest_is_forgotten() -> None:
    buckets = Buckets[int](rate=1, burst=2, size=100)
    for number in range(1000):
        buckets.take(number, 0.0)
        buckets.take(-1, 0.0)  # refused from the third time on
    assert len(buckets) <= 100
    assert buckets.forgotten >= 900
    assert not buckets.has(-1, 0.0), "whoever keeps asking is not"
    assert buckets.has(0, 0.0, 2), "it was forgotten, and is full"
