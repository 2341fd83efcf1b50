"""Recently ended sessions, for operators: Redis keeps only the end of a user's last session.

Stands between the engine and the outbox: all changes pass through it. What it keeps is bounded in number and
in time.
"""

from collections import deque
from typing import Final

from presence.core.changes import Change, ChangeSink, Op
from presence.core.profiles import PLAIN

MAX_ENDS_KEPT: Final = 2000  # 1 MB: some 450 bytes each, 620 with the longest names
KEEP_ENDS_S: Final = 600.0


class RecentEnds:
    """Recently ended sessions, recorded while all changes are passed on to `sink`; O(1) for each."""

    def __init__(self, sink: ChangeSink) -> None:
        self._sink = sink
        self._ends: deque[Change] = deque(maxlen=MAX_ENDS_KEPT)

    def append(self, change: Change) -> None:
        self._sink.append(change)
        if change.op is Op.END:
            self._drop_expired(change.at)
            self._ends.append(change if change.profile is PLAIN else change._replace(profile=PLAIN))

    def of_user(self, uid: str, now: float) -> list[Change]:
        """Return the kept ends of a user's sessions, the latest first; O(all ends)."""
        self._drop_expired(now)
        return [each for each in reversed(self._ends) if each.uid == uid and now - each.at <= KEEP_ENDS_S]

    def _drop_expired(self, now: float) -> None:
        """Drop ends older than `KEEP_ENDS_S`."""
        while self._ends and now - self._ends[0].at > KEEP_ENDS_S:
            self._ends.popleft()
