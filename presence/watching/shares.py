"""How many watches all connections of a worker may hold together: pure.

A watch costs memory here and, through the subscription to its user, in Redis. So each connection has a few of
its own, which nobody can take from it, and what goes beyond these comes out of one pool for all.
"""

from presence.registry import Session


class Shares:
    """What sessions hold of the pool.

    Args:
        own: watches that a session may hold in any case.
        pool: watches beyond these, of all sessions together.

    Attributes:
        used: how many of the pool are held.
    """

    def __init__(self, own: int, pool: int) -> None:
        self._own = own
        self._pool = pool
        self._held: dict[Session, int] = {}
        self.used = 0

    def __len__(self) -> int:
        """Return how many sessions hold some of the pool."""
        return len(self._held)

    def allow(self, session: Session, watches: int) -> bool:
        """Whether a session may hold so many watches, those that it has among them."""
        beyond = watches - self._own
        return beyond <= 0 or self.used - self._held.get(session, 0) + beyond <= self._pool

    def hold(self, session: Session, watches: int) -> None:
        """A session holds so many watches from now on."""
        beyond = max(0, watches - self._own)
        self.used += beyond - self._held.pop(session, 0)
        if beyond:
            self._held[session] = beyond
