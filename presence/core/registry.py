"""Who is here: guests, sessions, and the registry of sessions by (uid, device).

A change of the registry returns what it causes and performs nothing. Only the owner acts: whatever ends
a session must hold that very session, so a late close of a replaced connection finds nothing to end.

The records are small on purpose, for there is one per connection and 100,000 on a machine: slots, a uid
that serves as the wheel's key too, and a session id that is a number until somebody asks for its text.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from presence.common.clock import Clock
from presence.common.rate_limit import KeyedRateLimiter
from presence.core.changes import PLAIN, Change, Op, Profile
from presence.protocol import Code


class SessionTimers(NamedTuple):
    """Where a session stands in wheel and tables; times are monotonic seconds."""

    # the wheel's absolute slot in which it is due; None: its time is up, and it ends in this moment
    slot: int | None
    swept_slot: int  # the last slot that was swept to its end
    slot_s: float  # seconds that a slot covers
    due_at: float | None  # when its slot begins; None without one
    away_at: float | None  # when it is away by itself, if nothing but keepalives comes; None: never
    token_ends_at: float | None  # when its token ends, to the step of that table; None without a token
    registered: (
        bool  # whether Redis is told that it lives, see `presence.core.termination.RegistrationPolicy`
    )


class ConnectionInfo(NamedTuple):
    """What a transport tells of a connection."""

    transport: str  # ``plain``, ``tls`` or ``stream``
    address: str  # what limits count the client's address by, see `networks.limit_key`; "": none
    unsent_bytes: int  # what waits for a reader who is slow


UPDATES_BURST = 10.0  # what people do in a hurry; each is written to Redis and told to all who watch
UPDATES_PER_S = 1.0  # in the long run
_AUTO_AWAY = Profile(away=True)  # one for all who are away by themselves and say nothing of themselves


class Profiles:
    """The profiles of live sessions, by session number; a plain one takes no memory."""

    def __init__(self) -> None:
        self._shown: dict[int, Profile] = {}
        self._auto_away: set[int] = set()
        self._updates: KeyedRateLimiter[int] = KeyedRateLimiter(UPDATES_PER_S, UPDATES_BURST)

    def get(self, number: int) -> Profile:
        """Return what is shown of a session."""
        return self._shown.get(number, PLAIN)

    @property
    def away(self) -> int:
        """How many sessions are away; O(those that are or that say something of themselves)."""
        return sum(profile.away for profile in self._shown.values())

    def admit_update(self, number: int, now: float) -> float:
        """Return 0.0 if a session may be updated now, and count that; else the seconds to wait."""
        return 0.0 if self._updates.take(number, now) else self._updates.wait_s(number, now)

    def update(self, number: int, *, away: bool | None = None, meta: str | None = None) -> Code | None:
        """Show a session as its client wishes; None: leave that as it is, or end its being away by itself.

        Returns:
            What has changed: AWAY or BACK where that did, else UPDATED; None if nothing has.
        """
        before = self.get(number)
        if away is None:
            away = before.away and number not in self._auto_away
        self._auto_away.discard(number)
        return self._show(number, Profile(away, before.meta if meta is None else meta))

    def set_auto_away(self, number: int) -> Code | None:
        """A session has sent nothing but keepalives for long: it is away by itself, if it is not already."""
        before = self.get(number)
        if before.away:
            return None
        self._auto_away.add(number)
        return self._show(number, Profile(away=True, meta=before.meta) if before.meta else _AUTO_AWAY)

    def clear_auto_away(self, number: int) -> Code | None:
        """A session has sent something else; a session that is away because it said so stays away."""
        return self.update(number) if number in self._auto_away else None

    def remove(self, number: int) -> None:
        """A session has ended."""
        self._shown.pop(number, None)
        self._auto_away.discard(number)
        self._updates.drop(number)

    def _show(self, number: int, profile: Profile) -> Code | None:
        before = self.get(number)
        if profile == before:
            return None
        if profile == PLAIN:
            del self._shown[number]
        else:
            self._shown[number] = profile
        if profile.away == before.away:
            return Code.UPDATED
        return Code.AWAY if profile.away else Code.BACK


SessionKey: TypeAlias = str | tuple[str, str]
"""The uid itself for a user's default device, (uid, device) otherwise."""


