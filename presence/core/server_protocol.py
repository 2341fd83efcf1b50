"""The server's side of the protocol: received bytes in, an outcome out; no I/O and no clock of its own.

A connection is a `Guest` until its login, then the `Session` that the login made. After a hang-up the
transport drains and closes the connection. The reactions follow the table in `protocol/states.py`.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

from presence import protocol
from presence.common import meta_json
from presence.common.clock import Clock
from presence.core.admission import Admission
from presence.core.authenticator import Authenticator, Denied
from presence.core.changes import Change, Profile
from presence.core.registry import Guest, Peer, Registry, Session, SessionKey
from presence.core.requests import REQUEST_KINDS, Request, parse_request
from presence.protocol import Code, Kind, Packet, ProtocolError


@dataclass(slots=True, eq=False)
class Outcome:
    """The effects of some bytes of one connection, for the caller to perform."""

    peer: Peer  # the connection from now on: a guest, or the session that it logged in to
    frames: int = 0  # complete valid frames; each counts as activity
    keepalives: int = 0  # keepalives of a session among them, with or without a request for an answer
    reply: bytearray = field(default_factory=bytearray)  # to send; mutable: one read may have 1,000 answers
    end_code: Code | None = None  # reason to hang up after the reply; None: stay connected
    user_active: bool = False  # whether a packet shows that the user is active, and not only the client
    changes: list[Change] | None = None  # changes for Redis, in order
    excess_sessions: list[Session] | None = None  # sessions beyond the quota after a login, to be ended
    superseded: Session | None = None  # the session of the same device that a login superseded
    superseded_code: Code = Code.REPLACED  # for the goodbye to its client
    requests: list[Request] | None = None  # for the request handler, in order
    expires_at: float | None = None  # when a newly granted token expires, monotonic seconds
    unfinished: bool = False  # whether packets are left for another call, which has to follow soon
    failure: Exception | None = None  # an internal error, which ends this connection only


ARRIVAL_ERROR_S = 0.02  # the kernel dates the arrival of data by its ticks, of up to 10 ms
KEEPALIVE_SHARE = 0.4  # of the idle time-out: two keepalives are due within it
_KEEPALIVE_BODY = protocol.KEEPALIVE[4:]


class SessionQuota(NamedTuple):
    """The number of sessions that a user may have on this node."""

    max_sessions: int = 8
    refuse_new: bool = False  # whether a login beyond it is refused; else the oldest sessions are ended


NO_LIMIT = SessionQuota(max_sessions=2**63)


@dataclass(eq=False, repr=False)
class ServerProtocol:
    """The server's side of the protocol, for all connections."""

    registry: Registry  # where logins are entered
    clock: Clock  # for the time in a login's answer
    # the granted idle time-out for a requested one; seconds, None if the client requests none
    clamp_idle_timeout: Callable[[float | None], float]
    login_timeout: float  # seconds; the client of a login that was unread for longer has given up
    admission: Admission  # limits logins
    _: KW_ONLY
    session_limit: SessionQuota = NO_LIMIT
    authenticator: Authenticator | None = None  # checks tokens; None: clients name their user themselves
    # set while the server stops: logins are refused, each with its own retry time in seconds
    return_after: Callable[[], float] | None = None
    handles_requests: bool = False  # whether there is a request handler; else requests are not supported

    def receive(self, peer: Peer, data: bytes, now: float, max_packets: int = sys.maxsize) -> Outcome:
        """Handle bytes that were read from `peer`'s connection at `now`, at most `max_packets` packets.

        Effects of packets before an internal error stand, such as a login in the same bytes.
        """
        outcome = Outcome(peer)
        if peer.partial:
            data = peer.partial + data
        start, size = 0, len(data)
        try:
            while start < size and outcome.end_code is None:
                if outcome.frames >= max_packets:
                    outcome.unfinished = True
                    break
                peer = outcome.peer
                logged_in = isinstance(peer, Session)
                limit = protocol.FRAME_LIMIT_BYTES if logged_in else protocol.FRAME_LIMIT_BEFORE_LOGIN_BYTES
                end = protocol.frame_end(data, start, limit)
                if not end:
                    break
                body = data[start + 4 : end]
                start = end
                if logged_in and body == _KEEPALIVE_BODY:
                    outcome.frames += 1
                    outcome.keepalives += 1
                    continue
                packet = protocol.decode(body)
                outcome.frames += 1
                if isinstance(peer, Session):
                    self._next_packet(peer, packet, outcome, now)
                else:
                    self._first_packet(peer, packet, outcome, now)
        except ProtocolError as error:
            self._refuse(outcome, error)
        except Exception as error:  # reported with the outcome
            outcome.failure = error
            outcome.end_code = Code.SERVER_ERROR
            outcome.reply += protocol.encode(protocol.goodbye(Code.SERVER_ERROR))
        rest = data[start:] if outcome.end_code is None else b""
        outcome.peer.partial = rest or (None if isinstance(outcome.peer, Session) else b"")
        return outcome

    def _first_packet(self, guest: Guest, packet: Packet, outcome: Outcome, now: float) -> None:
        """Handle the first packet of a connection: a login, or a refusal."""
        if packet.kind != Kind.LOGIN:
            raise _refusal(Code.NOT_LOGGED_IN, "the first packet must be a login", packet)
        if self.return_after is not None:
            message = "this server is being stopped: log in again"
            _refuse_login(packet, outcome, Code.SERVER_DRAIN, message, self.return_after())
            return
        payload = packet.payload
        waited = guest.link.receive_queue_age_s(guest.handle, now)
        if waited > self.login_timeout:
            raise _refusal(
                Code.LOGIN_TIMEOUT, f"the login lay unread for {waited:.1f} s: log in again", packet
            )
        if (uid := self._authenticate(guest, packet, outcome, now)) is None:
            return
        key: SessionKey = (uid, payload["device"]) if "device" in payload else uid
        existing = self.registry.get(key)
        if existing is not None and existing.login_at > now - waited + ARRIVAL_ERROR_S:
            # After a pause connections are read in no particular order; the client is at the later login.
            raise _refusal(Code.REPLACED, "a later login of this device is here already", packet)
        excess_sessions = self._excess_sessions(key) if existing is None else None
        if excess_sessions and self.session_limit.refuse_new:
            raise _refusal(Code.SESSION_LIMIT, "this user has as many sessions as he may have", packet)
        address = guest.link.address(guest.handle) if self.admission.counts_logins else ""
        if (refusal := self.admission.admit_login(now, address, uid)) is not None:
            _refuse_login(packet, outcome, *refusal)
            return
        idle_timeout = self.clamp_idle_timeout(payload.get("idle_timeout"))
        login_result = self.registry.login(
            guest, key, idle_timeout, now - waited, now, profile=_profile(packet)
        )
        outcome.peer = login_result.session
        outcome.superseded = login_result.superseded
        if (
            waited > ARRIVAL_ERROR_S
            and existing is not None
            and existing.login_at > now - waited - ARRIVAL_ERROR_S
        ):
            outcome.superseded_code = Code.CLOSED  # the order of the logins is uncertain: it may return
        outcome.changes = [login_result.change]
        outcome.excess_sessions = excess_sessions
        outcome.user_active = True
        outcome.reply += protocol.encode(
            protocol.ok(
                packet.id,
                session=self.registry.session_id(login_result.session),
                idle_timeout=_as_number(idle_timeout),
                keepalive=_as_number(round(idle_timeout * KEEPALIVE_SHARE, 3)),
                time_ms=self.clock.seen_ms(now),
                v=protocol.VERSION,
            )
        )

    def _authenticate(self, guest: Guest, packet: Packet, outcome: Outcome, now: float) -> str | None:
        """Return the user who logs in; None if the login was refused."""
        uid: str | None = packet.payload.get("uid")
        if self.authenticator is None:
            if uid is None:
                raise _refusal(Code.AUTH_FAILED, "this server checks no tokens: a login needs a uid", packet)
            return uid
        address = guest.link.address(guest.handle)
        if (refusal := self.admission.check_login(now, address)) is not None:
            # Before the token: checking it costs more than all else about a login.
            _refuse_login(packet, outcome, *refusal)
            return None
        token = packet.payload.get("token")
        result = self.authenticator.login(token, uid, address, now)
        if isinstance(result, Denied):
            outcome.reply += _denial(packet, result)
            outcome.end_code = result.code
            return None
        outcome.expires_at = result.expires_at
        return result.uid

    def tidy(self, now: float) -> None:
        """Drop full buckets of the rate limits; called at each tick."""
        self.admission.tidy(now)

    def _excess_sessions(self, key: SessionKey) -> list[Session] | None:
        """Return the user's oldest sessions beyond the quota if one more device logs in; None without any."""
        uid = key if isinstance(key, str) else key[0]
        if not self.registry.has_user(uid):
            return None
        others = self.registry.sessions_of(uid)
        excess = len(others) + 1 - self.session_limit.max_sessions
        if excess <= 0:
            return None
        return sorted(others, key=lambda session: (session.login_at, session.number))[:excess]

    def _next_packet(self, session: Session, packet: Packet, outcome: Outcome, now: float) -> None:
        """Handle a packet of a logged-in connection."""
        self._answer(session, packet, outcome, now)
        if outcome.end_code is None and packet.kind != Kind.KEEPALIVE and not _is_renewal(packet):
            outcome.user_active = True
            self._add_change(self.registry.clear_auto_away(session, now), outcome)

    def _answer(self, session: Session, packet: Packet, outcome: Outcome, now: float) -> None:
        kind = packet.kind
        if kind == Kind.KEEPALIVE:
            outcome.keepalives += 1
            if packet.id is not None:
                outcome.reply += protocol.encode(protocol.ok(packet.id))
        elif kind == Kind.LOGOUT:
            outcome.reply += protocol.encode(protocol.ok(packet.id))
            outcome.end_code = (
                Code.BACKGROUND if packet.payload.get("reason") == "background" else Code.LOGOUT
            )
        elif kind == Kind.LOGIN:
            raise _refusal(Code.PROTOCOL_ERROR, "this connection has logged in already", packet)
        elif kind == Kind.UPDATE:
            self._update(session, packet, outcome, now)
        elif kind in REQUEST_KINDS and self.handles_requests:
            if outcome.requests is None:
                outcome.requests = []
            outcome.requests.append(parse_request(packet))
        elif kind in _SERVER_KINDS:
            raise _refusal(Code.PROTOCOL_ERROR, "packets of this kind come from the server only", packet)
        else:
            what = (
                f"{Kind(kind).name.lower()} packets" if kind in REQUEST_KINDS else f"packets of kind {kind}"
            )
            message = f"this server does not handle {what}"
            outcome.reply += protocol.encode(protocol.error(packet.id, Code.UNSUPPORTED, message))

    def _update(self, session: Session, packet: Packet, outcome: Outcome, now: float) -> None:
        """Handle a change of the profile, a new token, or both."""
        payload = packet.payload
        if (unsupported := self._unsupported(payload)) is not None:
            outcome.reply += protocol.encode(protocol.error(packet.id, Code.UNSUPPORTED, unsupported))
            return
        if wait_s := self.registry.profiles.admit_update(session.number, now):
            wait_s = math.ceil(wait_s * 1000) / 1000
            answer = protocol.error(packet.id, Code.RATE_LIMITED, "too many updates", wait_s)
            outcome.reply += protocol.encode(answer)
            return
        if "token" in payload and not self._renew(session, packet, outcome, now):
            return
        away, text = None, None
        if "status" in payload:
            away = payload["status"] == "away"
        if "meta" in payload:
            text = meta_json.to_text(payload["meta"])
        if not _is_renewal(packet):
            self._add_change(self.registry.update(session, now, away=away, meta=text), outcome)
        outcome.reply += protocol.encode(protocol.ok(packet.id))

    def _unsupported(self, update: Mapping[str, Any]) -> str | None:
        """Return why this server does not support an update; None if it does."""
        if "token" in update and self.authenticator is None:
            return "this server checks no tokens"
        if "idle_timeout" in update:
            return "idle_timeout holds from the login to the end of the session"
        return None

    def _renew(self, session: Session, packet: Packet, outcome: Outcome, now: float) -> bool:
        """Check a client's new token; False: it is refused, and the present one stays valid."""
        if self.authenticator is None or session.link is None:
            return False
        address = session.link.address(session.handle)
        result = self.authenticator.renewal(packet.payload["token"], session.uid, address, now)
        if isinstance(result, Denied):
            outcome.reply += _denial(packet, result)
            return False
        outcome.expires_at = result.expires_at
        return True

    def _add_change(self, change: Change | None, outcome: Outcome) -> None:
        if change is not None:
            outcome.changes = [*(outcome.changes or ()), change]

    def _refuse(self, outcome: Outcome, error: ProtocolError) -> None:
        """Report bad input to the client, then hang up."""
        outcome.end_code = error.code
        if isinstance(outcome.peer, Guest) or error.kind is not None:
            refusal = protocol.error(error.id, error.code, error.message)
        else:
            refusal = protocol.goodbye(error.code, error.message)
        outcome.reply += protocol.encode(refusal)


