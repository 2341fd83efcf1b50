"""The sessions of a node that ended lately, in memory: why, and how long each might have been silent.

Redis keeps the end of a user, but neither that of one device of several nor what a session's time-out was.
Operators ask about what has just happened; so a node remembers a bounded number for a bounded time. What a
client said of itself is not kept.
"""

from collections import deque
from typing import Final, Protocol

from presence.changes import PLAIN, Change, Op

ENDS_MAX: Final = 2000  # 1 MB: some 450 bytes each, 620 with the longest names
KEPT_S: Final = 600.0


class Sink(Protocol):
    """Where changes go."""

    def append(self, change: Change) -> None:
        """Take one change; never waits."""


class LatelyEnded:
    """Ends that pass by on their way to a sink, which gets all changes; O(1) for each.

    Args:
        sink: see above.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._ends: deque[Change] = deque(maxlen=ENDS_MAX)

    def append(self, change: Change) -> None:
        """See `Sink`."""
        self._sink.append(change)
        if change.op is Op.END:
            self._forget(change.at)
            self._ends.append(change if change.profile is PLAIN else change._replace(profile=PLAIN))

    def of(self, uid: str, now: float) -> list[Change]:
        """Return the ends of a user's sessions that are remembered, the latest first; O(all ends)."""
        self._forget(now)
        return [each for each in reversed(self._ends) if each.uid == uid and now - each.at <= KEPT_S]

    def _forget(self, now: float) -> None:
        """Drop the old ones."""
        while self._ends and now - self._ends[0].at > KEPT_S:
            self._ends.popleft()
