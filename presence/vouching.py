"""Which sessions a node vouches for towards Redis: those that it has heard of lately enough.

After a stall a session may live whose client has long been silent; if Redis has lost it, nobody is told that
it is online until the client is heard again.
"""

from collections.abc import Callable, Iterable, Iterator

from presence.changes import Change, Op, SessionName
from presence.clock import Clock
from presence.registry import Registry, Session


class Vouching:
    """Registrations of live sessions.

    Args:
        registry: who is here.
        clock: monotonic time.
        tick_s: seconds by which a session may be silent for longer than its time-out.
        look: whether connections are read before they are called silent; tests switch it off.
    """

    def __init__(self, registry: Registry, clock: Clock, tick_s: float, *, look: bool = True) -> None:
        self._registry = registry
        self._clock = clock
        self._tick_s = tick_s
        self._look = look
        self._stale: dict[Session, None] = {}  # in order

    def registrations(self, sessions: Iterable[Session]) -> Iterator[Change]:
        """Return registrations of sessions as they live at this moment, each made when it is asked for.

        A session that has ended meanwhile is registered too, and its end follows in the outbox. A
        registration is made of what the session shows at that moment, so it covers every earlier update.
        Sessions not heard within their time-out and a tick, not even when their connection was looked at, are
        not vouched for (`Op.UNHEARD`); they register with their next packet.

        Args:
            sessions: those that lived at this moment; later changes of the registry must not change it.
        """
        return self._registrations(sessions, self._clock.now())

    def _registrations(self, sessions: Iterable[Session], now: float) -> Iterator[Change]:
        for session in sessions:
            if self._is_heard(session, now) or self._is_heard_at_a_look(session, now):
                yield self._registry.registration(session, now)
            else:
                self._stale[session] = None  # if it has ended meanwhile, the next tick forgets it again
                yield self._registry.registration(session, now)._replace(op=Op.UNHEARD)

    def _is_heard(self, session: Session, now: float) -> bool:
        """Whether a session was heard lately enough; without a stall none that lives was not."""
        return now - session.last_seen <= session.idle_timeout + self._tick_s

    def _is_heard_at_a_look(self, session: Session, now: float) -> bool:
        """Whether a packet lay unread: who is not vouched for may be told offline before it is read."""
        if session.link is not None and self._look:
            session.link.look(session.handle)
        return self._is_heard(session, now)

    def vouched(self) -> Iterator[SessionName]:
        """Return the sessions that ought to be on record; nothing changes."""
        return self._vouched(list(self._registry))

    def _vouched(self, sessions: list[Session]) -> Iterator[SessionName]:
        for session in sessions:
            if session in self._registry and session not in self._stale:
                yield SessionName(session.uid, session.device, self._registry.session_id(session))

    def vouches_for(self, session: Session) -> bool:
        """Whether a live session is among them."""
        return session not in self._stale

    def register_heard(self, now: float, append: Callable[[Change], None]) -> None:
        """Register those that were too silent to be registered, and have been heard since."""
        for session in list(self._stale):
            if session not in self._registry:
                self.forget(session)
            elif self._is_heard(session, now):
                self.forget(session)
                append(self._registry.registration(session, now))

    def forget(self, session: Session) -> None:
        """A session has ended, or another took its place."""
        self._stale.pop(session, None)
