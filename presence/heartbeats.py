"""Heartbeats between processes: who watches a process takes its silence for a hang, and replaces it.

A process that is watched writes `ALIVE` to its watcher from its event loop alone, so a loop that stands still
is silent whatever the process's threads do. The watcher counts silence only while it runs itself: a machine
that was suspended, or a container that was frozen, has a long gap between two looks, and a gap counts for a
fifth of the time-out at most. So nobody is replaced for a pause that the watcher shared.
"""

from typing import Final

ALIVE: Final = b"b"
MAX_INTERVAL_S: Final = 1.0  # between two heartbeats, or two looks; shorter ones cost processor time
BEATS_PER_TIMEOUT: Final = 10  # at least
FIRST_TIMEOUT_S: Final = 30.0  # for the first heartbeat, at least: a process has to load its modules before


def interval_s(timeout_s: float) -> float:
    """Return the seconds between two heartbeats, and between two looks of the watcher."""
    return min(MAX_INTERVAL_S, timeout_s / BEATS_PER_TIMEOUT)


class SilenceWatch:
    """How long a process has been silent, in seconds in which its watcher ran.

    Args:
        timeout_s: a process that stands still for no longer than that is left alone; infinity: nobody is
            watched.
        now: monotonic seconds.

    Attributes:
        silent_s: seconds since its last heartbeat.
    """

    def __init__(self, timeout_s: float, now: float) -> None:
        interval = interval_s(timeout_s)
        self._max_gap_s = 2 * interval
        self._limit_s = timeout_s + interval  # what lies between two heartbeats is no silence
        self._first_limit_s = max(self._limit_s, FIRST_TIMEOUT_S)
        self._looked_at = now
        self._was_heard = False
        self.silent_s = 0.0

    def heard(self) -> None:
        """A heartbeat came."""
        self._was_heard = True
        self.silent_s = 0.0

    def is_hung(self, now: float) -> bool:
        """Look, at least each `interval_s`, with all heartbeats read that have come."""
        self.silent_s += min(now - self._looked_at, self._max_gap_s)
        self._looked_at = now
        return self.silent_s > (self._limit_s if self._was_heard else self._first_limit_s)
