"""What one connection may do next: bytes in, an outcome out; no I/O and no clock of its own.

A connection is a `Guest` until its login, then the `Session` that the login made. What follows a hang-up
is the transport's business: it drains and closes. The reactions are the table in `protocol/states.py`.
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
from presence.core.requests import KINDS, Request, request_of
from presence.protocol import Code, Kind, Packet, ProtocolError


@dataclass(slots=True, eq=False)
class Outcome:
    """What some bytes of one connection caused, for the shell to perform."""

    peer: Peer  # who the connection belongs to from now on
    frames: int = 0  # complete valid frames, each of them activity
    keepalives: int = 0  # of these, keepalives of a session, whether they ask for an answer or not
    # to send on the connection; bytes would be copied for each of thousands of answers to one read
    reply: bytearray = field(default_factory=bytearray)
    end_code: Code | None = None  # set if the connection is to be hung up after the reply, with the reason
    attentive: bool = False  # whether a packet said more than that the client lives
    changes: list[Change] | None = None  # what the packets cause in Redis, in order; None if that is nothing
    crowded: list[Session] | None = None  # sessions that a login leaves no room for, to be ended
    displaced: Session | None = None  # the session that a login took the place of
    displaced_code: Code = Code.REPLACED  # what that one's client is told
    requests: list[Request] | None = None  # what the desk is to answer, in order; None if there is nothing
    expires_at: float | None = None  # when the token ends, monotonic seconds; None: none was granted
    unfinished: bool = False  # whether packets are left for another call, which is to come soon
    failure: Exception | None = None  # what a handler raised, a mistake of ours: it ends this connection only


ARRIVAL_ERROR_S = 0.02  # the kernel dates the arrival of data by its ticks, of up to 10 ms
KEEPALIVE_SHARE = 0.4  # of the idle time-out: two beats can be lost before the third would be late
_KEEPALIVE_BODY = protocol.KEEPALIVE[4:]


class SessionQuota(NamedTuple):
    """How many sessions a user may have on this node."""

    most: int = 8  # so many
    refuses: bool = False  # whether a login beyond it is refused; else the oldest sessions have to go


NO_LIMIT = SessionQuota(most=2**63)


@dataclass(eq=False, repr=False)
class ServerProtocol:
    """The server's side of the protocol, for every connection alike."""

    registry: Registry  # where logins are entered
    clock: Clock  # for the time that a login's answer tells
    # turns a client's wish (seconds, None without one) into what it gets
    clamp_idle_timeout: Callable[[float | None], float]
    login_timeout: float  # seconds; a login that lay unread for longer comes from a client that has gone
    admission: Admission  # says whether one more login is welcome
    _: KW_ONLY
    session_limit: SessionQuota = NO_LIMIT
    authenticator: Authenticator | None = None  # says who a client is by its token; None: whoever it says
    # set while the server stops: logins are refused, each with its own seconds to return in
    return_after: Callable[[], float] | None = None
    takes_requests: bool = False  # whether somebody answers what a session cannot; else that is not supported

    def receive(self, peer: Peer, data: bytes, now: float, most: int = sys.maxsize) -> Outcome:
        """Take bytes that were read from `peer`'s connection at `now`; after `most` packets the rest waits.

        What was done before a handler failed stands: the outcome names a login that the same bytes held.
        """
        outcome = Outcome(peer)
        if peer.partial:
            data = peer.partial + data
        start, size = 0, len(data)
        try:
            while start < size and outcome.end_code is None:
                if outcome.frames >= most:
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
                    self._next(peer, packet, outcome, now)
                else:
                    self._first(peer, packet, outcome, now)
        except ProtocolError as error:
            self._refuse(outcome, error)
        except Exception as error:  # whatever it is, it is reported with the outcome
            outcome.failure = error
            outcome.end_code = Code.SERVER_ERROR
            outcome.reply += protocol.encode(protocol.goodbye(Code.SERVER_ERROR))
        rest = data[start:] if outcome.end_code is None else b""
        outcome.peer.partial = rest or (None if isinstance(outcome.peer, Session) else b"")
        return outcome

    def _first(self, guest: Guest, packet: Packet, outcome: Outcome, now: float) -> None:
        """The first packet of a connection: a login, or a refusal."""
        if packet.kind != Kind.LOGIN:
            raise _refusal(Code.NOT_LOGGED_IN, "the first packet must be a login", packet)
        if self.return_after is not None:
            message = "this server is being stopped: log in again"
            _send_away(packet, outcome, Code.SERVER_DRAIN, message, self.return_after())
            return
        payload = packet.payload
        waited = guest.link.unread_s(guest.handle, now)
        if waited > self.login_timeout:
            raise _refusal(
                Code.LOGIN_TIMEOUT, f"the login lay unread for {waited:.1f} s: log in again", packet
            )
        if (uid := self._authenticate(guest, packet, outcome, now)) is None:
            return
        key: SessionKey = (uid, payload["device"]) if "device" in payload else uid
        present = self.registry.get(key)
        if present is not None and present.login_at > now - waited + ARRIVAL_ERROR_S:
            # After a pause connections are read in no certain order; the later login is where the client is.
            raise _refusal(Code.REPLACED, "a later login of this device is here already", packet)
        crowded = self._crowded(key) if present is None else None
        if crowded and self.session_limit.refuses:
            raise _refusal(Code.SESSION_LIMIT, "this user has as many sessions as he may have", packet)
        address = guest.link.address(guest.handle) if self.admission.counts_logins else ""
        if (refusal := self.admission.login(now, address, uid)) is not None:
            _send_away(packet, outcome, *refusal)
            return
        idle_timeout = self.clamp_idle_timeout(payload.get("idle_timeout"))
        joined = self.registry.login(guest, key, idle_timeout, now - waited, now, profile=_profile(packet))
        outcome.peer = joined.session
        outcome.displaced = joined.displaced
        if (
            waited > ARRIVAL_ERROR_S
            and present is not None
            and present.login_at > now - waited - ARRIVAL_ERROR_S
        ):
            outcome.displaced_code = Code.CLOSED  # which came later is unsure: it may return
        outcome.changes = [joined.change]
        outcome.crowded = crowded
        outcome.attentive = True
        outcome.reply += protocol.encode(
            protocol.ok(
                packet.id,
                session=self.registry.session_id(joined.session),
                idle_timeout=_plain(idle_timeout),
                keepalive=_plain(round(idle_timeout * KEEPALIVE_SHARE, 3)),
                time_ms=self.clock.seen_ms(now),
                v=protocol.VERSION,
            )
        )

    def _authenticate(self, guest: Guest, packet: Packet, outcome: Outcome, now: float) -> str | None:
        """Return who logs in; None if the login was refused."""
        uid: str | None = packet.payload.get("uid")
        if self.authenticator is None:
            if uid is None:
                raise _refusal(Code.AUTH_FAILED, "this server checks no tokens: a login needs a uid", packet)
            return uid
        address = guest.link.address(guest.handle)
        if (refusal := self.admission.login_expected(now, address)) is not None:
            _send_away(packet, outcome, *refusal)  # checking a token costs more than all else about a login
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
        """Drop what tables hold no longer; called at each tick."""
        self.admission.tidy(now)

    def _crowded(self, key: SessionKey) -> list[Session] | None:
        """Return the oldest sessions of a user that one more device leaves no room for; None without any."""
        uid = key if isinstance(key, str) else key[0]
        if not self.registry.has(uid):
            return None
        others = self.registry.of(uid)
        excess = len(others) + 1 - self.session_limit.most
        if excess <= 0:
            return None
        return sorted(others, key=lambda session: (session.login_at, session.number))[:excess]

    def _next(self, session: Session, packet: Packet, outcome: Outcome, now: float) -> None:
        """A packet of a logged-in connection."""
        self._answer(session, packet, outcome, now)
        if outcome.end_code is None and packet.kind != Kind.KEEPALIVE and not _is_renewal(packet):
            outcome.attentive = True
            self._note(self.registry.wake(session, now), outcome)

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
        elif kind in KINDS and self.takes_requests:
            if outcome.requests is None:
                outcome.requests = []
            outcome.requests.append(request_of(packet))
        elif kind in _SERVER_KINDS:
            raise _refusal(Code.PROTOCOL_ERROR, "packets of this kind come from the server only", packet)
        else:
            what = f"{Kind(kind).name.lower()} packets" if kind in KINDS else f"packets of kind {kind}"
            message = f"this server does not handle {what}"
            outcome.reply += protocol.encode(protocol.error(packet.id, Code.UNSUPPORTED, message))

    def _update(self, session: Session, packet: Packet, outcome: Outcome, now: float) -> None:
        """The client wishes to be shown otherwise."""
        payload = packet.payload
        if (unsupported := self._unsupported(payload)) is not None:
            outcome.reply += protocol.encode(protocol.error(packet.id, Code.UNSUPPORTED, unsupported))
            return
        if wait_s := self.registry.profiles.admit(session.number, now):
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
            self._note(self.registry.update(session, now, away=away, meta=text), outcome)
        outcome.reply += protocol.encode(protocol.ok(packet.id))

    def _unsupported(self, update: Mapping[str, Any]) -> str | None:
        """Return why an update asks for what this server cannot do; None: it does not."""
        if "token" in update and self.authenticator is None:
            return "this server checks no tokens"
        if "idle_timeout" in update:
            return "idle_timeout holds from the login to the end of the session"
        return None

    def _renew(self, session: Session, packet: Packet, outcome: Outcome, now: float) -> bool:
        """Check a client's next token; False: it is refused, and the one before counts on."""
        if self.authenticator is None or session.link is None:
            return False
        address = session.link.address(session.handle)
        result = self.authenticator.renewal(packet.payload["token"], session.uid, address, now)
        if isinstance(result, Denied):
            outcome.reply += _denial(packet, result)
            return False
        outcome.expires_at = result.expires_at
        return True

    def _note(self, change: Change | None, outcome: Outcome) -> None:
        if change is not None:
            outcome.changes = [*(outcome.changes or ()), change]

    def _refuse(self, outcome: Outcome, error: ProtocolError) -> None:
        """Bad input: say what is wrong with it, then hang up."""
        outcome.end_code = error.code
        if isinstance(outcome.peer, Guest) or error.kind is not None:
            refusal = protocol.error(error.id, error.code, error.message)
        else:
            refusal = protocol.goodbye(error.code, error.message)
        outcome.reply += protocol.encode(refusal)


