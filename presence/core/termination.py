"""How sessions end, for good or for now, whose time is up, and how their connections are let go.

Core, other nodes and operators end sessions here. As in the core no method waits, and whoever ends a session
holds that very session or names it by its id: a late word about a replaced one ends nothing.
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
    """Registrations of live sessions."""

    registry: Registry  # who is here
    clock: Clock  # monotonic time
    tick_s: float  # seconds by which a session may be silent for longer than its time-out
    _: KW_ONLY
    # whether connections are read before their sessions are called stale; tests switch it off
    poll_before_expiry: bool = True

    def __post_init__(self) -> None:
        self._stale: dict[Session, None] = {}  # in order

    def registrations(self, sessions: Iterable[Session]) -> Iterator[Change]:
        """Return registrations of sessions as they live at this moment, each made when it is asked for.

        A session that has ended meanwhile is registered too, and its end follows in the outbox. A
        registration is made of what the session shows at that moment, so it covers every earlier update.
        Sessions not heard within their time-out and a tick, not even when their connection was looked at, are
        not vouched for (`Op.STALE`); they register with their next packet.

        Args:
            sessions: those that lived at this moment; later changes of the registry must not change it.
        """
        return self._registrations(sessions, self.clock.now())

    def _registrations(self, sessions: Iterable[Session], now: float) -> Iterator[Change]:
        for session in sessions:
            if self._is_recent(session, now) or self._is_recent_after_poll(session, now):
                yield self.registry.registration(session, now)
            else:
                self._stale[session] = None  # if it has ended meanwhile, the next tick forgets it again
                yield self.registry.registration(session, now)._replace(op=Op.STALE)

    def _is_recent(self, session: Session, now: float) -> bool:
        """Whether a session was heard lately enough; without a stall none that lives was not."""
        return now - session.last_seen <= session.idle_timeout + self.tick_s

    def _is_recent_after_poll(self, session: Session, now: float) -> bool:
        """Whether a packet lay unread: who is not vouched for may be told offline before it is read."""
        if session.link is not None and self.poll_before_expiry:
            session.link.poll_now(session.handle)
        return self._is_recent(session, now)

    def registrable_sessions(self) -> Iterator[SessionName]:
        """Return the sessions that ought to be on record; nothing changes."""
        return self._registrable_sessions(list(self.registry))

    def _registrable_sessions(self, sessions: list[Session]) -> Iterator[SessionName]:
        for session in sessions:
            if session in self.registry and session not in self._stale:
                yield SessionName(session.uid, session.device, self.registry.session_id(session))

    def is_registrable(self, session: Session) -> bool:
        """Whether a live session is among them."""
        return session not in self._stale

    def register_recovered(self, now: float, append: Callable[[Change], None]) -> None:
        """Register those that were too silent to be registered, and have been heard since."""
        for session in list(self._stale):
            if session not in self.registry:
                self.discard(session)
            elif self._is_recent(session, now):
                self.discard(session)
                append(self.registry.registration(session, now))

    def discard(self, session: Session) -> None:
        """A session has ended, or another took its place."""
        self._stale.pop(session, None)


@dataclass(slots=True)
class EngineCounters:
    """Counters since the start, and sessions now."""

    sessions: int = 0  # that live; `away` of them are shown so
    logins: int = 0  # granted
    # sessions whose place another login, here or on another node, took while they were connected
    taken_over: int = 0
    returned_in_grace: int = 0  # and those whose place another took while they were lost
    # keepalives of sessions, those that ask for an answer too; `frames` are all other packets that were valid
    beats: int = 0
    frames: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # connections, by the reason that they were told
    ended: dict[str, int] = field(default_factory=dict)  # sessions, by reason
    saved_by_a_last_look: int = 0  # sessions whose packet lay unread when their time was up
    away: int = 0
    updates: int = 0  # of how sessions are shown
    flapping: FlapDampingCounters = field(default_factory=FlapDampingCounters)
    expiring: int = 0  # sessions whose end their token sets
    tokens_expired: int = 0  # connections that were sent away to fetch another one
    packet_floods: int = 0  # connections that sent too many packets
    packet_buckets_kept: int = 0  # connections that have lately sent more than a trickle


MAX_EXPIRED_PER_TURN: Final = 256  # sessions that end without a turn for others: a few milliseconds
_LIMIT_GOODBYE = protocol.encode(protocol.goodbye(Code.SESSION_LIMIT))


@dataclass(eq=False, repr=False)
class SessionTerminator:
    """Ends of sessions."""

    registry: Registry  # who is here
    counters: EngineCounters  # what the core counts
    _: KW_ONLY
    deadlines: TimingWheel[SessionKey]  # when whoever is silent ends
    auto_away: TimingWheel[SessionKey]  # when whoever is idle is away by itself
    token_expiry: TokenExpiry[SessionKey]  # when whose token ends
    registration_policy: RegistrationPolicy  # which of them Redis is told to live
    flap_damping: FlapDamping  # how long who comes and goes may be gone
    outbox: ChangeSink  # where changes go
    clock: Clock  # monotonic time
    # whether connections are read once more before their sessions end; tests switch it off
    poll_before_expiry: bool
    # notified when a session loses its connection; None: requests are not supported
    request_handler: RequestHandler | None = None
    # whether tasks of their own read some connections of the slice, and need a turn for it
    needs_reader_turn: bool = False

    def __post_init__(self) -> None:
        self._idle: list[Session] = []
        self._inattentive: list[Session] = []
        self._token_expired: list[Session] = []

    def collect_expired(self, tick: int, now: float) -> bool:
        """Take the next slice of what is due, and read its connections; return whether more may be due.

        A slice is taken twice: after its connections were read once more, whoever is still due is handed out.
        What came in between has put its session back into the wheel, or among the tokens.
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
        """Give those that nothing was heard of; the caller ends each before it asks for the next."""
        for session in self._idle:
            if session not in self.registry:
                continue
            if session.key in self.deadlines:
                self.counters.saved_by_a_last_look += 1
                continue
            yield session

    def inattentive_sessions(self) -> Iterator[Session]:
        """Give those that live and have said nothing but keepalives."""
        for session in self._inattentive:
            if session in self.registry and session.key not in self.auto_away:
                yield session

    def token_expired_sessions(self) -> Iterator[Session]:
        """Give those that live and have sent no fresh token."""
        for session in self._token_expired:
            if session in self.registry and session.key not in self.token_expiry:
                yield session

    def clear_batch(self) -> None:
        """The slice is done with."""
        self._idle, self._inattentive, self._token_expired = [], [], []

    def end(self, session: Session, code: Code, now: float) -> None:
        """End a session, unless it does not live any more; its connection is left as it is."""
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
        """Let a session's connection go with a last packet."""
        link, handle = session.link, session.handle
        session.link = session.handle = session.partial = None
        if link is not None:
            if self.request_handler is not None:
                self.request_handler.session_disconnected(session)
            link.hang_up(handle, goodbye)

    def evict_excess(self, sessions: list[Session], now: float) -> None:
        """End what a login leaves no room for, after the login was told: the user stays online."""
        for session in sessions:
            self.end(session, Code.SESSION_LIMIT, now)
            self.hang_up(session, _LIMIT_GOODBYE)

    def supersede(self, key: SessionKey, session_id: str, code: Code = Code.REPLACED) -> bool:
        """Give up a session that another node has taken over.

        Redis knows already, as a rule. But a registration of it may be under way, and if the other session
        has ended meanwhile nothing there refuses it: hence the end, which otherwise changes nothing.
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
        """End a session because an operator says so; it must not come back by itself."""
        return self._end_for_good(key, session_id, Code.KICKED)

    def limit(self, key: SessionKey, session_id: str) -> bool:
        """End a session because its user has more than he may have, over all nodes."""
        return self._end_for_good(key, session_id, Code.SESSION_LIMIT)

    def say_goodbye_all(self, sessions: Iterable[Session], goodbye: Callable[[], bytes]) -> None:
        """Hang up on sessions without ending them: this server stops, and they have time to come back.

        What they have sent is read before: it may be a logout.
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
