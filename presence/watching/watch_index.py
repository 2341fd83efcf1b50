"""The watches between sessions and users. Pure.

A watch counts from the change number at which it was answered: a watch answered after a change includes that
change already. An entry costs some 200 bytes, both directions together.

Tests: `tests/watching/test_watch_service.py`, `tests/watching/test_push_queue.py`.
"""

from collections.abc import Iterable

from presence.core.registry import Session


class Watches:
    """Sessions and the users that they watch, in both directions."""

    def __init__(self) -> None:
        self._watchers: dict[str, dict[Session, int]] = {}
        self._watched: dict[Session, set[str]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def sessions(self) -> int:
        """The number of sessions that watch any user."""
        return len(self._watched)

    def watched_by(self, session: Session) -> set[str]:
        """Return the users that a session watches; the caller must not change the set."""
        return self._watched.get(session, set())

    def is_watched(self, uid: str) -> bool:
        return uid in self._watchers

    def watchers(self, uid: str, number: int) -> list[Session]:
        """Return the sessions whose watch of a user was answered before the change `number`."""
        return [session for session, since in self._watchers.get(uid, {}).items() if since < number]

    def is_due(self, session: Session, uid: str, number: int) -> bool:
        """Whether a session's watch of a user was answered before the change `number`."""
        since = self._watchers.get(uid, {}).get(session)
        return since is not None and since < number

    def add(self, session: Session, uids: Iterable[str], number: int) -> None:
        """Add watches answered with the states of these users, including all changes up to `number`."""
        watched = self._watched.setdefault(session, set())
        for uid in uids:
            if uid not in watched:
                watched.add(uid)
                self._count += 1
            self._watchers.setdefault(uid, {})[session] = number
        if not watched:
            del self._watched[session]

    def told(self, session: Session, uid: str, number: int) -> None:
        """Note that a session was told the state of a user with all changes up to `number`, if it watches."""
        watchers = self._watchers.get(uid, {})
        if session in watchers:
            watchers[session] = number

    def remove(self, session: Session, uids: Iterable[str] | None = None) -> list[str]:
        """Remove watches of a session, None for all; return the users that no session watches now."""
        unwatched: list[str] = []
        watched = self._watched.get(session, set())
        for uid in list(watched) if uids is None else uids:
            if uid in watched:
                watched.discard(uid)
                self._count -= 1
                watchers = self._watchers[uid]
                del watchers[session]
                if not watchers:
                    del self._watchers[uid]
                    unwatched.append(uid)
        if not watched:
            self._watched.pop(session, None)
        return unwatched
