"""Whether a figure that was sampled over a long run grows: pure.

A straight line is fitted to the means of `BLOCKS` equal stretches of time, because neighbouring samples of
memory are alike, and would make the fit look surer than it is. The error is that of its slope, at 95 %.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

BLOCKS = 12
STUDENT_T = 2.228  # 95 %, two-sided, for the BLOCKS - 2 degrees of freedom of the fit
# A growth below this share of the mean is none; nor is one below a MB, a descriptor, an entry.
MIN_SHARE, MIN_GROWTH = 0.01, 1.0


class Trend(NamedTuple):
    """The line through one figure.

    Attributes:
        mean: of all samples.
        growth: from the first sample to the last, along the line.
        error: of `growth`, at 95 %.
    """

    mean: float
    growth: float
    error: float

    @property
    def grows(self) -> bool:
        """Whether it surely grows, and not by next to nothing."""
        return self.growth - self.error > max(MIN_GROWTH, MIN_SHARE * abs(self.mean))

    def __str__(self) -> str:
        return f"mean {self.mean:,.2f}, growth {self.growth:+,.2f} ± {self.error:,.2f}"


def trend(times: Sequence[float], values: Sequence[float]) -> Trend:
    """Fit a line.

    Args:
        times: of the samples, rising.
        values: as many.

    Raises:
        ValueError: there are fewer than `BLOCKS` samples.
    """
    if len(times) < BLOCKS:
        raise ValueError(f"{len(times)} samples, and a trend needs {BLOCKS}")
    bounds = [len(times) * number // BLOCKS for number in range(BLOCKS + 1)]
    blocks = [slice(*pair) for pair in itertools.pairwise(bounds)]
    x = [statistics.fmean(times[block]) for block in blocks]
    y = [statistics.fmean(values[block]) for block in blocks]
    slope, intercept = statistics.linear_regression(x, y)
    rest = sum((b - intercept - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    spread = sum((a - statistics.fmean(x)) ** 2 for a in x)
    span = times[-1] - times[0]
    error = STUDENT_T * math.sqrt(rest / (BLOCKS - 2) / spread)
    return Trend(statistics.fmean(values), slope * span, error * span)
