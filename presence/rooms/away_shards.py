"""The shards whose Redis server does not answer.

A call to a server that hangs takes as long as its time-out, and holds up the calls to all others. So all
shards that did not answer are called again at the same moment, and not between. First they are read: if that
fails, no other call is made.

Tests: `tests/rooms/test_away_shards.py`.
"""

from presence.common.backoff import backoff_s, jittered
from presence.store.shard_job import RETRY_FIRST_S, RETRY_MAX_S


class AwayShards:
    """The shards that are not called in this run, and when they are called again.

    Attributes:
        unread: those that are not even read.
        unchanged: those whose rooms are not changed; the unread ones are among them.
        retry_at: monotonic seconds.
    """

    def __init__(self) -> None:
        self.unread: set[int] = set()
        self.unchanged: set[int] = set()
        self.retry_at = 0.0
        self._failures = 0  # runs with a call that was not answered, since all shards have answered
        self._has_failed = False

    def begin_run(self, now: float) -> set[int]:
        """Return the shards that are to be read and changed again in this run."""
        self._has_failed = False
        if now < self.retry_at:
            return set()
        retried, self.unread, self.unchanged = self.unchanged, set(), set()
        return retried

    def not_read(self, shard: int) -> None:
        """Note that the read of a shard was not answered."""
        self.unread.add(shard)
        self.not_changed(shard)

    def not_changed(self, shard: int) -> None:
        """Note that a change of a shard's rooms was not answered."""
        self.unchanged.add(shard)
        self._has_failed = True

    def end_run(self, now: float) -> None:
        """Plan the next attempt, if a call of this run was not answered."""
        if self._has_failed:
            self.retry_at = now + jittered(backoff_s(self._failures, RETRY_FIRST_S, RETRY_MAX_S))
            self._failures += 1
        elif not self.unchanged:
            self._failures = 0
