"""A logged-in connection as a whole: the session, and what the client asks for on it by itself."""

from presence.client.errors import PresenceError
from presence.client.pacing import Chance
from presence.client.renewal import Renewal
from presence.client.rewatching import Rewatching
from presence.client.session import Caused, Session
from presence.client.watches import Watches
from protocol import Packet


class Connection:
    """What came of a login: whom the client watched before it asks for at once.

    Args:
        session: the protocol's side, which has begun now.
        watches: whom the client watches.
        token: see `Renewal`.
        time_ms: the server's clock, Unix milliseconds; None if it did not tell.
        chance: see `presence.client.pacing`.

    Attributes:
        session: as given.
        rewatching: what is watched without anybody waiting for it.
        renewal: keeps the token fresh.
    """

    __slots__ = ("renewal", "rewatching", "session")

    def __init__(
        self, session: Session, watches: Watches, token: str | None, time_ms: int | None, chance: Chance
    ) -> None:
        now = session.since
        self.session = session
        self.rewatching = Rewatching(session, watches, now, chance)
        self.renewal = Renewal(session, token, None if time_ms is None else time_ms / 1000, now, chance)
        self.rewatching.tick(now)

    @property
    def deadline(self) -> float:
        """When `tick`, or a beat, is due."""
        return min(self.session.deadline, self.rewatching.due, self.renewal.due)

    def tick(self, now: float) -> Caused:
        """Give up requests whose time is over, and ask for what is due."""
        caused = self._settled(self.session.expire(now), now)
        self.rewatching.tick(now)
        self.renewal.tick(now)
        return caused

    def take(self, packet: Packet, now: float) -> Caused:
        """Take any packet but a goodbye; the answers to own requests stay here."""
        return self._settled(self.session.take(packet, now), now)

    def fail(self, error: PresenceError) -> Caused:
        """The connection has ended: return what that means for the program's own requests."""
        failed = self.session.fail(error)
        return self.renewal.without_own(self.rewatching.without_own(failed))

    def _settled(self, caused: Caused, now: float) -> Caused:
        return self.renewal.settle(self.rewatching.settle(caused, now), now)
