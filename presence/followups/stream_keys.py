"""Key names of the streams of due follow-ups and their consumer groups.

Tests: `tests/followups/test_due_stream.py`, `tests/cli/test_forget.py`.
"""

from dataclasses import dataclass
from typing import ClassVar

from presence.store.keys import Keys


@dataclass(frozen=True, slots=True)
class FollowupKeys(Keys):
    """Key names for consumer groups of follow-ups: `events` is the stream of follow-ups."""

    part: ClassVar[str] = ":followups"

    def events(self, shard: int) -> str:
        """Stream of due follow-ups."""
        return self.followups(shard)
