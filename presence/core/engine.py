"""The synchronous core: handles what clients say, and what becomes due.

Transports pass it received bytes and lost connections, the ticker drives its `Expiry`. It changes `Sessions`,
passes every change on in order, towards the outbox, and has transports close connections.
No method waits, so each is atomic and none needs a lock.
"""

import math
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Final

from presence import protocol
from presence.common.clock import Clock
from presence.common.histogram import DETECTION_S, Histogram
from presence.core.admission import PacketRate
from presence.core.authenticator import NO_ROOM_CLAIM, Granted, Refusal, RoomClaim
from presence.core.changes import Change, ChangeSink, Op
from presence.core.engine_counters import EngineCounters
from presence.core.event_facts import facts_of_login
from presence.core.expiry import Expiry
from presence.core.flap_damping import FlapDamping
from presence.core.login_policy import LoginPolicy
from presence.core.profiles import ProfileChange
from presence.core.quiet_sessions import QuietSessions
from presence.core.registry import Client, Guest, Handle, Session, Transport
from presence.core.reregistration import RegistrationPolicy
from presence.core.rooms import RoomMode, renewed, rooms_after, rooms_at_login
from presence.core.server_protocol import Answered, Event, Login, Logout, ReadOutcome, ServerProtocol, Update
from presence.core.service_requests import (
    ConfirmationRequest,
    MessageRequest,
    Request,
    RequestHandler,
    WatchRequest,
)
from presence.core.sessions import Sessions
from presence.core.stall_guard import StallGuard
from presence.core.termination import SessionTerminator
from presence.core.visibility import NOT_ALLOWED, Visibility
from presence.protocol import Code

KEEPALIVE_SHARE: Final = 0.4  # of the idle time-out: two keepalives are due within it

# A keepalive after a longer pause counts for no rate, which spares the fast path a look into a table: a
# session has at most two of these per second.
UNCOUNTED_PAUSE_S: Final = 0.5

_SUPERSEDED_GOODBYES = {
    code: protocol.encode(protocol.goodbye(code)) for code in (Code.REPLACED, Code.CLOSED)
}
_FAILED_GOODBYE = protocol.encode(protocol.goodbye(Code.SERVER_ERROR))


