"""The limit on the watches of a worker. Pure.

Tests: `tests/watching/test_watch_service.py`.
"""

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
