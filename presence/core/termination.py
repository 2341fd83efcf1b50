"""Ends of sessions: idle time-out, expired token, kick, ban, limit, supersession.

The engine, other nodes and operators end sessions here. No method waits. The caller passes the session object
or its id, so a late notice about a superseded session ends nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass

from presence import protocol
from presence.common.clock import Clock
from presence.core.ban_list import Ban
from presence.core.changes import ChangeSink
from presence.core.engine_counters import EngineCounters
from presence.core.flap_damping import FlapDamping
from presence.core.registry import Session, SessionKey
from presence.core.sessions import Sessions
from presence.protocol import Code

_LIMIT_GOODBYE = protocol.encode(protocol.goodbye(Code.SESSION_LIMIT))


@dataclass(eq=False, repr=False)
class SessionTerminator:
    sessions: Sessions  # the live sessions and their deadlines
    counters: EngineCounters  # the engine's counters
    _: KW_ONLY
    flap_damping: FlapDamping  # computes the grace of sessions that reconnect frequently
    outbox: ChangeSink  # where changes go
    clock: Clock  # monotonic time
    disconnected: Callable[[Session], None]  # notified when a session loses its connection

    def __post_init__(self) -> None:
        self._registry = self.sessions.registry

    def end(self, session: Session, code: Code, now: float) -> None:
        """End a session unless it has ended already; leaves its connection open."""
        change = self.sessions.end(session, code, now)
        if change is None:
            return
        if session.transport is None and (grace_ms := self.flap_damping.extended_grace_ms(session.key)):
            change = change._replace(grace_ms=grace_ms)
        self.counters.ended[code.reason] = self.counters.ended.get(code.reason, 0) + 1
        self.outbox.append(change)

    def disconnect(self, session: Session, goodbye: bytes) -> None:
        """Close a session's connection after a last packet."""
        transport, handle = session.transport, session.handle
        session.transport = session.handle = None
        session.unhandled = b""
        if transport is not None:
            self.disconnected(session)
            transport.disconnect(handle, goodbye)

    def evict_excess(self, sessions: list[Session], now: float) -> None:
        """End sessions beyond the user's quota, after the login was reported: the user stays online."""
        for session in sessions:
            self.end(session, Code.SESSION_LIMIT, now)
            self.disconnect(session, _LIMIT_GOODBYE)

    def supersede(self, key: SessionKey, session_id: str, code: Code = Code.REPLACED) -> bool:
        """End a session that another node has taken over.

        Redis usually knows. But a registration of the session may be in flight, and if the other session has
        ended meanwhile, Redis would accept it. Hence the end in the outbox, which otherwise changes nothing.
        """
        session = self._named(key, session_id)
        if session is None:
            return False
        now = self.clock.now()
        if session.transport is None:
            self.flap_damping.reconnected(key, now)
            self.counters.returned_in_grace += 1
        else:
            self.counters.taken_over += 1
        self.end(session, Code.REPLACED, now)
        if session.transport is not None:
            self.disconnect(session, protocol.encode(protocol.goodbye(code)))
        return True

    def kick(self, key: SessionKey, session_id: str) -> bool:
        """End a session on behalf of an operator; its client must not reconnect by itself."""
        return self._end_named(key, session_id, Code.KICKED)

    def ban(self, ban: Ban) -> list[Session]:
        """End the sessions that a ban forbids, unless it has ended itself; return them."""
        now = self.clock.now()
        if ban.ends_at <= now or not self._registry.has_user(ban.uid):
            return []
        ended = [each for each in self._registry.sessions_of(ban.uid) if ban.device in (None, each.device)]
        for session in ended:
            self.end(session, Code.BANNED, now)
            self.disconnect(session, ban.goodbye(now))
        return ended

    def limit(self, key: SessionKey, session_id: str, *, may_return: bool = False) -> bool:
        """End a session because its user exceeds the quota over all nodes.

        Args:
            key: of the session.
            session_id: its id.
            may_return: whether it is the newest, and its client may try again once an older session that is
                silent has ended.
        """
        retry_after = self.sessions.idle_timeout if may_return else None
        return self._end_named(key, session_id, Code.SESSION_LIMIT, retry_after)

    def disconnect_all(self, sessions: Iterable[Session], goodbye: Callable[[], bytes]) -> None:
        """Close the connections of sessions without ending them: this server stops, and clients reconnect.

        Each connection is read first, because it may have sent a logout.
        """
        for session in sessions:
            if session.transport is not None:
                session.transport.poll_now(session.handle)
            if session.transport is not None:
                self.disconnect(session, goodbye())

    def _end_named(
        self, key: SessionKey, session_id: str, code: Code, retry_after: float | None = None
    ) -> bool:
        session = self._named(key, session_id)
        if session is None:
            return False
        self.end(session, code, self.clock.now())
        self.disconnect(session, protocol.encode(protocol.goodbye(code, retry_after=retry_after)))
        return True

    def _named(self, key: SessionKey, session_id: str) -> Session | None:
        session = self._registry.get(key)
        return None if session is None or self._registry.session_id(session) != session_id else session
