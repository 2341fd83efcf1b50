"""Samples of times: how much longer they are, and whether two samples can be told apart. No clock, no I/O."""

import math
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence

from loadtest.outcome import percentile


def ratio(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], share: float) -> float:
    """Return how many times as long a percentile of the first is, as the median of pairs of runs."""
    pairs = zip(first, second, strict=True)
    return statistics.median(percentile(one, share) / percentile(other, share) for one, other in pairs)


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """Return how probable so great a difference of two samples is where there is none.

    Each has twenty or more. The test is two-sided, by the normal approximation with ties. The statistic is
    U = R - n(n + 1) / 2 with the rank sum R of the first; under the null hypothesis its mean is nm / 2 and
    its variance nm / 12 (N + 1 - sum(t^3 - t) / N(N - 1)) over the ties t, N = n + m.
    """
    n, m = len(first), len(second)
    total = n + m
    ranked = sorted([*first, *second])
    ties = sum(t**3 - t for t in Counter(ranked).values())
    ranks = sum((bisect_left(ranked, value) + 1 + bisect_right(ranked, value)) / 2 for value in first)
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    if not variance:
        return 1.0
    u = ranks - n * (n + 1) / 2
    return math.erfc(max(0.0, abs(u - n * m / 2) - 0.5) / math.sqrt(2 * variance))