class Link(Protocol):
    """What the core may ask of a transport about one of its connections, none of it waiting."""

    def hang_up(self, handle: Any, goodbye: bytes) -> None:
        """Listen no more; soon send `goodbye`, end the sending side, drain for a bounded time, close."""

    def send(self, handle: Any, data: bytes) -> None:
        """Send a packet, or keep what cannot leave yet; a reader too slow for its bound is cut off."""

    def try_send(self, handle: Any, data: bytes) -> bool:
        """Send unless earlier bytes still wait; then False, and `Engine.drained` says when they are gone."""

    def poll_now(self, handle: Any) -> bool:
        """Read what waits on the connection, as if it had become ready; False: its reader needs a turn."""

    def receive_queue_age_s(self, handle: Any, now: float) -> float:
        """Return for how many seconds, at `now`, the bytes that were read last had lain unread."""

    def address(self, handle: Any) -> str:
        """Return what limits count the client's address by, see `networks.limit_key`; "": none."""


@dataclass(slots=True, eq=False)
class Guest:
    """A connection that has not logged in."""

    link: Link  # the transport of the connection
    handle: Any  # what the transport knows the connection by
    # The bytes of an unfinished frame. Never None, which is a session's sign that nothing is unfinished: so
    # the fast path needs one test to know both.
    partial: bytes | None = b""


@dataclass(slots=True, eq=False)
class Session:
    """A logged-in connection, or one that was lost and still has its grace."""

    link: Link | None  # as a guest's; None from the moment when the connection is gone
    handle: Any
    key: SessionKey  # the session's key in registry and wheel
    number: int  # counts the logins of this process; the session's id is made of it
    idle_timeout: float  # seconds of silence after which this session ends
    login_at: float  # monotonic time at which its login arrived
    last_seen: float  # monotonic time at which its last valid frame was read
    partial: bytes | None = None  # the bytes of an unfinished frame, None without one
    end_code: Code = Code.IDLE_TIMEOUT  # the reason that its end will have once its time is up

    @property
    def uid(self) -> str:
        """The user."""
        return self.key if isinstance(self.key, str) else self.key[0]

    @property
    def device(self) -> str:
        """The user's device; the default one is ``""``."""
        return "" if isinstance(self.key, str) else self.key[1]


Peer: TypeAlias = Guest | Session


class LoginResult(NamedTuple):
    """What a login causes: the session, the one that it takes the place of, the change for Redis."""

    session: Session
    superseded: Session | None
    change: Change


