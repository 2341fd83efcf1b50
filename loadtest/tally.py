"""What happens too often for an event of locust's each: noted here, and told once a second.

The report stays exact, for every exchange is in it with its time; nothing is sampled. Only other listeners of
locust's request event do not see these. Such an event costs more than the beat that it would tell of.
"""

import time

from locust.stats import RequestStats, StatsEntry


class Tally:
    """Figures by name, until `flush` adds them to locust's.

    Args:
        stats: locust's.
        kind: the type of the rows in the report.
    """

    def __init__(self, stats: RequestStats, kind: str) -> None:
        self._stats = stats
        self._kind = kind
        self._is_open = True
        self._counts: dict[str, int] = {}
        self._times_ms: dict[str, list[float]] = {}

    def count(self, name: str, number: int = 1) -> None:
        """Note what has no time."""
        self._counts[name] = self._counts.get(name, 0) + number

    def took(self, name: str, seconds: float) -> None:
        """Note what took a time."""
        self._times_ms.setdefault(name, []).append(seconds * 1000)

    def close(self) -> None:
        """Tell what there is; what comes from now on is not told."""
        self.flush()
        self._is_open = False

    def flush(self) -> None:
        """Tell locust what was noted since the last time."""
        if not self._is_open:
            return
        counts, self._counts = self._counts, {}
        times, self._times_ms = self._times_ms, {}
        for name, number in counts.items():
            self._tell(name, number, [])
        for name, times_ms in times.items():
            self._tell(name, 0, times_ms)

    def _tell(self, name: str, untimed: int, times_ms: list[float]) -> None:
        batch = StatsEntry(self._stats, name, self._kind)
        for time_ms in times_ms:
            batch.log(time_ms, 0)  # type: ignore[arg-type] # locust's own times are fractions, too
        if untimed:
            now = time.time()
            batch.num_requests += untimed
            batch.num_none_requests += untimed
            batch.num_reqs_per_sec[int(now)] += untimed
            batch.last_request_timestamp = now
        self._stats.get(name, self._kind).extend(batch)
        self._stats.total.extend(batch)