_SERVER_KINDS = frozenset({Kind.OK, Kind.ERROR, Kind.PRESENCE, Kind.DELIVER, Kind.GOODBYE})


def _profile(login: Packet) -> Profile | None:
    """Return the profile in a login; None without one."""
    payload = login.payload
    if "meta" not in payload and "status" not in payload:
        return None
    return Profile(payload.get("status") == "away", meta_json.to_text(payload.get("meta", {})))


def _refuse_login(packet: Packet, outcome: Outcome, code: Code, message: str, retry_after: float) -> None:
    """Refuse a login that may be tried again later."""
    outcome.reply += protocol.encode(protocol.error(packet.id, code, message, retry_after))
    outcome.end_code = code


def _is_renewal(packet: Packet) -> bool:
    """Whether an update holds a new token and nothing else, which shows no activity of the user."""
    return packet.kind == Kind.UPDATE and packet.payload.keys() == {"token"}


def _denial(packet: Packet, denied: Denied) -> bytes:
    return protocol.encode(protocol.error(packet.id, denied.code, denied.message, denied.retry_after))


def _refusal(code: Code, message: str, packet: Packet) -> ProtocolError:
    return ProtocolError(code, message, id=packet.id, kind=packet.kind)


def _as_number(seconds: float) -> float:
    """Return whole seconds as int: 30 and not 30.0."""
    return int(seconds) if seconds == int(seconds) else seconds
