"""Ends of sessions: idle time-out, expired token, kick, limit, supersession; and registrations in Redis.

The engine, other nodes and operators end sessions here. No method waits. The caller passes the session object
or its id, so a late notice about a superseded session ends nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from presence import protocol
from presence.common.clock import Clock
from presence.core.changes import Change, ChangeSink, Op, SessionName
from presence.core.flap_damping import FlapDamping, FlapDampingCounters
from presence.core.registry import Registry, Session, SessionKey
from presence.core.requests import RequestHandler
from presence.core.token_expiry import TokenExpiry
from presence.core.wheel import TimingWheel
from presence.protocol import Code


@dataclass(eq=False, repr=False)
class RegistrationPolicy:
    """Decides which live sessions may be registered in Redis, and makes the registrations."""

    registry: Registry  # the live sessions
    clock: Clock  # monotonic time
    tick_s: float  # seconds by which a session may outlive its time-out
    _: KW_ONLY
    # whether connections are read before their sessions are called stale; tests switch it off
    poll_before_expiry: bool = True

    def __post_init__(self) -> None:
        self._stale: dict[Session, None] = {}  # in order

    def registrations(self, sessions: Iterable[Session]) -> Iterator[Change]:
        """Return registrations of sessions that are live now, each made when it is asked for.

        A session that has ended meanwhile is registered too; its end follows in the outbox. A registration
        has the profile of the moment at which it is made, so it covers every earlier update.
        A session without a packet for longer than its time-out and a tick, even after its connection was
        polled, is stale (`Op.STALE`): it is registered with its next packet.

        Args:
            sessions: a copy, unaffected by later changes of the registry.
        """
        return self._registrations(sessions, self.clock.now())

    def _registrations(self, sessions: Iterable[Session], now: float) -> Iterator[Change]:
        for session in sessions:
            if self._is_recent(session, now) or self._is_recent_after_poll(session, now):
                yield self.registry.registration(session, now)
            else:
                self._stale[session] = None  # if it has ended meanwhile, the next tick discards it
                yield self.registry.registration(session, now)._replace(op=Op.STALE)

    def _is_recent(self, session: Session, now: float) -> bool:
        """Whether a session's last packet is recent enough; without a stall it always is."""
        return now - session.last_seen <= session.idle_timeout + self.tick_s

    def _is_recent_after_poll(self, session: Session, now: float) -> bool:
        """Read the connection first: a stale session's user may be reported offline before it is read."""
        if session.link is not None and self.poll_before_expiry:
            session.link.poll_now(session.handle)
        return self._is_recent(session, now)

    def registrable_sessions(self) -> Iterator[SessionName]:
        """Return the sessions that Redis should have on record; changes nothing."""
        return self._registrable_sessions(list(self.registry))

    def _registrable_sessions(self, sessions: list[Session]) -> Iterator[SessionName]:
        for session in sessions:
            if session in self.registry and session not in self._stale:
                yield SessionName(session.uid, session.device, self.registry.session_id(session))

    def is_registrable(self, session: Session) -> bool:
        """Whether a live session may be registered."""
        return session not in self._stale

    def register_recovered(self, now: float, append: Callable[[Change], None]) -> None:
        """Register stale sessions that became active again."""
        for session in list(self._stale):
            if session not in self.registry:
                self.discard(session)
            elif self._is_recent(session, now):
                self.discard(session)
                append(self.registry.registration(session, now))

    def discard(self, session: Session) -> None:
        """Drop a session that has ended or was superseded."""
        self._stale.pop(session, None)


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

    registry: Registry  # the live sessions
    counters: EngineCounters  # the engine's counters
    _: KW_ONLY
    deadlines: TimingWheel[SessionKey]  # idle time-outs
    auto_away: TimingWheel[SessionKey]  # when an unattended session is shown as away
    token_expiry: TokenExpiry[SessionKey]  # when tokens expire
    registration_policy: RegistrationPolicy  # which sessions are registered in Redis
    flap_damping: FlapDamping  # computes the grace of sessions that reconnect frequently
    outbox: ChangeSink  # where changes go
    clock: Clock  # monotonic time
    # whether connections are read once more before their sessions end; tests switch it off
    poll_before_expiry: bool
    # notified when a session loses its connection; None: requests are not supported
    request_handler: RequestHandler | None = None
    # whether some connections of the batch are read by tasks of their own, which need a turn
    needs_reader_turn: bool = False

    def __post_init__(self) -> None:
        self._idle: list[Session] = []
        self._inattentive: list[Session] = []
        self._token_expired: list[Session] = []

    def collect_expired(self, tick: int, now: float) -> bool:
        """Collect the next batch of what is due, and read its connections; return whether more may be due.

        The batch is checked again when it is handed out: a packet found by the read has put its session back
        into the wheel, and a new token has extended its expiry.
        """
        keys = self.deadlines.pop_due(tick, MAX_EXPIRED_PER_TURN)
        idle = self.auto_away.pop_due(tick, MAX_EXPIRED_PER_TURN)
        expired, more_expired = self.token_expiry.pop_expired(now, MAX_EXPIRED_PER_TURN)
        self.needs_reader_turn = False
        self.clear_batch()
        self._idle, self._inattentive, self._token_expired = map(self._sessions, (keys, idle, expired))
        if self.poll_before_expiry:
            for session in [*self._idle, *self._inattentive, *self._token_expired]:
                if session.link is not None and not session.link.poll_now(session.handle):
                    self.needs_reader_turn = True
        return bool(keys or idle) or more_expired

    def _sessions(self, keys: Iterable[SessionKey]) -> list[Session]:
        return [session for key in keys if (session := self.registry.get(key)) is not None]

    def idle_sessions(self) -> Iterator[Session]:
        """Yield sessions of the batch that are still idle; the caller ends each before it takes the next."""
        for session in self._idle:
            if session not in self.registry:
                continue
            if session.key in self.deadlines:
                self.counters.saved_by_a_last_look += 1
                continue
            yield session

    def inattentive_sessions(self) -> Iterator[Session]:
        """Yield live sessions of the batch that sent nothing but keepalives."""
        for session in self._inattentive:
            if session in self.registry and session.key not in self.auto_away:
                yield session

    def token_expired_sessions(self) -> Iterator[Session]:
        """Yield live sessions of the batch that sent no new token."""
        for session in self._token_expired:
            if session in self.registry and session.key not in self.token_expiry:
                yield session

    def clear_batch(self) -> None:
        """Drop the batch."""
        self._idle, self._inattentive, self._token_expired = [], [], []

    def end(self, session: Session, code: Code, now: float) -> None:
        """End a session unless it has ended already; leaves its connection open."""
        change = self.registry.end(session, code, now)
        if change is None:
            return
        if session.link is None and (grace_ms := self.flap_damping.extended_grace_ms(session.key)):
            change = change._replace(grace_ms=grace_ms)
        self.deadlines.discard(session.key)
        if self.token_expiry:
            self.token_expiry.discard(session.key)
        if self.auto_away:
            self.auto_away.discard(session.key)
        self.registration_policy.discard(session)
        self.counters.ended[code.reason] = self.counters.ended.get(code.reason, 0) + 1
        self.outbox.append(change)

    def hang_up(self, session: Session, goodbye: bytes) -> None:
        """Close a session's connection after a last packet."""
        link, handle = session.link, session.handle
        session.link = session.handle = session.partial = None
        if link is not None:
            if self.request_handler is not None:
                self.request_handler.session_disconnected(session)
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
        session = self.registry.get(key)
        return None if session is None or self.registry.session_id(session) != session_id else session
