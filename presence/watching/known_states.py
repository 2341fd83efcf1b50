"""The known states of users of one shard. Pure."""

from typing import Final

from presence.watching.user_states import NO_ENTRY, EntryId, WatchedState

WALK_FACTOR: Final = 8  # places that a walk passes, as a multiple of the users that it may return


class KnownStates:
    """By user the newest known state, and the highest entry id that it surely includes.

    Each user has a place until they are removed, so a walk over the places sees every user who stays.
    """

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._free: list[int] = []
        self._uids: list[str | None] = []  # by place; None: it is free
        self._states: list[WatchedState | None] = []
        self._as_of: list[EntryId] = []

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, uid: object) -> bool:
        return uid in self._places

    def all(self) -> list[str]:
        return [*self._places]

    def state(self, uid: str) -> WatchedState | None:
        """Return the state of a user; None if it is not known."""
        place = self._places.get(uid)
        return None if place is None else self._states[place]

    def as_of(self, uid: str) -> EntryId:
        """Return the entry id that a known user's state includes."""
        return self._as_of[self._places[uid]]

    def put(self, uid: str, state: WatchedState, as_of: EntryId) -> None:
        place = self._places.get(uid)
        if place is None:
            place = self._places[uid] = self._free.pop() if self._free else self._add_place()
            self._uids[place] = uid
        self._states[place], self._as_of[place] = state, as_of

    def remove(self, uid: str) -> bool:
        """Forget a user; return whether their state was known."""
        place = self._places.pop(uid, None)
        if place is None:
            return False
        self._uids[place] = self._states[place] = None
        self._free.append(place)
        return True

    def walk(self, cursor: int, most: int) -> tuple[list[str], int]:
        """Return some users from a cursor on, perhaps none, and the next cursor; 0 begins, and is the end."""
        end = min(len(self._uids), cursor + WALK_FACTOR * most)
        found: list[str] = []
        for place in range(cursor, end):
            if (uid := self._uids[place]) is not None:
                found.append(uid)
                if len(found) == most:
                    end = place + 1
                    break
        return found, 0 if end >= len(self._uids) else end

    def _add_place(self) -> int:
        self._uids.append(None)
        self._states.append(None)
        self._as_of.append(NO_ENTRY)
        return len(self._uids) - 1
