"""Key names of the streams of rooms and their consumer groups.

Tests: `tests/store/test_keys.py`.
"""

from dataclasses import dataclass
from typing import ClassVar

from presence.store.keys import Keys


@dataclass(frozen=True, slots=True)
class RoomKeys(Keys):
    """Key names for consumer groups of the stream of rooms: `events` is that stream.

    Fields of its entries: v (1), type (occupied, vacated; joined, left), room, uid, count (members after the
    entry), public (those of them who are not invisible), at_ms, reason and event_id (of the event of the user
    that led to it; reason ``comparison``: a difference was corrected), source (the shard of the user).
    """

    part: ClassVar[str] = ":rooms"

    def events(self, shard: int) -> str:
        """Stream of rooms."""
        return self.room_events(shard)
