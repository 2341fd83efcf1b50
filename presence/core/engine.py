"""The synchronous core: applies the decisions of the pure modules.

Transports pass it received bytes and lost connections, the ticker passes it ticks. It keeps registry and
wheel in step, appends every change to the outbox in order, and has transports close connections.
No method waits, so each is atomic and none needs a lock.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from typing import Any, Final

from presence import protocol
from presence.common.clock import Clock
from presence.common.histogram import DETECTION_S, Histogram
from presence.core.admission import PacketRate
from presence.core.changes import Change, ChangeSink, Op, SessionName
from presence.core.flap_damping import FlapDamping
from presence.core.registry import Guest, Link, Peer, Registry, Session, SessionKey, SessionTimers
from presence.core.requests import Message, RequestHandler
from presence.core.server_protocol import Outcome, ServerProtocol
from presence.core.termination import EngineCounters, RegistrationPolicy, SessionTerminator
from presence.core.ticks import SLOTS_PER_TICK, StallGuard, Ticks
from presence.core.token_expiry import TokenExpiry
from presence.core.wheel import TimingWheel
from presence.protocol import Code

SPARE_SLOTS: Final = 3  # deadlines are rounded up to a slot, and the first slots may be overdue
MAX_REPORTED_SLOTS: Final = 1200  # ten minutes of slots of 0.5 s: some 4 KB, and 0.1 ms to count

_SUPERSEDED_GOODBYES = {
    code: protocol.encode(protocol.goodbye(code)) for code in (Code.REPLACED, Code.CLOSED)
}
_IDLE_GOODBYE = protocol.encode(protocol.goodbye(Code.IDLE_TIMEOUT))
_FAILED_GOODBYE = protocol.encode(protocol.goodbye(Code.SERVER_ERROR))
_EXPIRED_GOODBYE = protocol.encode(protocol.goodbye(Code.AUTH_EXPIRED))


@dataclass(eq=False, repr=False)
class Engine:
    """Sessions and their deadlines.

    Attributes:
        terminator: ends sessions; other nodes and operators end them there.
    """

    registry: Registry  # the live sessions
    server_protocol: ServerProtocol  # what a connection may do next
    outbox: ChangeSink  # where changes go
    _: KW_ONLY
    ticks: Ticks  # time to slots
    guard: StallGuard  # notified whenever connections were read
    clock: Clock  # monotonic time
    idle_timeout: float  # T, seconds, of a session that requested no other
    disconnect_grace: float  # seconds that a session outlives its connection; 0: none
    max_idle_timeout: InitVar[float]  # seconds; sizes the ring
    flap_damping: FlapDamping  # computes the grace of sessions that reconnect frequently
    # whether connections are read once more before their sessions end; tests switch it off
    poll_before_expiry: InitVar[bool] = True
    # seconds with nothing but keepalives after which a session is shown as away; 0: never
    away_after: float = 0.0
    packet_rate: PacketRate | None = None  # limits the packets of a user; None: no limit
    # how late sessions end by idle time-out; see `LatencyHistograms.detection_delay`
    detection_delay: Histogram = field(default_factory=lambda: Histogram(DETECTION_S))

    def __post_init__(self, max_idle_timeout: float, poll_before_expiry: bool) -> None:
        self._registration_policy = RegistrationPolicy(
            self.registry,
            self.clock,
            self.ticks.slot_s * SLOTS_PER_TICK,
            poll_before_expiry=poll_before_expiry,
        )
        slots = int(max(self.idle_timeout, max_idle_timeout, self.away_after) / self.ticks.slot_s) + 2
        cursor = self.ticks.at_or_before(self.clock.now())
        self._wheel: TimingWheel[SessionKey] = TimingWheel(slots, cursor)
        self._auto_away: TimingWheel[SessionKey] = TimingWheel(slots if self.away_after else 0, cursor)
        self._token_expiry: TokenExpiry[SessionKey] = TokenExpiry(self.clock.now())
        self._counters = EngineCounters()
        self.terminator = SessionTerminator(
            self.registry,
            self._counters,
            deadlines=self._wheel,
            auto_away=self._auto_away,
            token_expiry=self._token_expiry,
            registration_policy=self._registration_policy,
            flap_damping=self.flap_damping,
            outbox=self.outbox,
            clock=self.clock,
            poll_before_expiry=poll_before_expiry,
        )
        self._request_handler: RequestHandler | None = None

    # What transports call

    def opened(self, link: Link, handle: Any) -> Guest:
        """Handle an accepted connection."""
        return Guest(link, handle)

    def received(self, peer: Peer, data: bytes, max_packets: int = sys.maxsize) -> Outcome:
        """Handle bytes that were read from a connection.

        The caller then sends the reply, hangs up if there is an end code, and calls `dispatch_requests`.

        Args:
            peer: the connection they came from.
            data: the bytes; b"" continues an unfinished outcome.
            max_packets: maximum of packets to handle; see `Outcome.unfinished`.
        """
        now = self.clock.now()
        outcome: Outcome | None = None
        try:
            outcome = self.server_protocol.receive(peer, data, now, max_packets)
            self._counters.beats += outcome.keepalives
            self._counters.frames += outcome.frames - outcome.keepalives
            after = outcome.peer
            if isinstance(after, Session):
                if outcome.changes is not None:
                    self._append_all(outcome.changes)
                if after is not peer:
                    self._login_done(after, outcome)
                elif outcome.frames and after in self.registry:
                    after.last_seen = now
                    self._wheel.touch(after.key, self.ticks.at_or_after(now + after.idle_timeout))
                if outcome.expires_at is not None and after in self.registry:
                    self._token_expiry.set(after.key, outcome.expires_at)
                if outcome.excess_sessions is not None:
                    self.terminator.evict_excess(outcome.excess_sessions, now)
                if self.away_after and outcome.user_active and after in self.registry:
                    self._auto_away.touch(after.key, self.ticks.at_or_after(now + self.away_after))
                if self.packet_rate is not None and outcome.end_code is None:
                    self._count_packets(after.uid, outcome, now)
            if outcome.end_code is not None:
                if not isinstance(after, Session) or outcome.end_code not in (Code.LOGOUT, Code.BACKGROUND):
                    _count(self._counters.refused, outcome.end_code)
                self.closed(after, outcome.end_code)
        except Exception as error:  # reported with the outcome
            outcome = outcome or Outcome(peer)
            self.closed(outcome.peer, Code.SERVER_ERROR)
            outcome.failure, outcome.end_code = error, Code.SERVER_ERROR
            outcome.reply += _FAILED_GOODBYE
            outcome.requests, outcome.unfinished = None, False
        return outcome

    def _login_done(self, session: Session, outcome: Outcome) -> None:
        """Arm the wheel for a new session, and close the connection of the session that it supersedes."""
        self._counters.logins += 1
        self._wheel.touch(session.key, self.ticks.at_or_after(session.last_seen + session.idle_timeout))
        self.flap_damping.reconnected(session.key, session.last_seen)
        if (old := outcome.superseded) is None:
            return
        self._registration_policy.discard(old)
        if old.link is None:
            self._counters.returned_in_grace += 1
        else:
            self._counters.taken_over += 1
            self.terminator.hang_up(old, _SUPERSEDED_GOODBYES[outcome.superseded_code])

    def _count_packets(self, uid: str, outcome: Outcome, now: float) -> None:
        """Close a connection that exceeds its rate. Its changes stand; its requests are dropped."""
        packets = max(1, outcome.frames)  # a read that completes no packet costs as much as one that does
        goodbye = self.packet_rate.count_packets(uid, packets, now) if self.packet_rate else None
        if goodbye is not None:
            outcome.reply += goodbye
            outcome.end_code = Code.RATE_LIMITED
            outcome.requests = None
            outcome.unfinished = False

    def _append_all(self, changes: list[Change]) -> None:
        for change in changes:
            self.outbox.append(change)
            self._counters.updates += change.op is Op.UPDATE

    def keepalives_received(self, sessions: Iterable[Session]) -> None:
        """Extend sessions that sent exactly one keepalive each; called after the whole batch was read.

        The time is taken here, after the reads: a time taken before them could end a session early whose
        packet arrived while the batch was being read. A session that lost its connection within the batch
        is skipped, because its key may belong to another session by now, or to none.
        """
        now = self.clock.now()
        self.guard.loop_ran(now)
        usual = self.idle_timeout
        keys = []
        for session in sessions:
            if session.link is None:
                continue
            session.last_seen = now
            if session.idle_timeout == usual:
                keys.append(session.key)
            else:
                self._wheel.touch(session.key, self.ticks.at_or_after(now + session.idle_timeout))
                self._counters.beats += 1
        if keys:
            self._counters.beats += len(keys)
            self._wheel.touch_all(keys, self.ticks.at_or_after(now + usual))

    def closed(self, peer: Peer, code: Code = Code.CLOSED) -> None:
        """Handle the loss of a connection, or that its transport is about to close it with `code`.

        A client that may reconnect has its grace period; after other codes the session ends immediately.
        """
        if not isinstance(peer, Session) or peer.link is None:
            return
        peer.link = peer.handle = peer.partial = None
        if self._request_handler is not None:
            self._request_handler.session_disconnected(peer)
        if peer not in self.registry:
            return
        now = self.clock.now()
        if not code.reconnect or not self.disconnect_grace:
            self.terminator.end(peer, code, now)
            return
        peer.end_code = code
        idle_deadline = self._wheel.tick_of(peer.key)
        grace = self.flap_damping.connection_lost(peer.key, now)
        if idle_deadline is not None:  # None: it has expired, and is in the batch that ends now
            self._wheel.touch(peer.key, min(idle_deadline, self.ticks.at_or_after(now + grace)))

    def fail(self, session: Session) -> None:
        """Close a session's connection after an internal error; its client reconnects."""
        link, handle = session.link, session.handle
        if link is not None:
            self.closed(session, Code.SERVER_ERROR)
            link.hang_up(handle, _FAILED_GOODBYE)

    def dispatch_requests(self, outcome: Outcome) -> Exception | None:
        """Pass the requests of an outcome to the request handler, after its reply was sent.

        Returns:
            What the handler raised: an internal error, which closes this connection and no other.
        """
        session = outcome.peer
        if self._request_handler is None or not isinstance(session, Session):
            return None
        try:
            for request in outcome.requests or ():
                # A lost connection needs no answers, but a message sent before the loss is still delivered.
                if session.link is not None or isinstance(request, Message):
                    self._request_handler.handle(session, request)
        except Exception as error:
            self.fail(session)
            return error
        return None

    def drained(self, session: Session) -> None:
        """Notify the request handler that a connection's unsent bytes have all been sent."""
        if self._request_handler is not None:
            self._request_handler.drained(session)

    def count_refusal(self, code: Code) -> None:
        """Count a connection that a transport refused by itself."""
        _count(self._counters.refused, code)

    # What the ticker calls

    def collect_expired(self, tick: int) -> bool:
        """Collect a batch of what is due and read its connections; return whether more may be due."""
        return self.terminator.collect_expired(tick, self.clock.now())

    def expire_idle(self, now: float) -> int:
        """End the sessions of the batch that stayed idle; return how many. A touch has rescued the others.

        Sessions without activity become away, and those with an expired token lose their connection.
        """
        ended = 0
        for session in self.terminator.idle_sessions():
            if session.end_code is Code.IDLE_TIMEOUT:
                self.detection_delay.observe(now - session.last_seen - session.idle_timeout)
            self.terminator.end(session, session.end_code, now)
            if session.link is not None:
                self.terminator.hang_up(session, _IDLE_GOODBYE)
            ended += 1
        for session in self.terminator.inattentive_sessions():
            change = self.registry.set_auto_away(session, now)
            self._append_all([] if change is None else [change])
        for session in self.terminator.token_expired_sessions():
            self._expire_token(session)
        self.terminator.clear_batch()
        return ended

    def _expire_token(self, session: Session) -> None:
        """Close the connection, with the usual grace period; a lost one has its grace already."""
        link, handle = session.link, session.handle
        if link is None:
            return
        self._counters.tokens_expired += 1
        self.closed(session, Code.AUTH_EXPIRED)
        link.hang_up(handle, _EXPIRED_GOODBYE)

    def tick_done(self, now: float) -> None:
        """Register stale sessions that became active again, and tidy tables."""
        self._registration_policy.register_recovered(now, self.outbox.append)
        self.server_protocol.tidy(now)
        if self.packet_rate is not None:
            self.packet_rate.tidy(now)

    # What the relay and the server call

    def registrations(self, sessions: Iterable[Session]) -> Iterator[Change]:
        """Return registrations of live sessions; see `RegistrationPolicy.registrations`."""
        return self._registration_policy.registrations(sessions)

    def registrable_sessions(self) -> Iterator[SessionName]:
        """Return the sessions that Redis should have on record; changes nothing."""
        return self._registration_policy.registrable_sessions()

    def refuse_logins(self, return_after: Callable[[], float]) -> None:
        """Refuse logins because this server stops; `return_after` draws the seconds until a retry."""
        self.server_protocol.return_after = return_after

    def slot_sizes(self, slots: int) -> list[int]:
        """Return how many sessions are due in each of the next slots, soonest first."""
        return self._wheel.slot_sizes(slots)

    def upcoming_expirations(self) -> dict[str, Any]:
        """Return how many sessions are due in each of the next slots; O(slots).

        Returns:
            `slot_s`; `next_s`: seconds until the first of `sizes` is due, 0 if overdue; `sizes`: sessions in
            each of the next slots, soonest first, up to T; `later`: sessions that are due after these.
        """
        wheel, slot_s = self._wheel, self.ticks.slot_s
        sizes = wheel.slot_sizes(min(math.ceil(self.idle_timeout / slot_s) + SPARE_SLOTS, MAX_REPORTED_SLOTS))
        next_s = max(0.0, self.ticks.start_of(wheel.cursor + 1) - self.clock.now())
        return {"slot_s": slot_s, "next_s": next_s, "sizes": sizes, "later": len(wheel) - sum(sizes)}

    def ends_at(self, session: Session) -> float:
        """Return when a session ends if nothing more is received from its client."""
        slot = self._wheel.tick_of(session.key)
        return self.clock.now() if slot is None else self.ticks.start_of(slot)

    def session_timers(self, session: Session) -> SessionTimers:
        """Return the deadlines of a session; changes nothing."""
        wheel, starts = self._wheel, self.ticks.start_of
        slot, away = wheel.tick_of(session.key), self._auto_away.tick_of(session.key)
        return SessionTimers(
            slot,
            wheel.cursor,
            self.ticks.slot_s,
            None if slot is None else starts(slot),
            None if away is None else starts(away),
            self._token_expiry.expires_at(session.key),
            self._registration_policy.is_registrable(session),
        )

    @property
    def request_handler(self) -> RequestHandler | None:
        """Answers requests; without one they are not supported."""
        return self._request_handler

    @request_handler.setter
    def request_handler(self, request_handler: RequestHandler | None) -> None:
        self._request_handler = self.terminator.request_handler = request_handler
        self.server_protocol.handles_requests = request_handler is not None

    @property
    def needs_reader_turn(self) -> bool:
        """Whether tasks have yet to read connections of the batch."""
        return self.terminator.needs_reader_turn

    @property
    def sessions(self) -> Registry:
        """The registry, read-only."""
        return self.registry

    def statistics(self) -> EngineCounters:
        """Return the counters."""
        return replace(
            self._counters,
            sessions=len(self.registry),
            away=self.registry.profiles.away,
            flapping=self.flap_damping.statistics(),
            expiring=len(self._token_expiry),
            packet_floods=0 if self.packet_rate is None else self.packet_rate.floods,
            packet_buckets_kept=0 if self.packet_rate is None else self.packet_rate.table_size,
        )


def _count(counters: dict[str, int], code: Code) -> None:
    counters[code.reason] = counters.get(code.reason, 0) + 1
