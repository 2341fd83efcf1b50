"""How sessions end, for good or for now, and how their connections are let go.

Core, other nodes and operators end sessions here. As in the core no method waits, and whoever ends a session
holds that very session or names it by its id: a late word about a replaced one ends nothing.
"""

from collections.abc import Callable, Iterable

import protocol
from presence.auth.expiries import Expiries
from presence.clock import Clock
from presence.core_statistics import CoreStatistics
from presence.flapping import Flapping
from presence.lately import Sink
from presence.registry import Registry, Session, SessionKey
from presence.requests import Desk
from presence.vouching import Vouching
from presence.wheel import TimingWheel
from protocol import Code

_LIMITED = protocol.encode(protocol.goodbye(Code.SESSION_LIMIT))


class Endings:
    """Ends of sessions.

    Args:
        registry: who is here.
        counted: what the core counts.
        deadlines: when whoever is silent ends.
        attention: when whoever is idle is away by itself.
        expiries: when whose token ends.
        vouching: which of them Redis is told to live.
        flapping: how long who comes and goes may be gone.
        outbox: where changes go.
        clock: monotonic time.

    Attributes:
        desk: who is told that a session has left; None: nobody answers requests.
    """

    def __init__(
        self,
        registry: Registry,
        counted: CoreStatistics,
        *,
        deadlines: TimingWheel[SessionKey],
        attention: TimingWheel[SessionKey],
        expiries: Expiries[SessionKey],
        vouching: Vouching,
        flapping: Flapping,
        outbox: Sink,
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._counted = counted
        self._deadlines = deadlines
        self._attention = attention
        self._expiries = expiries
        self._vouching = vouching
        self._flapping = flapping
        self._outbox = outbox
        self._clock = clock
        self.desk: Desk | None = None

    def end(self, session: Session, code: Code, now: float) -> None:
        """End a session, unless it does not live any more; its connection is left as it is."""
        change = self._registry.end(session, code, now)
        if change is None:
            return
        if session.link is None and (grace_ms := self._flapping.lengthened_ms(session.key)):
            change = change._replace(grace_ms=grace_ms)
        self._deadlines.forget(session.key)
        if self._expiries:
            self._expiries.forget(session.key)
        if self._attention:
            self._attention.forget(session.key)
        self._vouching.forget(session)
        self._counted.ended[code.reason] = self._counted.ended.get(code.reason, 0) + 1
        self._outbox.append(change)

    def part(self, session: Session, farewell: bytes) -> None:
        """Let a session's connection go with a last packet."""
        link, handle = session.link, session.handle
        session.link = session.handle = session.partial = None
        if link is not None:
            if self.desk is not None:
                self.desk.left(session)
            link.hang_up(handle, farewell)

    def crowd_out(self, sessions: list[Session], now: float) -> None:
        """End what a login leaves no room for, after the login was told: the user stays online."""
        for session in sessions:
            self.end(session, Code.SESSION_LIMIT, now)
            self.part(session, _LIMITED)

    def displace(self, key: SessionKey, session_id: str, code: Code = Code.REPLACED) -> bool:
        """Give up a session that another node has taken over.

        Redis knows already, as a rule. But a registration of it may be under way, and if the other session
        has ended meanwhile nothing there refuses it: hence the end, which otherwise changes nothing.
        """
        session = self._named(key, session_id)
        if session is None:
            return False
        now = self._clock.now()
        if session.link is None:
            self._flapping.returned(key, now)
            self._counted.returned_in_grace += 1
        else:
            self._counted.taken_over += 1
        self.end(session, Code.REPLACED, now)
        if session.link is not None:
            self.part(session, protocol.encode(protocol.goodbye(code)))
        return True

    def kick(self, key: SessionKey, session_id: str) -> bool:
        """End a session because an operator says so; it must not come back by itself."""
        return self._end_for_good(key, session_id, Code.KICKED)

    def limit(self, key: SessionKey, session_id: str) -> bool:
        """End a session because its user has more than he may have, over all nodes."""
        return self._end_for_good(key, session_id, Code.SESSION_LIMIT)

    def farewell(self, sessions: Iterable[Session], goodbye: Callable[[], bytes]) -> None:
        """Hang up on sessions without ending them: this server stops, and they have time to come back.

        What they have sent is read before: it may be a logout.
        """
        for session in sessions:
            if session.link is not None:
                session.link.look(session.handle)
            if session.link is not None:
                self.part(session, goodbye())

    def _end_for_good(self, key: SessionKey, session_id: str, code: Code) -> bool:
        session = self._named(key, session_id)
        if session is None:
            return False
        self.end(session, code, self._clock.now())
        self.part(session, protocol.encode(protocol.goodbye(code)))
        return True

    def _named(self, key: SessionKey, session_id: str) -> Session | None:
        session = self._registry.get(key)
        return None if session is None or self._registry.session_id(session) != session_id else session
