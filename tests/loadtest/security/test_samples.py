"""Percentiles, ratios of pairs, and a test that tells two samples apart where they differ, and only there."""

import random

import pytest

from loadtest.security.samples import Ratios, Spread, holm, mann_whitney, percentile


def test_a_percentile_is_one_of_the_times() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile(range(1, 101), 0.99) == 100
    assert percentile([5.0], 0.99) == 5.0


def test_a_spread_says_milliseconds() -> None:
    assert Spread.of([0.001, 0.002, 0.003]).ms() == "2.00 / 3.00 / 3.00 ms"


def test_the_median_of_ratios_lies_within_its_interval() -> None:
    ratios = Ratios.of([1.0 + number / 100 for number in range(21)])
    assert ratios.median == 1.1
    assert 1.0 < ratios.low < ratios.median < ratios.high < 1.2


def test_few_pairs_have_the_widest_interval() -> None:
    assert Ratios.of([0.9, 1.0, 1.3]) == (1.0, 0.9, 1.3)


def test_a_small_example_of_mann_and_whitney() -> None:
    # U = 4 of 25, no ties: z = (|4 - 12.5| - 0.5) / sqrt(25 * 11 / 12) = 1.671
    found = mann_whitney([1, 2, 3, 5, 7.5], [4, 6, 7, 8, 9])
    assert found.p == pytest.approx(0.0947, abs=1e-3)
    assert found.effect == pytest.approx(4 / 25)


def test_ties_make_a_difference_no_greater() -> None:
    assert mann_whitney([1.0] * 30, [1.0] * 30).p == 1.0
    assert mann_whitney([1, 1, 2, 2] * 10, [1, 1, 2, 2] * 10).p > 0.99


@pytest.mark.parametrize("seed", range(5))
def test_samples_of_one_kind_are_not_told_apart(seed: int) -> None:
    chance = random.Random(seed)
    first, second = ([chance.expovariate(1.0) for _ in range(5000)] for _ in range(2))
    assert mann_whitney(first, second).p > 0.001


def test_a_tenth_of_a_standard_deviation_is_found_in_ten_thousand() -> None:
    chance = random.Random(1)
    first = [chance.gauss(0.0, 1.0) for _ in range(10_000)]
    second = [chance.gauss(0.1, 1.0) for _ in range(10_000)]
    found = mann_whitney(first, second)
    assert found.p < 1e-6
    assert found.effect < 0.5


def test_of_many_tests_one_may_be_improbable() -> None:
    assert holm([0.02, 0.5, 0.9]) == pytest.approx(0.06)
    assert holm([0.9, 0.8]) == 1.0
