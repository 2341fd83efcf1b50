"""Histograms of durations, with fixed buckets.

To observe a value takes a bisection and two additions, and a histogram never grows. Like counters, its values
only rise while a process lives: the difference of two samples has the values between them, and histograms of
several workers can be added.

There is no lock. Each histogram is used only in the thread of the event loop; a call that runs in a worker
thread is timed by the task that waits for it.

Tests: `tests/outbox/test_pending_ages.py`, `tests/server/test_ticker.py`.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any, Final

# For what usually takes milliseconds: seconds.
QUICK_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Idle sessions end half a tick late at the median, at most one tick (`detection_bounds` adds that): seconds.
DETECTION_S: Final = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
# A change waits up to 0.2 s for others, and in an outage of Redis as long as that lasts: seconds.
OUTBOX_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Histogram:
    """Counts of values, by bucket, and their sum.

    `bounds` are the upper bounds of the buckets, rising and inclusive. Higher values have a bucket of their
    own.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, once or several times; a negative one counts as 0."""
        value = max(0.0, value)
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def report(self) -> dict[str, Any]:
        """Return bounds, the counts of each bucket (not cumulative), and the sum."""
        return {"bounds": list(self._bounds), "counts": list(self._counts), "sum": self._sum}


def detection_bounds(tick_s: float) -> tuple[float, ...]:
    """Return the bounds for detection delays of a server with this tick, which is one of them.

    Otherwise the bucket around the tick would have delays by design and late ones, and no reader of the
    histogram could tell them apart.
    """
    return tuple(sorted({*DETECTION_S, tick_s}))


@dataclass(frozen=True, slots=True)
class LatencyHistograms:
    """Latencies of a node, in seconds."""

    # from the expiry of an idle session to the decision to end it
    detection_delay: Histogram = field(default_factory=lambda: Histogram(DETECTION_S))
    tick_lag: Histogram = field(default_factory=lambda: Histogram(QUICK_S))  # how late a tick began
    # how late the event loop ran a task that was due
    loop_lag: Histogram = field(default_factory=lambda: Histogram(QUICK_S))
    # calls of relay and lease renewal, including failed ones, as seen by their tasks
    redis_call: Histogram = field(default_factory=lambda: Histogram(QUICK_S))
    # from a change's decision to Redis' acknowledgment
    outbox_age: Histogram = field(default_factory=lambda: Histogram(OUTBOX_S))

    def report(self) -> dict[str, object]:
        """Return all of them, by name."""
        return {name: getattr(self, name).report() for name in self.__slots__}
