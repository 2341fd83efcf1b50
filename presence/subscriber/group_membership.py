"""The shards in which a consumer has joined its group, and what it may have missed there.

When a consumer joins a shard, entries may be pending for it from before. While a connection is lost, entries
may have been given to it in an answer that it never got, and Redis may come back with other data. So a shard
is checked when it is joined, and after each loss of connections: for gaps, and for entries of this consumer.

Tests: `tests/subscriber/test_group.py`, `tests/subscriber/test_gaps.py`, `tests/subscriber/test_shards.py`.
"""

from presence.store.shard_clients import ShardClients
from presence.subscriber.group_cursor import GroupCursor
from presence.subscriber.group_entries import GroupEntries
from presence.subscriber.pending_entries import PendingEntries
from presence.subscriber.redis_connections import Shards


class GroupMembership:
    """The membership of one consumer.

    Attributes:
        has_begun: whether it has joined the shards once; one that is new since is read from its first entry.
        losses: of connections, when shards were to be checked last; -1 before the first time.
    """

    def __init__(
        self, shards: Shards, cursor: GroupCursor, pending: PendingEntries, entries: GroupEntries
    ) -> None:
        self.has_begun = False
        self.losses = -1
        self._shards = shards
        self._cursor = cursor
        self._pending = pending
        self._entries = entries
        self._count = 0  # of the shards that were joined since the last stop: the first ones
        self._unchecked: dict[int, bool] = {}  # shards, and whether they were just joined

    @property
    def joined(self) -> list[int]:
        """The shards that are read."""
        return self._shards.selected(range(self._count))

    def update(self, clients: ShardClients, losses: int) -> None:
        """Join new shards, and check those that have to be checked and are reachable.

        Raises:
            RedisError: Redis failed; call it again.
            ValueError: Redis does not hold data of a presence server.
        """
        for shard in self._shards.new_shards(self._count, clients, losses):
            if self._shards.selected([shard]):
                self._cursor.join(clients, shard, is_late=self.has_begun)
                self._unchecked[shard] = True
            self._count = shard + 1
        if self.losses != losses:
            self._unchecked = dict.fromkeys(self.joined, False) | self._unchecked
            self.losses = losses
        self.has_begun = True
        if due := self._unchecked.keys() & set(clients.reachable(self._shards.keys)):
            # Before anything is read: if this consumer dies before it reports a gap, the gap is found again.
            self._entries.add_gaps(self._cursor.find_gaps(clients, due))
            after = {
                shard: None if self._unchecked[shard] else self._cursor.highest_read(shard) for shard in due
            }
            self._entries.found(self._pending.own(clients, after))
            for shard in due:
                del self._unchecked[shard]

    def leave(self) -> None:
        """Leave all shards; the next update joins them again."""
        self._count = 0
        self._unchecked = {}
