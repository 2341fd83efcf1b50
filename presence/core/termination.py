"""Ends of sessions: idle time-out, expired token, kick, limit, supersession.

The engine, other nodes and operators end sessions here. No method waits. The caller passes the session object
or its id, so a late notice about a superseded session ends nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from presence import protocol
from presence.common.clock import Clock
from presence.core.changes import ChangeSink
from presence.core.flap_damping import FlapDamping, FlapDampingCounters
from presence.core.registry import Session, SessionKey
from presence.core.sessions import NOTHING_DUE, Sessions
from presence.protocol import Code


@dataclass(slots=True)
class EngineCounters:
    """Counters since the start, and current sessions."""

    sessions: int = 0  # live ones; `away` of them are shown as away
    logins: int = 0  # granted
    # sessions superseded by another login, here or on another node, while they were connected
    taken_over: int = 0
    returned_in_grace: int = 0  # sessions superseded after they had lost their connection
    # keepalives of sessions, including those that request an answer; `frames` are all other valid packets
    beats: int = 0
    frames: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # connections, by reason
    ended: dict[str, int] = field(default_factory=dict)  # sessions, by reason
    saved_by_a_last_look: int = 0  # sessions kept because an unread packet was found at expiry
    away: int = 0
    updates: int = 0  # of profiles
    flapping: FlapDampingCounters = field(default_factory=FlapDampingCounters)
    expiring: int = 0  # sessions with a token that expires
    tokens_expired: int = 0  # connections closed because their token had expired
    packet_floods: int = 0  # connections closed because they sent too many packets
    packet_buckets_kept: int = 0  # users in the table of packet rates


MAX_EXPIRED_PER_TURN: Final = 256  # sessions of each kind before other tasks run: a few milliseconds
_LIMIT_GOODBYE = protocol.encode(protocol.goodbye(Code.SESSION_LIMIT))


@dataclass(eq=False, repr=False)
class SessionTerminator:
    """Ends sessions, and collects those that have expired."""

    sessions: Sessions  # the live sessions and their deadlines
    counters: EngineCounters  # the engine's counters
    _: KW_ONLY
    flap_damping: FlapDamping  # computes the grace of sessions that reconnect frequently
    outbox: ChangeSink  # where changes go
    clock: Clock  # monotonic time
    disconnected: Callable[[Session], None]  # notified when a session loses its connection
    # whether connections are read once more before their sessions end; tests switch it off
    poll_before_expiry: bool = True
    # whether some connections of the batch are read by tasks of their own, which need a turn
    needs_reader_turn: bool = False

    def __post_init__(self) -> None:
        self._registry = self.sessions.registry
        self._batch = NOTHING_DUE

    def collect_expired(self, tick: int, now: float) -> bool:
        """Collect the next batch of what is due, and read its connections; return whether more may be due.

        The batch is checked again when it is handed out: a packet found by the read has put its session back
        into the wheel, and a new token has extended its expiry.
        """
        self.needs_reader_turn = False
        self.clear_batch()
        batch = self._batch = self.sessions.pop_due(tick, now, MAX_EXPIRED_PER_TURN)
        if self.poll_before_expiry:
            for session in [*batch.idle, *batch.inattentive, *batch.token_expired]:
                if session.link is not None and not session.link.poll_now(session.handle):
                    self.needs_reader_turn = True
        return batch.more

    def idle_sessions(self) -> Iterator[Session]:
        """Yield sessions of the batch that are still idle; the caller ends each before it takes the next."""
        for session in self._batch.idle:
            if session not in self._registry:
                continue
            if not self.sessions.is_idle(session):
                self.counters.saved_by_a_last_look += 1
                continue
            yield session

    def inattentive_sessions(self) -> Iterator[Session]:
        """Yield live sessions of the batch that sent nothing but keepalives."""
        for session in self._batch.inattentive:
            if session in self._registry and self.sessions.is_inattentive(session):
                yield session

    def token_expired_sessions(self) -> Iterator[Session]:
        """Yield live sessions of the batch that sent no new token."""
        for session in self._batch.token_expired:
            if session in self._registry and self.sessions.has_expired_token(session):
                yield session

    def clear_batch(self) -> None:
        """Drop the batch."""
        self._batch = NOTHING_DUE

    def end(self, session: Session, code: Code, now: float) -> None:
        """End a session unless it has ended already; leaves its connection open."""
        change = self.sessions.end(session, code, now)
        if change is None:
            return
        if session.link is None and (grace_ms := self.flap_damping.extended_grace_ms(session.key)):
            change = change._replace(grace_ms=grace_ms)
        self.counters.ended[code.reason] = self.counters.ended.get(code.reason, 0) + 1
        self.outbox.append(change)

    def hang_up(self, session: Session, goodbye: bytes) -> None:
        """Close a session's connection after a last packet."""
        link, handle = session.link, session.handle
        session.link = session.handle = session.partial = None
        if link is not None:
            self.disconnected(session)
            link.hang_up(handle, goodbye)

    def evict_excess(self, sessions: list[Session], now: float) -> None:
        """End sessions beyond the user's quota, after the login was reported: the user stays online."""
        for session in sessions:
            self.end(session, Code.SESSION_LIMIT, now)
            self.hang_up(session, _LIMIT_GOODBYE)

    def supersede(self, key: SessionKey, session_id: str, code: Code = Code.REPLACED) -> bool:
        """End a session that another node has taken over.

        Redis usually knows. But a registration of the session may be in flight, and if the other session has
        ended meanwhile, Redis would accept it. Hence the end in the outbox, which otherwise changes nothing.
        """
        session = self._named(key, session_id)
        if session is None:
            return False
        now = self.clock.now()
        if session.link is None:
            self.flap_damping.reconnected(key, now)
            self.counters.returned_in_grace += 1
        else:
            self.counters.taken_over += 1
        self.end(session, Code.REPLACED, now)
        if session.link is not None:
            self.hang_up(session, protocol.encode(protocol.goodbye(code)))
        return True

    def kick(self, key: SessionKey, session_id: str) -> bool:
        """End a session on behalf of an operator; its client must not reconnect by itself."""
        return self._end_for_good(key, session_id, Code.KICKED)

    def limit(self, key: SessionKey, session_id: str) -> bool:
        """End a session because its user exceeds the quota over all nodes."""
        return self._end_for_good(key, session_id, Code.SESSION_LIMIT)

    def say_goodbye_all(self, sessions: Iterable[Session], goodbye: Callable[[], bytes]) -> None:
        """Close the connections of sessions without ending them: this server stops, and clients reconnect.

        Each connection is read first, because it may have sent a logout.
        """
        for session in sessions:
            if session.link is not None:
                session.link.poll_now(session.handle)
            if session.link is not None:
                self.hang_up(session, goodbye())

    def _end_for_good(self, key: SessionKey, session_id: str, code: Code) -> bool:
        session = self._named(key, session_id)
        if session is None:
            return False
        self.end(session, code, self.clock.now())
        self.hang_up(session, protocol.encode(protocol.goodbye(code)))
        return True

    def _named(self, key: SessionKey, session_id: str) -> Session | None:
        session = self._registry.get(key)
        return None if session is None or self._registry.session_id(session) != session_id else session
