"""Whether a client may log in, and as which session.

By token or certificate, bans, the order of logins, the number of sessions, and rate limits.

`LoginPolicy` decides; it reads the registry and changes nothing but the counts of limits. The engine acts.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

from presence.common.rate_limit import RETRY_MIN_S
from presence.core.admission import Admission
from presence.core.authenticator import (
    Authenticator,
    AuthResult,
    CertificateAuthenticator,
    Granted,
    NamePatterns,
    Refusal,
    RoomClaim,
)
from presence.core.ban_list import BanList
from presence.core.registry import Client, Guest, NewSession, Registry, Session, SessionKey
from presence.core.server_protocol import Login
from presence.protocol import Code

_FULL = "this user has the maximum number of sessions"
ARRIVAL_ERROR_S = 0.02  # the kernel dates the arrival of data by its ticks, of up to 10 ms


class SessionQuota(NamedTuple):
    """The number of sessions that a user may have on this node."""

    max_sessions: int = 8
    # whether a login beyond it is refused, unless a session in its grace can make room; else the oldest end
    refuse_new: bool = False


NO_LIMIT = SessionQuota(max_sessions=2**63)


class LoginGrant(NamedTuple):
    """What an admitted client gets."""

    session: NewSession
    sight: NamePatterns  # whom its user may see
    roster: str  # that its token claims, see `Granted`
    rooms: RoomClaim  # of its token
    superseded_code: Code  # for the goodbye to the client of an older session of the same device
    excess_sessions: list[Session]  # the user's sessions beyond the quota, to be ended


@dataclass(eq=False, repr=False)
class LoginPolicy:
    """Decides on the logins of one process."""

    registry: Registry  # the live sessions
    # the granted idle time-out for a requested one; seconds, None if the client requests none
    clamp_idle_timeout: Callable[[float | None], float]
    login_timeout: float  # seconds; the client of a login that was unread for longer has given up
    admission: Admission  # limits logins
    _: KW_ONLY
    session_limit: SessionQuota = NO_LIMIT
    class_limits: Mapping[str, SessionQuota] = field(default_factory=dict)  # by class of device
    authenticator: Authenticator | None = None  # checks tokens; None: they are not checked
    certificates: CertificateAuthenticator | None = None  # None: clients have no certificates
    bans: BanList = field(default_factory=BanList)  # users, devices and addresses that are kept out
    # set while the server stops: logins are refused, each with its own retry time in seconds
    return_after: Callable[[], float] | None = None

    def decide(self, guest: Guest, login: Login, now: float) -> LoginGrant | Refusal:
        """Grant or refuse a login that was read at `now`."""
        waited = guest.transport.receive_queue_age_s(guest.handle, now)
        if (refusal := self._refuse_any(guest.address, waited, now)) is not None:
            return refusal
        granted = self._authenticate(guest, login, now)
        if self.bans and isinstance(granted, Granted):
            ban = self.bans.find(granted.uid, login.device or "", now)
            granted = granted if ban is None else ban.refusal(now)
        if isinstance(granted, Refusal):
            return granted
        uid = granted.uid
        expires_at = None if granted.expires_at == math.inf else granted.expires_at
        key: SessionKey = uid if login.device is None else (uid, login.device)
        existing = self.registry.get(key)
        if existing is not None and existing.login_at > now - waited + ARRIVAL_ERROR_S:
            # After a pause connections are read in no particular order; the client is at the later login.
            return Refusal(Code.REPLACED, "a later login of this device is here already")
        excess = self._excess_sessions(uid, login.device_class, now) if existing is None else []
        if isinstance(excess, Refusal):
            return excess
        if (refusal := self.admission.admit_login(guest.address, uid)) is not None:
            return refusal
        is_order_uncertain = (
            waited > ARRIVAL_ERROR_S
            and existing is not None
            and existing.login_at > now - waited - ARRIVAL_ERROR_S
        )
        return LoginGrant(
            NewSession(key, self.clamp_idle_timeout(login.idle_timeout), now - waited, expires_at),
            granted.sight,
            granted.roster,
            granted.rooms,
            Code.CLOSED if is_order_uncertain else Code.REPLACED,  # after `CLOSED` that client may return
            excess,
        )

    def _refuse_any(self, address: str, waited: float, now: float) -> Refusal | None:
        """Refuse a login that lay unread for `waited` seconds, whatever it holds."""
        if self.return_after is not None:
            message = "this server is being stopped: log in again"
            return Refusal(Code.SERVER_DRAIN, message, self.return_after())
        if waited > self.login_timeout:
            return Refusal(Code.LOGIN_TIMEOUT, f"the login lay unread for {waited:.1f} s: log in again")
        return self.refuse_address(address, now)  # it may have been banned after the accept

    def refuse_address(self, address: str, now: float) -> Refusal | None:
        """Refuse a connection from an address, as limits count it, that is banned."""
        ban = self.bans.find_address(address, now)
        return None if ban is None else ban.refusal(now)

    def renew(self, session: Session, token: str, now: float) -> AuthResult | None:
        """Check a new token of a logged-in client; None: this server checks no tokens."""
        if self.authenticator is None:
            return None
        granted = self.authenticator.renewal(token, session.uid, now)
        return _first_to_expire(self._certified(session, session.uid, now), granted)

    def _authenticate(self, guest: Guest, login: Login, now: float) -> AuthResult:
        """Return who logs in, by the token or the certificate if this server asks for one."""
        certified = self._certified(guest, login.uid, now)
        if isinstance(certified, Refusal):
            return certified
        if self.authenticator is None or (certified is not None and login.token is None):
            return certified or self._claimed(login)
        if (refusal := self.admission.check_login(guest.address)) is not None:
            return refusal  # before the token: checking it costs more than all else about a login
        uid = login.uid if certified is None else certified.uid
        return _first_to_expire(certified, self.authenticator.login(login.token, uid, guest.address, now))

    def _certified(self, client: Client, uid: str | None, now: float) -> AuthResult | None:
        """Return whom the certificate of a client names; None without one."""
        if self.certificates is None or client.transport is None:
            return None
        certificate = client.transport.certificate(client.handle)
        return None if certificate is None else self.certificates.login(certificate, uid, now)

    def _claimed(self, login: Login) -> AuthResult:
        """Return the user that a client claims to be, where nothing proves it."""
        if self.certificates is not None:
            return Refusal(Code.AUTH_FAILED, "this server asks for a client certificate")
        if login.uid is None:
            return Refusal(Code.AUTH_FAILED, "this server checks no tokens: a login needs a uid")
        return Granted(login.uid, math.inf)

    def _excess_sessions(self, uid: str, device_class: str, now: float) -> list[Session] | Refusal:
        """Return the user's sessions that have to go if one more device logs in, or its refusal.

        These are the oldest. Where new sessions are refused, they are the oldest without a connection: the
        client of such a session has left, or returns and is then the new one.
        """
        if not self.registry.has_user(uid):
            return []
        others = self.registry.sessions_of(uid)
        checks = [(self.session_limit, others)]
        if device_class in self.class_limits:
            profiles = self.registry.profiles
            same = [each for each in others if profiles.get(each.number).facts.device_class == device_class]
            checks.insert(0, (self.class_limits[device_class], same))
        excess: dict[Session, None] = {}
        for limit, sessions in checks:
            left = [each for each in sessions if each not in excess]
            if (number := len(left) + 1 - limit.max_sessions) <= 0:
                continue
            may_go = [each for each in left if each.transport is None] if limit.refuse_new else left
            if number > len(may_go):
                retry_after = max(RETRY_MIN_S, round(_first_silent_end(left) - now, 2))
                return Refusal(Code.SESSION_LIMIT, _FULL, retry_after)
            by_age = sorted(may_go, key=lambda session: (session.login_at, session.number))
            excess |= dict.fromkeys(by_age[:number])
        return [*excess]


def _first_silent_end(sessions: Iterable[Session]) -> float:
    """Return when the first of some sessions ends if their clients, which may be gone, are silent."""
    return min(session.last_seen + session.idle_timeout for session in sessions)


def _first_to_expire(certified: AuthResult | None, granted: AuthResult) -> AuthResult:
    """Return what a certificate, if any, and a token of the same user grant together."""
    if isinstance(certified, Granted) and isinstance(granted, Granted):
        return granted._replace(expires_at=min(certified.expires_at, granted.expires_at))
    return certified if isinstance(certified, Refusal) else granted
