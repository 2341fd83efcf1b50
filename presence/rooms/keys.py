"""Key names of the streams of rooms and their consumer groups.

Tests: `tests/store/test_keys.py`.
"""

from dataclasses import dataclass

from presence.store.keys import Keys


@dataclass(frozen=True, slots=True)
class RoomKeys(Keys):
    """Key names for consumer groups of the stream of rooms: `events` is that stream.

    Fields of its entries: v (1), type (occupied, vacated; joined, left), room, uid, count (members after the
    entry), public (those of them who are not invisible), at_ms, reason and event_id (of the event of the user
    that led to it; reason ``comparison``: a difference was corrected), source (the shard of the user).
    """

    def events(self, shard: int) -> str:
        """Stream of rooms."""
        return self.room_events(shard)

    def dead(self, shard: int) -> str:
        """Stream of dead letters."""
        return f"{self.prefix}:{{{shard}}}:rooms:dead"

    def errors(self, shard: int, group: str) -> str:
        """Hash: entry id to its last error in a consumer group; only unhandled entries."""
        return f"{self.prefix}:{{{shard}}}:rooms:errors:{group}"

    def consumer(self, shard: int, group: str, consumer: str) -> str:
        """String: which process has the name of a consumer; expires."""
        return f"{self.prefix}:{{{shard}}}:rooms:consumer:{group}:{consumer}"

    def webhook_lock(self, shard: int, group: str) -> str:
        """String: which runner of webhooks sends the events of the shard's rooms to a group; expires."""
        return f"{self.prefix}:{{{shard}}}:rooms:webhooks:{group}"

    def webhook_runners(self, group: str) -> str:
        """Sorted set: the group's runners of webhooks, by when they announced themselves; expires."""
        return f"{self.prefix}:rooms:webhooks:{group}"
