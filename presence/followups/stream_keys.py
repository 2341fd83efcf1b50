"""Key names of the streams of due follow-ups and their consumer groups.

Tests: `tests/followups/test_due_stream.py`, `tests/cli/test_forget.py`.
"""

from dataclasses import dataclass

from presence.store.keys import Keys


@dataclass(frozen=True, slots=True)
class FollowupKeys(Keys):
    """Key names for consumer groups of follow-ups: `events` is the stream of follow-ups."""

    def events(self, shard: int) -> str:
        """Stream of due follow-ups."""
        return self.followups(shard)

    def dead(self, shard: int) -> str:
        """Stream of dead letters."""
        return f"{self.followups(shard)}:dead"

    def errors(self, shard: int, group: str) -> str:
        """Hash: entry id to its last error in a consumer group; only unhandled entries."""
        return f"{self.followups(shard)}:errors:{group}"

    def consumer(self, shard: int, group: str, consumer: str) -> str:
        """String: which process has the name of a consumer; expires."""
        return f"{self.followups(shard)}:consumer:{group}:{consumer}"