class Engine:
    """What happens to connections and sessions."""

    def __init__(
        self,
        sessions: Sessions,
        login_policy: LoginPolicy,
        server_protocol: ServerProtocol,
        changes: ChangeSink,
        *,
        guard: StallGuard,
        clock: Clock,
        disconnect_grace: float,
        flap_damping: FlapDamping,
        poll_before_expiry: bool = True,
        packet_rate: PacketRate | None = None,
        visibility: Visibility | None = None,
        records_addresses: bool = False,
        rooms: RoomMode = "off",
        detection_delay: Histogram | None = None,
    ) -> None:
        self.sessions = sessions  # the live sessions and their deadlines
        self.registry = sessions.registry
        self.login_policy = login_policy  # who may log in
        self.changes = changes  # takes every change, in order, towards the outbox
        self.guard = guard  # measures stalls; see `connections_read`
        self.clock = clock  # monotonic time
        self.packet_rate = packet_rate  # limits the packets of a user; None: no limit
        self.visibility = visibility  # whom each client may see; None: everybody
        self.records_addresses = records_addresses  # whether events have the client's address
        self.rooms = rooms  # whether clients may be in rooms
        # Told of each client refused before or at its login: why, its address, the uid that it claims to be.
        self.on_refusal: Callable[[Code, str, str | None], None] = lambda _code, _address, _uid: None
        # Rosters that the tokens of sessions claim, of those that do: uids with a space between two.
        self.claimed_rosters: dict[Session, str] = {}
        # Claims `rooms` of the tokens of sessions, of those that have one.
        self.room_claims: dict[Session, RoomClaim] = {}
        self.quiet = QuietSessions()  # sessions that want changes of other users with their next packet
        self._flap_damping = flap_damping  # computes the grace of sessions that reconnect frequently
        self._protocol = server_protocol
        self._request_handler: RequestHandler | None = None
        self._counters = EngineCounters()
        # Which sessions may be registered in Redis. `poll_before_expiry`, here and below: whether connections
        # are read once more before their sessions are called stale, or end; tests switch it off.
        self.registration = RegistrationPolicy(
            self.registry, clock, guard.tick_s, poll_before_expiry=poll_before_expiry
        )
        # Ends sessions; other nodes and operators end them there. `disconnect_grace`: seconds that a session
        # outlives its connection; 0: none.
        self.terminator = SessionTerminator(
            sessions,
            self._counters,
            disconnect_grace=disconnect_grace,
            flap_damping=flap_damping,
            changes=changes,
            clock=clock,
            detached=self._detached,
        )
        # What happens when a deadline passes; the ticker drives it. `detection_delay`: how late sessions end
        # by idle time-out, see `LatencyHistograms`.
        self.expiry = Expiry(
            sessions,
            self.terminator,
            self._report_update,
            self._counters,
            clock=clock,
            poll_before_expiry=poll_before_expiry,
            detection_delay=detection_delay or Histogram(DETECTION_S),
        )

    # What transports call

    def refuse_address(self, address: str) -> Refusal | None:
        """Refuse a connection from an address, as limits count it, that is banned."""
        bans = self.login_policy.bans
        return self.login_policy.refuse_address(address, self.clock.now()) if bans.addresses else None

    def opened(self, transport: Transport, handle: Handle, address: str = "") -> Guest:
        """Handle an accepted connection."""
        return Guest(transport, handle, address)

    def resume(self, client: Client, max_packets: int = sys.maxsize) -> ReadOutcome:
        """Handle packets that were read from a connection before, and are unhandled; see `received`."""
        return self.received(client, b"", max_packets)

    def received(self, client: Client, data: bytes, max_packets: int = sys.maxsize) -> ReadOutcome:
        """Handle bytes that were read from a connection, behind those that are unhandled.

        The caller then sends the reply, disconnects if there is an end code, and calls `dispatch_requests`.
        Effects of packets before an internal error stand, such as a login in the same bytes.

        Args:
            client: the connection they came from.
            data: the bytes.
            max_packets: maximum of packets to handle; see `ReadOutcome.unfinished`.
        """
        client.unhandled += data
        now = self.clock.now()
        outcome = ReadOutcome(client)
        try:
            for event in self._protocol.receive(outcome, max_packets):
                self._handle(event, outcome, now)
            after = outcome.client
            if isinstance(after, Session):
                if outcome.has_activity and after in self.registry:
                    self.sessions.packet_received(after, now)
                if outcome.packets and after in self.quiet.holding:
                    self._release_held((after,))
                # Bytes of a session that complete no packet cost as much as those that complete one.
                packets = outcome.packets or int(after is client)
                if self.packet_rate is not None and outcome.end_code is None and packets:
                    self._count_packets(self.packet_rate, after.uid, packets, outcome, now)
            if outcome.end_code is not None:
                if not isinstance(after, Session) or outcome.end_code not in (Code.LOGOUT, Code.BACKGROUND):
                    _count(self._counters.refused, outcome.end_code)
                self.disconnected(after, outcome.end_code)
        except Exception as error:  # reported with the outcome
            _count(self._counters.refused, Code.SERVER_ERROR)
            self.disconnected(outcome.client, Code.SERVER_ERROR)
            outcome.failure, outcome.end_code = error, Code.SERVER_ERROR
            outcome.reply += _FAILED_GOODBYE
            outcome.unfinished = False
        return outcome

    def _handle(self, event: Event, outcome: ReadOutcome, now: float) -> None:
        if event is Answered.KEEPALIVE:
            self._counters.keepalives += 1
            return
        self._counters.other_packets += 1
        session = outcome.client
        if not isinstance(session, Session):
            if isinstance(event, Login):
                self._log_in(session, event, outcome, now)
            return
        if isinstance(event, Update):
            self._update(session, event, outcome, now)
            if event.is_renewal:
                return
        elif isinstance(event, Logout):
            outcome.end_code = event.code
        elif not isinstance(event, Login | Answered) and (
            self.visibility is None or self._is_allowed(self.visibility, session, event, outcome, now)
        ):
            if outcome.requests is None:
                outcome.requests = []
            outcome.requests.append(event)
            if isinstance(event, ConfirmationRequest):
                return
        if outcome.end_code is None and session in self.registry:
            self._report_update(self.sessions.user_active(session, now))

    def _log_in(self, guest: Guest, login: Login, outcome: ReadOutcome, now: float) -> None:
        """Make a guest a session, and close the connection of the session that it supersedes."""
        grant = self.login_policy.decide(guest, login, now)
        if isinstance(grant, Refusal):
            outcome.reply += protocol.encode(protocol.error(login.id, *grant))
            outcome.end_code = grant.code
            self.on_refusal(grant.code, guest.address, login.uid)
            return
        new = grant.session
        new.features = login.features
        new.shows, new.status_ends_at = self._status_end(login.shows, now)
        new.facts = facts_of_login(
            guest.address, login.device_class, records_addresses=self.records_addresses
        )
        joined = self._rooms_at_login(login, grant.rooms)
        if joined:
            new.shows = new.shows._replace(rooms=joined)
        session, superseded, change = self.sessions.login(guest, new, now)
        outcome.client = session
        if self.visibility is not None:
            self.visibility.set_sight(session, grant.sight)
        if grant.roster:
            self.claimed_rosters[session] = grant.roster
        if grant.rooms is not NO_ROOM_CLAIM:
            self.room_claims[session] = grant.rooms
        if login.quiet:
            self.quiet.set(session, is_quiet=True)
        self.changes.append(change)
        if "-" in new.shows.privacy:  # what a login hides, its own change tells
            self.changes.append(change._replace(op=Op.UPDATE, privacy=new.shows.privacy))
        self._counters.logins += 1
        self._flap_damping.reconnected(session.key, now)
        if superseded is not None:
            if superseded.transport is None:
                self._counters.returned_in_grace += 1
            else:
                self._counters.taken_over += 1
                self.terminator.disconnect(superseded, _SUPERSEDED_GOODBYES[grant.superseded_code])
        self.terminator.evict_excess(grant.excess_sessions, now)
        outcome.reply += protocol.encode_unchecked(
            protocol.ok(
                login.id,
                session=self.registry.session_id(session),
                **_timing(new.idle_timeout),
                time_ms=self.clock.seen_ms(now),
                v=protocol.VERSION,
                **_joined(joined),
                **login.granted,
            )
        )

    def _rooms_at_login(self, login: Login, claim: RoomClaim) -> str | None:
        """Return the rooms of a new session; None where there are no rooms."""
        if self.rooms == "off":
            return None
        rooms = rooms_at_login(login.rooms, claim, self.rooms)
        self._counters.rooms_refused += not {*login.rooms} <= {*rooms.split()}
        return rooms

    def _update(self, session: Session, update: Update, outcome: ReadOutcome, now: float) -> None:
        if wait_s := self.registry.profiles.admit_update(session.number, now):
            wait_s = math.ceil(wait_s * 1000) / 1000
            answer = protocol.error(update.id, Code.RATE_LIMITED, "too many updates", wait_s)
        elif isinstance(granted := self._check_token(session, update.token, now), Refusal):
            answer = protocol.error(update.id, *granted)  # the present token stays valid
        elif isinstance(rooms := self._rooms_after(session, update, granted), Refusal):
            self._counters.rooms_refused += 1
            answer = protocol.error(update.id, *rooms)  # nothing changes, and a new token does not count
        else:
            timing: dict[str, float] = {}
            if granted is not None:
                self._renew_token(session, granted, outcome)
            if not update.is_renewal:
                timing = self._change_session(session, update, rooms, now)
            elif rooms is not None and session in self.registry:
                self._report_update(self.registry.set_rooms(session, rooms, now))
            answer = protocol.ok(update.id, **timing, **_joined(rooms), **update.granted)
        outcome.reply += protocol.encode(answer)

    def _change_session(
        self, session: Session, update: Update, rooms: str | None, now: float
    ) -> dict[str, float]:
        """Change what an update changes beside the token; return what the answer says of the time-out."""
        shows, status_ends_at = self._status_end(update.shows, now)
        if rooms is not None:
            shows = shows._replace(rooms=rooms)
        idle_timeout, timing = None, {}
        if update.idle_timeout is not None:
            idle_timeout = self.login_policy.clamp_idle_timeout(update.idle_timeout)
            timing = _timing(idle_timeout)
        if session in self.registry:
            change = self.sessions.update(session, now, shows, status_ends_at, idle_timeout)
            self._report_update(change)
        if update.quiet is not None:
            self.quiet.set(session, is_quiet=update.quiet)
        return timing

    def _check_token(self, session: Session, token: str | None, now: float) -> Granted | Refusal | None:
        return None if token is None else self.login_policy.renew(session, token, now)

    def _rooms_after(self, session: Session, update: Update, granted: Granted | None) -> str | Refusal | None:
        """Return the rooms of a session after an update; None if it is about other things."""
        if self.rooms == "off" or (update.rooms is None and granted is None):
            return None
        rooms = self.registry.profiles.get(session.number).rooms
        claim = self.room_claims.get(session, NO_ROOM_CLAIM)
        if granted is not None:
            rooms, claim = renewed(rooms, claim, granted.rooms, self.rooms), granted.rooms
        return rooms if update.rooms is None else rooms_after(rooms, update.rooms, claim, self.rooms)

    def _status_end(self, shows: ProfileChange, now: float) -> tuple[ProfileChange, float | None]:
        """Return what a client shows, and when its status ends; a status whose end has passed is not set."""
        if shows.status is None or shows.until_ms is None:
            return shows, None
        left_s = (shows.until_ms - self.clock.seen_ms(now)) / 1000
        if left_s > 0:
            return shows, now + left_s
        return shows._replace(status=None, until_ms=None), None

    def _renew_token(self, session: Session, granted: Granted, outcome: ReadOutcome) -> None:
        if session not in self.registry:
            return
        self.sessions.token_renewed(session, granted.expires_at)
        if self.visibility is not None:
            self.visibility.set_sight(session, granted.sight)
        claimed = self.claimed_rosters.pop(session, "")
        if granted.roster:
            self.claimed_rosters[session] = granted.roster
        claim = self.room_claims.pop(session, NO_ROOM_CLAIM)
        if granted.rooms is not NO_ROOM_CLAIM:
            self.room_claims[session] = granted.rooms
        outcome.sight_changed = (
            self.visibility is not None or granted.roster != claimed or granted.rooms != claim
        )

    def _is_allowed(
        self, visibility: Visibility, session: Session, request: Request, outcome: ReadOutcome, now: float
    ) -> bool:
        """Whether a client may make a request; if not, it is answered.

        Nothing is looked up, so a refusal does not show whether a user exists. Of watches only a bad pass is
        refused here: answers to watches and queries say which users are hidden.
        """
        refusal = None
        if isinstance(request, MessageRequest) and not visibility.allows(session, request.to):
            refusal = Refusal(Code.NOT_ALLOWED, NOT_ALLOWED)
        elif isinstance(request, WatchRequest) and request.visibility_pass is not None:
            refusal = visibility.take_pass(session, request.visibility_pass, now)
        if refusal is None:
            return True
        outcome.reply += protocol.encode(protocol.error(request.id, *refusal))
        return False

    def _report_update(self, change: Change | None) -> None:
        if change is not None:
            self.changes.append(change)
            self._counters.updates += 1

    def _count_packets(
        self, packet_rate: PacketRate, uid: str, packets: int, outcome: ReadOutcome, now: float
    ) -> None:
        """Close a connection that exceeds its rate. Its changes stand; its requests are dropped."""
        goodbye = packet_rate.count_packets(uid, packets, now)
        if goodbye is not None:
            outcome.reply += goodbye
            outcome.end_code = Code.RATE_LIMITED
            outcome.requests = None
            outcome.unfinished = False

    def connections_read(self, keepalives: Collection[Session] = ()) -> None:
        """Note that a batch of ready connections was read, whatever they sent, so that it is no stall.

        Extends the sessions that sent exactly one keepalive each; what others sent was passed to `received`.
        The time is taken here, after the reads: a time taken before them could end a session early whose
        packet arrived while the batch was being read.
        """
        now = self.clock.now()
        self.guard.loop_ran(now)
        if not keepalives:
            return
        since = math.inf if self.packet_rate is None else now - UNCOUNTED_PAUSE_S
        extended, frequent = self.sessions.keepalives_received(keepalives, now, since)
        self._counters.keepalives += extended
        if self.quiet.holding:
            self._release_held(self.quiet.holding.intersection(keepalives))
        if frequent and self.packet_rate is not None:
            self._count_keepalives(frequent, self.packet_rate, now)

    def _release_held(self, sessions: Iterable[Session]) -> None:
        """Have what is held for some sessions sent, behind the answers to the packets that were read."""
        if self._request_handler is not None:
            for session in sessions:
                self._request_handler.release_held(session)

    def _count_keepalives(self, sessions: Iterable[Session], packet_rate: PacketRate, now: float) -> None:
        """Count a keepalive of each of some sessions, and close connections that exceed their rate."""
        for session in sessions:
            goodbye = packet_rate.count_packets(session.uid, 1, now)
            if goodbye is not None:
                _count(self._counters.refused, Code.RATE_LIMITED)
                self.terminator.disconnect_with_grace(session, Code.RATE_LIMITED, goodbye)

    def disconnected(self, client: Client, code: Code = Code.CLOSED) -> None:
        """Handle the loss of a connection, or that its transport is about to close it with `code`."""
        if isinstance(client, Session):
            self.terminator.disconnected(client, code)

    def _detached(self, session: Session) -> None:
        self.quiet.disconnected(session)
        self.claimed_rosters.pop(session, None)
        self.room_claims.pop(session, None)
        if self.visibility is not None:
            self.visibility.discard(session)
        if self._request_handler is not None:
            self._request_handler.session_disconnected(session)

    def disconnect_after_failure(self, session: Session) -> None:
        """Close a session's connection after an internal error; its client reconnects."""
        self.terminator.disconnect_with_grace(session, Code.SERVER_ERROR, _FAILED_GOODBYE)

    def dispatch_requests(self, outcome: ReadOutcome) -> Exception | None:
        """Pass the requests of an outcome to the request handler, after its reply was sent.

        Returns:
            What the handler raised: an internal error, which closes this connection and no other.
        """
        session = outcome.client
        if self._request_handler is None or not isinstance(session, Session):
            return None
        try:
            if outcome.sight_changed and session.transport is not None:
                self._request_handler.sight_changed(session)
            for request in outcome.requests or ():
                # A lost connection needs no answers, but messages and confirmations from before count.
                if session.transport is not None or isinstance(request, MessageRequest | ConfirmationRequest):
                    self._request_handler.handle(session, request)
        except Exception as error:
            self.disconnect_after_failure(session)
            return error
        return None

    def all_sent(self, session: Session) -> None:
        """Notify the request handler that a connection's unsent bytes have all been sent."""
        if self._request_handler is not None:
            self._request_handler.all_sent(session)

    def refuse_input(self, client: Client, refusal: Refusal) -> bytes:
        """Handle input that breaks a rule below the protocol's frames; return the last packet to send."""
        _count(self._counters.refused, refusal.code)
        self.disconnected(client, refusal.code)
        if isinstance(client, Session):
            return protocol.encode(protocol.goodbye(*refusal))
        return protocol.encode(protocol.error(None, *refusal))

    def frames_received(self, session: Session, frames: int) -> Refusal | None:
        """Count frames of a transport that carry no packet as packets; return a refusal beyond the rate."""
        if self.packet_rate is None:
            return None
        wait_s = self.packet_rate.wait_s(session.uid, frames, self.clock.now())
        return None if wait_s is None else Refusal(Code.RATE_LIMITED, "too many frames", wait_s)

    def connection_refused(self, code: Code, address: str) -> None:
        """Count a connection that a transport refused by itself, from an address as limits count it."""
        _count(self._counters.refused, code)
        self.on_refusal(code, address, None)

    # What the ticker calls

    def slot_done(self, now: float) -> None:
        """Register stale sessions that became active again, and tidy tables."""
        self.registration.register_recovered(now, self.changes.append)
        self.login_policy.admission.tidy()
        if self.packet_rate is not None:
            self.packet_rate.tidy(now)

    # What the relay and the server call

    def refuse_logins(self, return_after: Callable[[], float]) -> None:
        """Refuse logins because this server stops; `return_after` draws the seconds until a retry."""
        self.login_policy.return_after = return_after

    @property
    def request_handler(self) -> RequestHandler | None:
        """Answers requests; without one they are not supported."""
        return self._request_handler

    @request_handler.setter
    def request_handler(self, request_handler: RequestHandler | None) -> None:
        self._request_handler = request_handler
        self._protocol.handles_requests = request_handler is not None

    def statistics(self) -> EngineCounters:
        return replace(
            self._counters,
            sessions=len(self.registry),
            away=self.registry.profiles.away,
            flapping=self._flap_damping.statistics(),
            expiring=self.sessions.with_token,
            quiet=len(self.quiet.sessions),
            passes=0 if self.visibility is None else self.visibility.passes,
            passes_full=0 if self.visibility is None else self.visibility.passes_full,
            packet_floods=0 if self.packet_rate is None else self.packet_rate.floods,
            packet_buckets_kept=0 if self.packet_rate is None else self.packet_rate.table_size,
            bans=len(self.login_policy.bans),
        )


def _count(counters: dict[str, int], code: Code) -> None:
    counters[code.reason] = counters.get(code.reason, 0) + 1


def _timing(idle_timeout: float) -> dict[str, float]:
    """Return what an answer says of a granted idle time-out."""
    keepalive = round(idle_timeout * KEEPALIVE_SHARE, 3)
    return {"idle_timeout": _as_number(idle_timeout), "keepalive": _as_number(keepalive)}


def _joined(rooms: str | None) -> dict[str, list[str]]:
    """Return what an answer says of the rooms of a session."""
    return {} if rooms is None else {"joined": rooms.split()}


def _as_number(seconds: float) -> float:
    """Return whole seconds as int: 30 and not 30.0."""
    return int(seconds) if seconds == int(seconds) else seconds
