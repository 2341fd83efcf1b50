"""How much one session may ask: pure, time is an argument.

Packing the states of 500 users takes a few milliseconds, in which nobody else is served. So a session may ask
about so many users at once, and then about so many a second (a token bucket, of which only the moment is kept
at which it is full again).
"""

from presence.registry import Session


class Budget:
    """What sessions have asked lately.

    Args:
        at_once: users.
        a_second: users.
    """

    def __init__(self, at_once: float, a_second: float) -> None:
        self._full_s = at_once / a_second
        self._a_second = a_second
        self._full_at: dict[Session, float] = {}

    def __len__(self) -> int:
        """Return how many sessions have asked."""
        return len(self._full_at)

    def spend(self, session: Session, cost: float, now: float) -> float:
        """Take what a request costs; return 0, or the seconds after which it may come again."""
        full_at = max(now, self._full_at.get(session, now)) + cost / self._a_second
        if (excess_s := full_at - now - self._full_s) > 0:
            return excess_s
        self._full_at[session] = full_at
        return 0.0

    def charge(self, session: Session, cost: float, now: float) -> None:
        """Take what a request costs that is never refused: what comes after it may have to wait."""
        full_at = max(now, self._full_at.get(session, now)) + cost / self._a_second
        self._full_at[session] = min(full_at, now + 2 * self._full_s)

    def left(self, session: Session) -> None:
        """A session is gone."""
        self._full_at.pop(session, None)
