"""The known states of users of one shard, in the tables of the worker. Pure.

Tests: `tests/watching/test_known_states.py`, `tests/watching/test_shard_view_model.py`.
"""

from presence.watching.packed_states import PackedStates
from presence.watching.user_states import EntryId, WatchedState
from presence.watching.user_table import NO_SHARD, UserTable


class KnownStates:
    """By user of a shard the newest known state, and the highest entry id that it surely includes.

    `users` and `states` are the worker's, in which no other object has users of this shard.
    """

    def __init__(self, shard: int, users: UserTable, states: PackedStates) -> None:
        self._shard = shard
        self._users = users
        self._states = states
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, uid: object) -> bool:
        slot = self._users.find(uid) if isinstance(uid, str) else None
        return slot is not None and self._states.is_known(slot)

    def all(self) -> list[str]:
        """Return all users. It looks at all of the worker: a millisecond for 25,000."""
        uids: list[str] = []
        cursor, most = 0, max(1, len(self._users))
        while True:
            some, cursor = self.walk(cursor, most)
            uids += some
            if not cursor:
                return uids

    def state(self, uid: str) -> WatchedState | None:
        """Return the state of a user; None if it is not known."""
        found = self.get(uid)
        return None if found is None else found[0]

    def get(self, uid: str) -> tuple[WatchedState, EntryId] | None:
        """Return the state of a user, and the entry id that it includes; None if it is not known."""
        slot = self._users.find(uid)
        return None if slot is None else self._states.get(slot)

    def put(self, uid: str, state: WatchedState, as_of: EntryId) -> None:
        slot = self._users.find(uid)
        if slot is None or not self._states.is_known(slot):
            slot = self._users.hold(uid)
            self._users.set_shard(slot, self._shard)
            self._count += 1
        self._states.set(slot, state, as_of)

    def remove(self, uid: str) -> bool:
        """Forget a user; return whether their state was known."""
        slot = self._users.find(uid)
        if slot is None or not self._states.is_known(slot):
            return False
        self._states.forget(slot)
        self._users.set_shard(slot, NO_SHARD)
        self._users.release(slot)
        self._count -= 1
        return True

    def walk(self, cursor: int, most: int) -> tuple[list[str], int]:
        """Return some users from a cursor on, perhaps none, and the next cursor; 0 begins, and is the end.

        A walk from 0 to the end meets each user who stays exactly once.
        """
        slots, cursor = self._users.walk(self._shard, cursor, most)
        return [self._users.name(slot) for slot in slots], cursor