_SERVER_KINDS = frozenset({Kind.OK, Kind.ERROR, Kind.PRESENCE, Kind.DELIVER, Kind.GOODBYE})


def _profile(login: Packet) -> Profile | None:
    """Return what a login says of how its session is to be shown; None if nothing."""
    payload = login.payload
    if "meta" not in payload and "status" not in payload:
        return None
    return Profile(payload.get("status") == "away", meta_json.to_text(payload.get("meta", {})))


def _send_away(packet: Packet, outcome: Outcome, code: Code, message: str, retry_after: float) -> None:
    """Refuse a login that is welcome later."""
    outcome.reply += protocol.encode(protocol.error(packet.id, code, message, retry_after))
    outcome.end_code = code


def _is_renewal(packet: Packet) -> bool:
    """Whether a client sends a fresh token and nothing else, which no human has a part in."""
    return packet.kind == Kind.UPDATE and packet.payload.keys() == {"token"}


def _denial(packet: Packet, denied: Denied) -> bytes:
    return protocol.encode(protocol.error(packet.id, denied.code, denied.message, denied.retry_after))


def _refusal(code: Code, message: str, packet: Packet) -> ProtocolError:
    return ProtocolError(code, message, id=packet.id, kind=packet.kind)


def _plain(seconds: float) -> float:
    """Seconds as a client likes to read them: 30, not 30.0."""
    return int(seconds) if seconds == int(seconds) else seconds
