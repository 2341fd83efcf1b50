"""Ends of sessions, and of their connections.

Three verbs, which mean the same in the core and in the transports:

* *end* a session: it is over, out of all tables, and its end is in the outbox. Its connection stays.
* *disconnect* a client: its session loses the connection, which is closed behind a goodbye; it is
  *disconnected* if it has lost it. Neither is an end. After a code that forbids to reconnect, and where there
  is no grace, the end follows immediately; else when the grace is over, unless the device is back.
* *close* a descriptor: the transports' alone, after either.

    cause                                       called by                 calls here
    silence; the grace is over                  Expiry                    end, disconnect
    kick; ban                                   Node                      kick; ban: end, disconnect
    too many sessions of a user                 Engine at a login; Node   evict_excess; limit: end, disconnect
    a login of the same device elsewhere        Node                      supersede: end, disconnect
    a login of the same device here             Engine                    disconnect, and no end
    the server stops; a rebalance               server/drain.py,          disconnect_all, and no end
                                                server/rebalancer.py
    an expired token, an error, a flood         Expiry, Engine            disconnect_with_grace
    connection lost, slow reader                transports, by Engine     disconnected
    bad input, logout                           Engine.received           disconnected, before the close

`Node` is the class of server/node_assembly.py. No method waits. The caller passes the session object or its
id, so a late notice about a superseded session ends nothing.
"""

from collections.abc import Callable, Iterable

from presence import protocol
from presence.common.clock import Clock
from presence.core.ban_list import AddressBan, Ban
from presence.core.changes import ChangeSink
from presence.core.engine_counters import EngineCounters
from presence.core.flap_damping import FlapDamping
from presence.core.registry import Session, SessionKey
from presence.core.sessions import Sessions
from presence.protocol import Code

_LIMIT_GOODBYE = protocol.encode(protocol.goodbye(Code.SESSION_LIMIT))


class SessionTerminator:
    """Ends sessions and disconnects their clients.

    Args:
        sessions: the live sessions and their deadlines.
        counters: the engine's.
        disconnect_grace: seconds that a session outlives its connection; 0: none.
        flap_damping: computes the grace of sessions that reconnect frequently.
        changes: takes every change, in order, towards the outbox.
        clock: monotonic time.
        detached: called when a session has lost its connection, once for each.
    """

    def __init__(
        self,
        sessions: Sessions,
        counters: EngineCounters,
        *,
        disconnect_grace: float,
        flap_damping: FlapDamping,
        changes: ChangeSink,
        clock: Clock,
        detached: Callable[[Session], None],
    ) -> None:
        self._sessions = sessions
        self._registry = sessions.registry
        self._counters = counters
        self._disconnect_grace = disconnect_grace
        self._flap_damping = flap_damping
        self._changes = changes
        self._clock = clock
        self._detached = detached

    def end(self, session: Session, code: Code, now: float) -> None:
        """End a session unless it has ended already; leaves its connection open."""
        change = self._sessions.end(session, code, now)
        if change is None:
            return
        if session.transport is None and (grace_ms := self._flap_damping.extended_grace_ms(session.key)):
            change = change._replace(grace_ms=grace_ms)
        self._counters.ended[code.reason] = self._counters.ended.get(code.reason, 0) + 1
        self._changes.append(change)

    def disconnect(self, session: Session, goodbye: bytes) -> None:
        """Close a session's connection, if it has one, after a last packet."""
        transport, handle = session.transport, session.handle
        if transport is not None:
            self._detach(session)
            transport.disconnect(handle, goodbye)

    def disconnect_with_grace(self, session: Session, code: Code, goodbye: bytes) -> None:
        """Close a session's connection, if it has one, after a last packet; its client may return."""
        transport, handle = session.transport, session.handle
        if transport is not None:
            self.disconnected(session, code)
            transport.disconnect(handle, goodbye)

    def disconnected(self, session: Session, code: Code) -> None:
        """Handle the loss of a session's connection, or that its transport closes it with `code`."""
        if session.transport is None:
            return
        self._detach(session)
        if session not in self._registry:
            return
        now = self._clock.now()
        if not code.reconnect or not self._disconnect_grace:
            self.end(session, code, now)
            return
        session.end_code = code
        self._sessions.begin_grace(session, self._flap_damping.connection_lost(session.key, now), now)

    def _detach(self, session: Session) -> None:
        session.detach()
        self._detached(session)

    def evict_excess(self, sessions: list[Session], now: float) -> None:
        """End sessions beyond the user's quota, after the login was reported: the user stays online."""
        for session in sessions:
            self.end(session, Code.SESSION_LIMIT, now)
            self.disconnect(session, _LIMIT_GOODBYE)

    def supersede(self, key: SessionKey, session_id: str, goodbye_code: Code = Code.REPLACED) -> bool:
        """End a session that another node has taken over; its client gets a goodbye with `goodbye_code`.

        Redis usually knows. But a registration of the session may be in flight, and if the other session has
        ended meanwhile, Redis would accept it. Hence the end in the outbox, which otherwise changes nothing.
        """
        session = self._named(key, session_id)
        if session is None:
            return False
        now = self._clock.now()
        if session.transport is None:
            self._flap_damping.reconnected(key, now)
            self._counters.returned_in_grace += 1
        else:
            self._counters.taken_over += 1
        self.end(session, Code.REPLACED, now)
        self.disconnect(session, protocol.encode(protocol.goodbye(goodbye_code)))
        return True

    def kick(self, key: SessionKey, session_id: str) -> bool:
        """End a session on behalf of an operator; its client must not reconnect by itself."""
        return self._end_named(key, session_id, Code.KICKED)

    def ban(self, ban: Ban) -> list[Session]:
        """End the sessions that a ban forbids, unless it has ended itself; return them."""
        now = self._clock.now()
        if ban.ends_at <= now or not self._registry.has_user(ban.uid):
            return []
        ended = [each for each in self._registry.sessions_of(ban.uid) if ban.device in (None, each.device)]
        for session in ended:
            self.end_banned(session, ban)
        return ended

    def end_banned(self, session: Session, ban: Ban | AddressBan) -> None:
        """End a session that a ban forbids."""
        now = self._clock.now()
        self.end(session, Code.BANNED, now)
        self.disconnect(session, ban.goodbye(now))

    def limit(self, key: SessionKey, session_id: str, *, may_return: bool = False) -> bool:
        """End a session because its user exceeds the quota over all nodes.

        Args:
            key: of the session.
            session_id: its id.
            may_return: whether it is the newest, and its client may try again once an older session that is
                silent has ended.
        """
        retry_after = self._sessions.idle_timeout if may_return else None
        return self._end_named(key, session_id, Code.SESSION_LIMIT, retry_after)

    def disconnect_all(self, sessions: Iterable[Session], goodbye: Callable[[], bytes]) -> None:
        """Close the connections of sessions without ending them, for clients to reconnect, here or elsewhere.

        The session of one that does not return ends by its idle time-out. Each connection is read first,
        because it may have sent a logout.
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
        self.end(session, code, self._clock.now())
        self.disconnect(session, protocol.encode(protocol.goodbye(code, retry_after=retry_after)))
        return True

    def _named(self, key: SessionKey, session_id: str) -> Session | None:
        session = self._registry.get(key)
        return None if session is None or self._registry.session_id(session) != session_id else session
