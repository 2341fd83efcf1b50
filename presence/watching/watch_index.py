"""The watches between sessions and users, and their number limits. Pure.

A watch counts from the change number at which it was answered: a watch answered after a change includes that
change already. An entry costs some 200 bytes, both directions together.

Tests: `tests/watching/test_watch_service.py`, `tests/watching/test_push_queue.py`.
"""

from collections.abc import Iterable

from presence.core.registry import Session


class WatchQuota:
    """The number of watches that the connections of a worker may have; `used` counts those of the pool.

    A watch costs memory here and, through the subscription to its user, in Redis. So each connection has a
    few of its own, reserved for it, and further ones come out of one pool for all connections.
    """

    def __init__(self, own: int, pool: int) -> None:
        self._own = own
        self._pool = pool
        self._beyond: dict[Session, int] = {}
        self.used = 0

    def allows(self, session: Session, watches: int) -> bool:
        """Whether a session may have so many watches in total."""
        beyond = watches - self._own
        return beyond <= 0 or self.used - self._beyond.get(session, 0) + beyond <= self._pool

    def set_count(self, session: Session, watches: int) -> None:
        """Set the total number of watches of a session."""
        beyond = max(0, watches - self._own)
        self.used += beyond - self._beyond.pop(session, 0)
        if beyond:
            self._beyond[session] = beyond


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
