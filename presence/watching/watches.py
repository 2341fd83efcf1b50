"""Who watches whom, and how much of that there may be: pure.

A watch counts from the moment at which it was answered, and that has a number: who was answered after a
change knows of it already. An entry costs some 200 bytes, whichever way it is found.
"""

from collections.abc import Iterable

from presence.core.registry import Session


class WatchQuota:
    """How many watches all connections of a worker may hold together; `used` of the pool are held.

    A watch costs memory here and, through the subscription to its user, in Redis. So each connection has a
    few of its own, which nobody can take from it, and what goes beyond these comes out of one pool for all.
    """

    def __init__(self, own: int, pool: int) -> None:
        self._own = own
        self._pool = pool
        self._beyond: dict[Session, int] = {}
        self.used = 0

    def allows(self, session: Session, watches: int) -> bool:
        """Whether a session may hold so many watches, those that it has among them."""
        beyond = watches - self._own
        return beyond <= 0 or self.used - self._beyond.get(session, 0) + beyond <= self._pool

    def set_count(self, session: Session, watches: int) -> None:
        """A session holds so many watches from now on."""
        beyond = max(0, watches - self._own)
        self.used += beyond - self._beyond.pop(session, 0)
        if beyond:
            self._beyond[session] = beyond


class Watches:
    """Sessions and the users that they watch, both ways."""

    def __init__(self) -> None:
        self._watchers: dict[str, dict[Session, int]] = {}
        self._watched: dict[Session, set[str]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return how many pairs there are."""
        return self._count

    @property
    def sessions(self) -> int:
        """How many sessions watch somebody."""
        return len(self._watched)

    def watched_by(self, session: Session) -> set[str]:
        """Return whom a session watches; not to be changed."""
        return self._watched.get(session, set())

    def is_watched(self, uid: str) -> bool:
        """Whether anybody watches a user."""
        return uid in self._watchers

    def watchers(self, uid: str, number: int) -> list[Session]:
        """Return those who watch a user and were answered before the change of that number."""
        return [session for session, since in self._watchers.get(uid, {}).items() if since < number]

    def is_due(self, session: Session, uid: str, number: int) -> bool:
        """Whether a session watches a user and was answered before the change of that number."""
        since = self._watchers.get(uid, {}).get(session)
        return since is not None and since < number

    def add(self, session: Session, uids: Iterable[str], number: int) -> None:
        """A session was told the states of these users, all changes up to `number` included."""
        watched = self._watched.setdefault(session, set())
        for uid in uids:
            if uid not in watched:
                watched.add(uid)
                self._count += 1
            self._watchers.setdefault(uid, {})[session] = number
        if not watched:
            del self._watched[session]

    def remove(self, session: Session, uids: Iterable[str] | None = None) -> list[str]:
        """A session watches these no more; None: nobody. Return those whom nobody watches now."""
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
