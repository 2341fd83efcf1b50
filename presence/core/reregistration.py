"""Which live sessions may be registered in Redis: those that were heard from recently enough."""

from collections.abc import Callable, Iterable, Iterator

from presence.common.clock import Clock
from presence.core.changes import Change, Op, SessionName
from presence.core.registry import Registry, Session


class RegistrationPolicy:
    """Decides which live sessions may be registered in Redis, and makes the registrations."""

    def __init__(
        self, registry: Registry, clock: Clock, tick_s: float, *, poll_before_expiry: bool = True
    ) -> None:
        self._registry = registry  # the live sessions
        self._clock = clock  # monotonic time
        self.tick_s = tick_s  # seconds by which a session may outlive its time-out
        # Whether connections are read before their sessions are called stale; tests switch it off.
        self._poll_before_expiry = poll_before_expiry
        self._stale: dict[Session, None] = {}  # in order

    def registrations(self, sessions: Iterable[Session]) -> Iterator[Change]:
        """Return registrations of sessions that are live now, each made when it is asked for.

        A session that has ended meanwhile is registered too; its end follows in the outbox. A registration
        has the profile of the moment at which it is made, so it covers every earlier update.
        A session without a packet for longer than its time-out and a `tick`, even after its connection was
        polled, is stale (`Op.STALE`): it is registered with its next packet.

        Args:
            sessions: a copy, unaffected by later changes of the registry.
        """
        return self._registrations(sessions, self._clock.now())

    def _registrations(self, sessions: Iterable[Session], now: float) -> Iterator[Change]:
        for session in sessions:
            if self._is_recent(session, now) or self._is_recent_after_poll(session, now):
                yield self._registry.registration(session, now)
            else:
                self._stale[session] = None  # if it has ended meanwhile, the next slot discards it
                yield self._registry.registration(session, now)._replace(op=Op.STALE)

    def _is_recent(self, session: Session, now: float) -> bool:
        """Whether a session's last packet is recent enough; without a stall it always is."""
        return now - session.last_seen <= session.idle_timeout + self.tick_s

    def _is_recent_after_poll(self, session: Session, now: float) -> bool:
        """Read the connection first: a stale session's user may be reported offline before it is read."""
        if session.transport is not None and self._poll_before_expiry:
            session.transport.poll_now(session.handle)
        return self._is_recent(session, now)

    def registrable_sessions(self) -> Iterator[SessionName]:
        """Return the sessions that Redis should have on record; changes nothing."""
        return self._registrable_sessions(list(self._registry))

    def _registrable_sessions(self, sessions: list[Session]) -> Iterator[SessionName]:
        for session in sessions:
            if session in self._registry and session not in self._stale:
                yield SessionName(session.uid, session.device, self._registry.session_id(session))

    def is_registrable(self, session: Session) -> bool:
        return session not in self._stale

    def register_recovered(self, now: float, append: Callable[[Change], None]) -> None:
        """Register stale sessions that became active again."""
        for session in list(self._stale):
            if session not in self._registry:
                del self._stale[session]
            elif self._is_recent(session, now):
                del self._stale[session]
                append(self._registry.registration(session, now))
