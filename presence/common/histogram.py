"""How long things take, counted in buckets with fixed bounds.

Noting a value is a bisection and two additions, whatever was noted before, and a histogram never grows. As
counters do, its figures only rise while a process lives: whoever wants those of the last minute takes the
difference of two samples, and those of several workers are added up.

Threads: there is no lock. Each histogram is written and read in the thread of the event loop only; a call
that is made in a thread is timed by the task that waits for it.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any, Final

# What takes milliseconds where all is well: seconds.
QUICK_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# A silent client is told about half a tick late at the median, and one tick at the most: seconds.
DETECTION_S: Final = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
# A change waits for company for 20 ms, and in an outage of Redis for as long as that lasts: seconds.
OUTBOX_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Histogram:
    """Counts of values, by bucket, and their sum.

    Args:
        bounds: the upper bound of each bucket, rising; a value on a bound belongs below it. What is above
            the last one has a bucket of its own.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value; what clocks make negative is 0."""
        value = max(0.0, value)
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def report(self) -> dict[str, Any]:
        """Return bounds, the counts of each bucket (not cumulative), and the sum."""
        return {"bounds": list(self._bounds), "counts": list(self._counts), "sum": self._sum}


@dataclass(frozen=True, slots=True)
class LatencyHistograms:
    """What a node measures, in seconds."""

    # of ends for silence, from the moment when the session's time was up to the decision
    detection_delay: Histogram = field(default_factory=lambda: Histogram(DETECTION_S))
    tick_lag: Histogram = field(default_factory=lambda: Histogram(QUICK_S))  # how late a tick began
    # how late the event loop was with a task that was due
    loop_lag: Histogram = field(default_factory=lambda: Histogram(QUICK_S))
    # calls of the relay and of the leases, failed ones too, as their tasks waited for them
    redis_call: Histogram = field(default_factory=lambda: Histogram(QUICK_S))
    # from a change's decision to Redis' acknowledgment
    outbox_age: Histogram = field(default_factory=lambda: Histogram(OUTBOX_S))

    def report(self) -> dict[str, object]:
        """Return all of them, by name."""
        return {name: getattr(self, name).report() for name in self.__slots__}
