"""Token buckets: what they let in, and when they ask the others to come back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presence.admission import (
    FULL_RETRY_S,
    RETRY_MAX_S,
    RETRY_MIN_S,
    Admission,
    AdmissionLimits,
    TokenBucket,
)


def test_a_bucket_gives_its_burst_at_once_and_no_more() -> None:
    bucket = TokenBucket(rate=10, burst=100, now=0.0)
    assert sum(bucket.take(0.0) for _ in range(150)) == 100
    assert bucket.refused == 50


@given(st.lists(st.floats(0, 5), max_size=200), st.integers(1, 50), st.integers(1, 50))
def test_no_stretch_of_time_gives_more_than_burst_and_rate(
    pauses: list[float], rate: int, burst: int
) -> None:
    bucket, now, granted = TokenBucket(rate, burst, 0.0), 0.0, []
    for pause in pauses:
        now += pause
        if bucket.take(now):
            granted.append(now)
    for first in range(len(granted)):
        for last in range(first, len(granted)):
            assert last - first + 1 <= burst + rate * (granted[last] - granted[first]) + 1e-6


def test_tokens_come_back_at_their_rate() -> None:
    bucket = TokenBucket(rate=10, burst=5, now=0.0)
    assert all(bucket.take(0.0) for _ in range(5))
    assert not bucket.take(0.05)
    assert bucket.take(0.1)
    assert sum(bucket.take(60.0) for _ in range(10)) == 5, "no more than the burst is kept"


def test_a_crowd_that_obeys_is_served_at_the_rate_and_without_end() -> None:
    bucket, rate, crowd = TokenBucket(rate=100, burst=200, now=0.0), 100, 3000
    due = [0.0] * crowd
    attempts = 0
    served: list[float] = []
    while due:
        due.sort()
        now = due.pop(0)
        attempts += 1
        if bucket.take(now):
            served.append(now)
        else:
            due.append(now + bucket.retry_after())
    least = (crowd - 200) / rate
    assert served[-1] < 4 * least, "nobody waits much longer than the rate demands"
    assert attempts < 4 * crowd, "and few knock in vain more than once or twice"
    waves = [sum(second <= at < second + 1 for at in served[200:]) for second in range(1, int(least))]
    assert max(waves) <= 2 * rate + 200


def test_a_time_to_return_has_bounds() -> None:
    bucket = TokenBucket(rate=1, burst=1, now=0.0)
    for _ in range(10_000):
        bucket.take(0.0)
    waits = [bucket.retry_after() for _ in range(1000)]
    assert min(waits) >= RETRY_MIN_S
    assert max(waits) <= RETRY_MAX_S


@pytest.mark.parametrize(("open_now", "welcome"), [(9, True), (10, False), (11, False)])
def test_connections_at_once_are_bounded(open_now: int, welcome: bool) -> None:
    admission = Admission(AdmissionLimits(max_connections=10), 0.0)
    retry_after = admission.connection(open_now, 0.0)
    assert (retry_after is None) is welcome
    assert retry_after is None or RETRY_MIN_S <= retry_after <= FULL_RETRY_S


def test_the_defaults_admit_twenty_thousand_at_once() -> None:
    admission = Admission(AdmissionLimits(max_connections=20_000), 0.0)
    assert all(admission.connection(number, 0.0) is None for number in range(20_000))
    assert all(admission.login(0.0) is None for _ in range(20_000))
