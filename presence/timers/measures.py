"""What a timer service has done, and how late it was: in bounded memory, however long it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

FINE_S: Final = 0.0001
COARSE_S: Final = 0.01
BUCKETS: Final = 1_000  # a row: 0.1 s of fine ones, 10 s of coarse ones; what is later counts as the maximum


@dataclass(frozen=True, slots=True)
class Lateness:
    """Seconds between deadline and callback.

    Percentiles are rounded up, to 0.1 ms below 0.1 s and to 10 ms above.
    """

    count: int
    mean_s: float
    p50_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class TimerStatistics:
    """What a service has done.

    Attributes:
        pending: timers that wait, async callbacks in line among them.
        fired, cancelled: timers so far.
        running, held, held_total, errors, handler_errors: see `Callbacks`.
        refused: orders of other threads that found no room.
        slice_max_s: the longest time for which callbacks kept the loop from everybody else.
        lateness: callback after deadline; a look at the clock counts for some callbacks.
    """

    pending: int
    fired: int
    cancelled: int
    running: int
    held: int
    held_total: int
    errors: int
    handler_errors: int
    refused: int
    slice_max_s: float
    lateness: Lateness


class LatenessHistogram:
    """Counts lateness in two rows of buckets, fine ones for what is usual; 16 kB, however much it counts."""

    __slots__ = ("_coarse", "_count", "_fine", "_max_s", "_sum_s")

    def __init__(self) -> None:
        self._fine = [0] * BUCKETS
        self._coarse = [0] * (BUCKETS + 1)
        self._count = 0
        self._sum_s = 0.0
        self._max_s = 0.0

    def note(self, seconds: Sequence[float]) -> None:
        """Count these, none of which is negative."""
        if not seconds:
            return
        fine, coarse = self._fine, self._coarse
        for late_s in seconds:
            bucket = int(late_s * (1 / FINE_S))
            if bucket < BUCKETS:
                fine[bucket] += 1
            else:
                coarse[min(int(late_s / COARSE_S), BUCKETS)] += 1
        self._count += len(seconds)
        self._sum_s += sum(seconds)
        self._max_s = max(self._max_s, *seconds)

    def statistics(self) -> Lateness:
        """Return the figures so far; zeros if nothing was counted."""
        mean_s = self._sum_s / self._count if self._count else 0.0
        return Lateness(self._count, mean_s, self._percentile(0.5), self._percentile(0.99), self._max_s)

    def _percentile(self, share: float) -> float:
        rank, seen = share * self._count, 0
        for width_s, row in ((FINE_S, self._fine), (COARSE_S, self._coarse[:BUCKETS])):
            for number, count in enumerate(row):
                seen += count
                if count and seen >= rank:
                    return min((number + 1) * width_s, self._max_s)
        return self._max_s
