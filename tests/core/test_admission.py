"""Admission control and token buckets: what they grant, and the retry times of refusals."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presence.common.clock import Clock
from presence.common.rate_limit import RETRY_MAX_S, RETRY_MIN_S, KeyedRateLimiter, TokenBucket
from presence.core.admission import FULL_RETRY_S, Admission, AdmissionLimits
from presence.core.authenticator import Refusal
from presence.protocol import Code

ADDRESS = "192.0.2.7"
STILL = Clock(lambda: 0.0, lambda: 0.0)


@given(st.lists(st.floats(0, 5), max_size=200), st.integers(1, 50), st.integers(1, 50))
def test_no_period_grants_more_than_burst_and_rate(pauses: list[float], rate: int, burst: int) -> None:
    bucket, now, granted = TokenBucket(rate, burst, 0.0), 0.0, []
    for pause in pauses:
        now += pause
        if bucket.take(now):
            granted.append(now)
    for first in range(len(granted)):
        for last in range(first, len(granted)):
            assert last - first + 1 <= burst + rate * (granted[last] - granted[first]) + 1e-6


def test_a_crowd_that_obeys_retry_times_is_served_at_the_rate() -> None:
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
    assert served[-1] < 4 * least, "no client waits much longer than the rate demands"
    assert attempts < 4 * crowd, "few clients are refused more than twice"
    waves = [sum(second <= at < second + 1 for at in served[200:]) for second in range(1, int(least))]
    assert max(waves) <= 2 * rate + 200


@pytest.mark.parametrize(("open_now", "welcome"), [(9, True), (10, False), (11, False)])
def test_open_connections_are_bounded(open_now: int, welcome: bool) -> None:
    admission = Admission(AdmissionLimits(max_connections=10), STILL)
    retry_after = admission.admit_connection(open_now)
    assert (retry_after is None) is welcome
    assert retry_after is None or RETRY_MIN_S <= retry_after <= FULL_RETRY_S


def test_connections_of_one_address_are_bounded_without_effect_on_others() -> None:
    admission = Admission(AdmissionLimits(address_connections=3), STILL)
    assert [admission.add_connection(ADDRESS) for _ in range(3)] == [None] * 3
    refusal = admission.add_connection(ADDRESS)
    assert refusal is not None
    assert refusal.code is Code.RATE_LIMITED
    assert refusal.retry_after is not None
    assert RETRY_MIN_S <= refusal.retry_after <= FULL_RETRY_S
    assert admission.add_connection("192.0.2.8") is None
    admission.remove_connection(ADDRESS)
    assert admission.add_connection(ADDRESS) is None
    assert admission.statistics().address_connections_refused == 1
    assert admission.statistics().address_connections_kept == 2
    for address in (ADDRESS, ADDRESS, ADDRESS, "192.0.2.8"):
        admission.remove_connection(address)
    assert admission.statistics().address_connections_kept == 0


def logins(admission: Admission, count: int, address: str, uid: str) -> list[Refusal]:
    """Log in that often; return the refusals."""
    answers = [admission.admit_login(address, uid) for _ in range(count)]
    return [each for each in answers if each is not None]


def test_logins_from_one_address_are_bounded_by_rate_and_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    now = 0.0
    clock = Clock(lambda: now, lambda: 0.0)
    admission = Admission(AdmissionLimits(address_login_rate=10, address_login_burst=20), clock)
    refusals = logins(admission, 50, ADDRESS, "ada")
    assert len(refusals) == 30
    assert {each.code for each in refusals} == {Code.RATE_LIMITED}
    spread = [each.retry_after for each in refusals]
    assert spread[-1] == RETRY_MIN_S + 2 * 30 / 10, "30 at 10 a second, spread over twice the time"
    assert logins(admission, 20, "192.0.2.8", "ada") == []
    now = 1.0
    assert len(logins(admission, 20, ADDRESS, "ada")) == 10
    assert admission.statistics().address_logins_refused == 40


def test_logins_of_one_user_are_bounded_wherever_they_come_from() -> None:
    admission = Admission(AdmissionLimits(uid_login_rate=1, uid_login_burst=5), STILL)
    refusals = [admission.admit_login(f"192.0.2.{number}", "ada") for number in range(8)]
    assert [each and each.code for each in refusals] == [None] * 5 + [Code.RATE_LIMITED] * 3
    assert logins(admission, 5, ADDRESS, "bob") == []
    assert admission.statistics().uid_logins_refused == 3


def test_a_login_refused_by_one_limit_is_not_charged_to_the_others() -> None:
    limits = AdmissionLimits(
        login_burst=30, login_rate=1, address_login_rate=1, address_login_burst=20, uid_login_rate=1,
        uid_login_burst=10,
    )  # fmt: skip
    admission = Admission(limits, STILL)
    assert len(logins(admission, 100, ADDRESS, "ada")) == 90, "the user's limit"
    assert len(logins(admission, 100, ADDRESS, "")) == 90, "the address has 10 of 20 left"
    assert len(logins(admission, 100, "", "")) == 90, "the server has 10 of 30 left"
    assert logins(admission, 1, "", "")[0].code is Code.BUSY


def test_a_check_without_a_user_counts_nothing() -> None:
    admission = Admission(AdmissionLimits(address_login_rate=1, address_login_burst=2), STILL)
    assert [admission.check_login(ADDRESS) for _ in range(10)] == [None] * 10
    assert logins(admission, 2, ADDRESS, "ada") == []
    refusal = admission.check_login(ADDRESS)
    assert refusal is not None
    assert refusal.code is Code.RATE_LIMITED


def test_the_defaults_admit_a_burst_of_twenty_thousand_and_do_not_count_by_address_or_user() -> None:
    admission = Admission(AdmissionLimits(max_connections=20_000), STILL)
    assert all(admission.admit_connection(number) is None for number in range(20_000))
    assert logins(admission, 20_000, ADDRESS, "ada") == []
    statistics = admission.statistics()
    assert (statistics.address_logins_kept, statistics.uid_logins_kept) == (0, 0)


def test_tables_are_empty_again_when_all_buckets_are_full() -> None:
    limits = AdmissionLimits(address_login_rate=10, address_login_burst=10, uid_login_rate=10)
    now = 0.0
    admission = Admission(limits, Clock(lambda: now, lambda: 0.0))
    for number in range(1000):
        admission.admit_login(f"192.0.{number // 250}.{number % 250}", f"user-{number}")
    statistics = admission.statistics()
    assert (statistics.address_logins_kept, statistics.uid_logins_kept) == (1000, 1000)
    now = 1.0
    admission.tidy()
    statistics = admission.statistics()
    assert (statistics.address_logins_kept, statistics.uid_logins_kept) == (0, 0)


# KeyedRateLimiter


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 3), st.integers(1, 4)), max_size=200)


@given(STEPS, st.integers(1, 20), st.integers(4, 30))
def test_a_key_is_granted_what_a_single_bucket_grants(
    steps: list[tuple[str, float, int]], rate: int, burst: int
) -> None:
    buckets = KeyedRateLimiter[str](rate, burst)
    tokens, at, now = dict.fromkeys("abc", float(burst)), dict.fromkeys("abc", 0.0), 0.0
    for key, pause, wanted in steps:
        now += pause
        tokens[key] = min(burst, tokens[key] + (now - at[key]) * rate)
        at[key] = now
        if 1e-12 < abs(tokens[key] - wanted) < 1e-6:
            continue  # rounding
        granted = tokens[key] >= wanted - 1e-12
        assert buckets.has(key, now, wanted) is granted
        assert buckets.take(key, now, wanted) is granted
        if granted:
            tokens[key] -= wanted


def test_retry_times_are_spread_over_the_time_that_all_refused_tokens_need() -> None:
    buckets, single = KeyedRateLimiter[str](rate=10, burst=5), TokenBucket(rate=1, burst=1, now=0.0)
    for _ in range(25):
        buckets.take("ada", 0.0)
    for _ in range(10_000):
        single.take(0.0)
    alone = [single.retry_after() for _ in range(1000)]
    assert RETRY_MIN_S <= min(alone) < max(alone) <= RETRY_MAX_S
    waits = [buckets.retry_after("ada", 0.0) for _ in range(200)]
    assert min(waits) >= RETRY_MIN_S
    assert 4.0 < max(waits) <= RETRY_MIN_S + 2 * 2.0, "spread over twice that time"
    assert max(buckets.retry_after("ada", 1.9) for _ in range(200)) <= 2 * RETRY_MIN_S


def test_missing_tokens_have_a_wait_and_only_granted_ones_are_charged() -> None:
    buckets = KeyedRateLimiter[str](rate=10, burst=100)
    assert not buckets.take("ada", 0.0, 200)
    assert buckets.wait_s("ada", 0.0, 200) == 10
    assert buckets.take("ada", 0.0, 100)
    assert buckets.wait_s("ada", 0.0) == pytest.approx(0.1)
    assert buckets.wait_s("ada", 2.0, 30) == pytest.approx(1.0)
    assert buckets.wait_s("bob", 0.0, 100) == 0


def test_a_charge_is_never_refused_and_overdraws_the_bucket() -> None:
    buckets = KeyedRateLimiter[str](rate=10, burst=100)
    buckets.charge("ada", 0.0, 90)
    assert buckets.wait_s("ada", 0.0, 20) == pytest.approx(1.0)
    buckets.charge("ada", 0.0, 10**6)
    assert not buckets.has("ada", 10.0, 10)
    assert buckets.has("ada", 11.0, 10), "a debt has a bound"
    buckets.drop("ada")
    assert len(buckets) == 0


def test_an_empty_bucket_does_not_keep_full_ones_in_the_table() -> None:
    buckets = KeyedRateLimiter[int](rate=10, burst=10_000)
    assert buckets.take(-1, 0.0, 10_000)
    for number in range(10_000):
        buckets.take(number, now=number / 1000)
    assert len(buckets) < 500
    assert not buckets.has(-1, 10.0, 5000)


def test_tidying_empties_an_unused_table() -> None:
    buckets = KeyedRateLimiter[int](rate=10, burst=10)
    for number in range(1000):
        buckets.take(number, 0.0)
    buckets.tidy(1.0, 600)
    assert len(buckets) == 400
    buckets.tidy(1.0, 600)
    assert len(buckets) == 0


def test_the_table_is_bounded_and_drops_the_least_recently_used() -> None:
    buckets = KeyedRateLimiter[int](rate=1, burst=2, size=100)
    for number in range(1000):
        buckets.take(number, 0.0)
        buckets.take(-1, 0.0)  # refused from the third time on
    assert len(buckets) <= 100
    assert buckets.forgotten >= 900
    assert not buckets.has(-1, 0.0), "a key that keeps asking is kept"
    assert buckets.has(0, 0.0, 2), "it was forgotten, and is full again"
