"""Samples of times: percentiles, and whether two samples can be told apart. No clock, no I/O."""

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple


def percentile(times: Iterable[float], share: float) -> float:
    """Return the time below which that share of them lies, by nearest rank; nan without any."""
    ranked = sorted(times)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else math.nan


class Spread(NamedTuple):
    """Median, 99th percentile and greatest of some times."""

    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, times: Sequence[float]) -> "Spread":
        """Return it; nan without any."""
        return cls(percentile(times, 0.5), percentile(times, 0.99), max(times, default=math.nan))

    def ms(self) -> str:
        """Return it in words; the times are seconds."""
        return " / ".join(f"{time * 1000:.2f}" for time in self) + " ms"


class Ratios(NamedTuple):
    """The median of pairs' ratios, and between what it lies in 95 of 100 runs (by the sign test's ranks)."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Iterable[float]) -> "Ratios":
        """Return it for the ratios of some pairs; with fewer than six no interval is that sure."""
        ranked = sorted(ratios)
        count = len(ranked)
        below = int(count / 2 - 0.98 * math.sqrt(count)) if count > 5 else 0
        return cls(statistics.median(ranked), ranked[below], ranked[count - 1 - below])

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


class Difference(NamedTuple):
    """How two samples differ, by the test of Mann and Whitney (two-sided; normal approximation with ties).

    Attributes:
        p: how probable so great a difference is where there is none.
        effect: the probability that one of the first is greater than one of the second; 0.5 is none.
    """

    p: float
    effect: float


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Compare two samples of twenty or more each.

    The statistic is U = R - n(n + 1) / 2 with the rank sum R of the first; under the null hypothesis its mean
    is nm / 2 and its variance nm / 12 (N + 1 - sum(t^3 - t) / N(N - 1)) over the ties t, N = n + m.
    """
    n, m = len(first), len(second)
    total = n + m
    ranked = sorted([*first, *second])
    ties = sum(t**3 - t for t in (len(list(group)) for _, group in groupby(ranked)))
    rank_sum = sum(_rank(ranked, value) for value in first)
    u = rank_sum - n * (n + 1) / 2
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    if not variance:
        return Difference(1.0, 0.5)
    z = max(0.0, abs(u - n * m / 2) - 0.5) / math.sqrt(variance)
    return Difference(math.erfc(z / math.sqrt(2)), u / (n * m))


def _rank(ranked: Sequence[float], value: float) -> float:
    """Return the rank of a value, from 1; that of equal ones is their mean."""
    low = bisect_left(ranked, value)
    high = low + 1
    while high < len(ranked) and ranked[high] == value:
        high += 1
    return (low + 1 + high) / 2


def holm(tests: Sequence[float]) -> float:
    """Return the smallest of several tests' p, corrected for their number."""
    return min(1.0, len(tests) * min(tests, default=1.0))