class Registry:
    """All live sessions of this process, those in their grace included.

    Args:
        boot_id: unique to this run of the process; what its session ids begin with.
        clock: names moments in Unix milliseconds.

    Attributes:
        profiles: what others are shown of the sessions; to be read.
        version: rises with every session that comes or goes.
    """

    def __init__(self, boot_id: str, clock: Clock) -> None:
        self._boot_id = boot_id
        self._clock = clock
        self._sessions: dict[SessionKey, Session] = {}
        self._devices: dict[str, str | tuple[str, ...]] = {}  # named ones, by uid; one as a rule
        self._numbers = 0
        self.profiles = Profiles()
        self.version = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def __contains__(self, session: Session) -> bool:
        return self._sessions.get(session.key) is session

    def get(self, key: SessionKey) -> Session | None:
        """Return the live session of `key`, if there is one."""
        return self._sessions.get(key)

    def has_user(self, uid: str) -> bool:
        """Whether a user has any live session."""
        return uid in self._sessions or uid in self._devices

    def sessions_of(self, uid: str) -> list[Session]:
        """Return all live sessions of a user: the default device's, then named ones by first login."""
        sessions = self._sessions
        found = [sessions[uid]] if uid in sessions else []
        devices = self._devices.get(uid, ())
        named = (devices,) if isinstance(devices, str) else devices
        return found + [sessions[uid, device] for device in named]

    def session_id(self, session: Session) -> str:
        """Return the id of a session: unique over all nodes and restarts."""
        return f"{self._boot_id}-{session.number:x}"

    def login(
        self,
        guest: Guest,
        key: SessionKey,
        idle_timeout: float,
        arrived: float,
        now: float,
        *,
        profile: Profile | None = None,
    ) -> LoginResult:
        """Make the guest a session, in place of the same device's older one.

        Args:
            guest: the connection that logs in.
            key: which user and device it is.
            idle_timeout: seconds, within the limits already.
            arrived: when the login arrived; `now` if it was read at once.
            now: the moment of the decision.
            profile: what others are shown of it, beside that it lives; nothing of the older one stays.
        """
        self._numbers += 1
        session = Session(guest.link, guest.handle, key, self._numbers, idle_timeout, arrived, now)
        superseded = self._sessions.get(key)
        self._sessions[key] = session
        if superseded is not None:
            self.profiles.remove(superseded.number)
        elif not isinstance(key, str):
            self._add_device(*key)
        if profile is not None:
            self.profiles.update(session.number, away=profile.away, meta=profile.meta)
        self.version += 1
        return LoginResult(session, superseded, self._change(Op.LOGIN, session, Code.LOGIN, arrived, now))

    def end(self, session: Session, code: Code, now: float) -> Change | None:
        """Remove `session`; None if it does not live any more (it was replaced, or ended before)."""
        if session not in self:
            return None
        del self._sessions[session.key]
        if not isinstance(session.key, str):
            self._remove_device(*session.key)
        self.profiles.remove(session.number)
        self.version += 1
        return self._change(Op.END, session, code, now, now)

    def update(
        self, session: Session, now: float, *, away: bool | None = None, meta: str | None = None
    ) -> Change | None:
        """Show a session as its client wishes; None if that changes nothing. See `Profiles.update`."""
        if session not in self:
            return None
        return self._shown(session, self.profiles.update(session.number, away=away, meta=meta), now)

    def set_auto_away(self, session: Session, now: float) -> Change | None:
        """Show a session as away by itself; None if it is away already, or has ended."""
        return (
            self._shown(session, self.profiles.set_auto_away(session.number), now)
            if session in self
            else None
        )

    def clear_auto_away(self, session: Session, now: float) -> Change | None:
        """Show a session as back, if it was away by itself; else None."""
        return self._shown(session, self.profiles.clear_auto_away(session.number), now)

    def _shown(self, session: Session, code: Code | None, now: float) -> Change | None:
        return None if code is None else self._change(Op.UPDATE, session, code, now, now)

    def registration(self, session: Session, now: float) -> Change:
        """Return the change that registers a live session anew."""
        return self._change(Op.REGISTER, session, Code.RETURNED, session.login_at, now)

    def _add_device(self, uid: str, device: str) -> None:
        others = self._devices.get(uid)
        if others is None:
            self._devices[uid] = device
        else:
            self._devices[uid] = (*((others,) if isinstance(others, str) else others), device)

    def _remove_device(self, uid: str, device: str) -> None:
        devices = self._devices.pop(uid)
        if not isinstance(devices, str):
            rest = tuple(each for each in devices if each != device)
            self._devices[uid] = rest if len(rest) > 1 else rest[0]

    def _change(self, op: Op, session: Session, code: Code, at: float, now: float) -> Change:
        return Change(
            op,
            session.uid,
            session.device,
            self.session_id(session),
            int(code),
            at,
            self._clock.decided_ms(now),
            self._clock.seen_ms(session.last_seen),
            round(session.idle_timeout * 1000),
            self.profiles.get(session.number),
        )
