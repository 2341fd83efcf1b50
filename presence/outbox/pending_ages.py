"""How old the pending changes of the outbox are."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from presence.common.histogram import Histogram
from presence.core.changes import Change

BUCKET_MS: Final = 50  # resolution of the oldest age: only ages of seconds matter


class PendingAges:
    """Ages of pending changes: of the oldest, and of each when it is acknowledged.

    Changes leave in another order than they were added (ends are held back after an outage). So they are
    counted by the time of their decision, in buckets: O(1) to add or remove one. The number of buckets grows
    with the length of an outage, 5 MB per hour, and never exceeds the number of changes. Times are of the
    node's own clock, which a step of the wall clock does not move.

    Args:
        now_ms: Unix milliseconds of decisions.
        acknowledged: observes the age of each acknowledged change, seconds.
    """

    def __init__(self, now_ms: Callable[[], int], acknowledged: Histogram) -> None:
        self._now_ms = now_ms
        self._acknowledged = acknowledged
        self._buckets: dict[int, int] = {}  # number of changes by bucket, oldest first: time does not go back

    def add(self, change: Change) -> None:
        bucket = change.at_ms // BUCKET_MS
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    def remove(self, changes: Iterable[Change]) -> None:
        """Remove changes that were added, whether they were acknowledged or released."""
        for bucket, number in Counter(change.at_ms // BUCKET_MS for change in changes).items():
            remaining = self._buckets[bucket] - number
            if remaining:
                self._buckets[bucket] = remaining
            else:
                del self._buckets[bucket]

    def acknowledge(self, changes: Iterable[Change]) -> None:
        """Observe the ages of changes that Redis has acknowledged."""
        now_ms = self._now_ms()
        for at_ms, number in Counter(change.at_ms for change in changes).items():
            self._acknowledged.observe((now_ms - at_ms) / 1000, number)

    def oldest_s(self) -> float:
        """Return the age of the oldest pending change; 0.0 if there is none."""
        bucket = next(iter(self._buckets), None)
        return 0.0 if bucket is None else max(0.0, (self._now_ms() - bucket * BUCKET_MS) / 1000)
