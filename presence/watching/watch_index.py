"""The watches between sessions and users, in both directions, without an object for each. Pure.

A user is known by the slot in the worker's table of users, which is held for a user who is watched. Sessions
have numbers, too. A session has a sorted array of slots, a user a set of numbers of sessions.

Costs: some 14 bytes per watch of a session with 150, both directions together, and 200 bytes per session;
each watch that begins or ends takes some microseconds.

Tests: `tests/watching/test_watch_index.py`, `tests/watching/test_push_queue.py`.
"""

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable

from presence.core.registry import Session
from presence.watching.number_sets import NumberSets
from presence.watching.user_table import UserTable


class Watches:
    """Sessions and the users that they watch."""

    def __init__(self, users: UserTable) -> None:
        self._users = users
        self._count = 0
        self._numbers: dict[Session, int] = {}  # of the sessions that watch any user
        # By the number of a session; None: free.
        self._sessions: list[Session | None] = []
        self._watched: list[array[int]] = []  # slots, sorted
        self._free_numbers: list[int] = []
        self._watchers = NumberSets()  # by slot

    def __len__(self) -> int:
        return self._count

    @property
    def sessions(self) -> int:
        """The number of sessions that watch any user."""
        return len(self._numbers)

    def count(self, session: Session, more: Collection[str] = ()) -> int:
        """Return how many users a session watches, or would watch with some more; each of these once."""
        number = self._numbers.get(session)
        if number is None:
            return len(more)
        watched = self._watched[number]
        return len(watched) + sum(not self._has(watched, uid) for uid in more)

    def watched_by(self, session: Session) -> list[str]:
        """Return the users that a session watches."""
        number = self._numbers.get(session)
        return [] if number is None else [self._users.name(slot) for slot in self._watched[number]]

    def has(self, session: Session, uid: str) -> bool:
        """Whether a session watches a user."""
        number = self._numbers.get(session)
        return number is not None and self._has(self._watched[number], uid)

    def is_watched(self, uid: str) -> bool:
        slot = self._users.find(uid)
        return slot is not None and self._watchers.has_any(slot)

    def watchers(self, uid: str) -> list[Session]:
        """Return the sessions that watch a user."""
        slot = self._users.find(uid)
        numbers = () if slot is None else self._watchers.get(slot)
        return [session for number in numbers if (session := self._sessions[number]) is not None]

    def add(self, session: Session, uids: Iterable[str]) -> None:
        number = self._numbers.get(session)
        watched = array("I") if number is None else self._watched[number]
        new = set()
        for uid in uids:
            slot = self._users.hold(uid)
            if slot in new or _has(watched, slot):
                self._users.release(slot)
            else:
                new.add(slot)
        if not new:
            return
        if number is None:
            number = self._begin(session)
        self._watched[number] = array("I", sorted((*watched, *new)))
        self._count += len(new)
        for slot in new:
            if self._watchers.has_any(slot):  # all watches of a user hold the slot once
                self._users.release(slot)
            self._watchers.add(slot, number)

    def remove(self, session: Session, uids: Iterable[str] | None = None) -> list[str]:
        """Remove watches of a session, None for all; return the users that no session watches now."""
        number = self._numbers.get(session)
        if number is None:
            return []
        watched = self._watched[number]
        if uids is None:
            gone: Iterable[int] = watched
            self._watched[number] = array("I")
        else:
            found = {
                slot for uid in uids if (slot := self._users.find(uid)) is not None and _has(watched, slot)
            }
            gone = found
            self._watched[number] = array("I", sorted(set(watched).difference(found)))
        self._count -= len(watched) - len(self._watched[number])
        unwatched: list[str] = []
        for slot in gone:
            self._watchers.remove(slot, number)
            if not self._watchers.has_any(slot):
                unwatched.append(self._users.name(slot))
                self._users.release(slot)
        if not self._watched[number]:
            self._end(session, number)
        return unwatched

    def _has(self, watched: "array[int]", uid: str) -> bool:
        slot = self._users.find(uid)
        return slot is not None and _has(watched, slot)

    def _begin(self, session: Session) -> int:
        if self._free_numbers:
            number = self._free_numbers.pop()
            self._sessions[number] = session
        else:
            number = len(self._sessions)
            self._sessions.append(session)
            self._watched.append(array("I"))
        self._numbers[session] = number
        return number

    def _end(self, session: Session, number: int) -> None:
        del self._numbers[session]
        self._sessions[number] = None
        self._free_numbers.append(number)
        if not self._numbers:  # its memory is free
            self._sessions, self._watched, self._free_numbers = [], [], []
            self._watchers = NumberSets()


def _has(slots: "array[int]", slot: int) -> bool:
    """Whether a sorted array has a slot."""
    place = bisect_left(slots, slot)
    return place < len(slots) and slots[place] == slot
