"""Connections that have not logged in (guests), sessions, and the registry of sessions by (uid, device).

A method that changes the registry returns the change for Redis and has no other effect. A session is ended
by the session object itself, so the late close of a superseded connection ends nothing.

Records are small because there is one per connection, 100,000 on a machine: slots, a uid that is also the
wheel's key, and a session id that is a number until its text is needed.

Tests: `tests/core/test_sessions.py`, `tests/core/test_engine_model.py`.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final, NamedTuple, Protocol, TypeAlias

from presence.common.clock import Clock
from presence.core.changes import Change, Op
from presence.core.event_facts import NO_FACTS, LoginFacts
from presence.core.profiles import UNCHANGED, Privacy, ProfileChange, Profiles
from presence.protocol import Code


class ConnectionInfo(NamedTuple):
    """A transport's description of a connection."""

    transport: str  # ``plain``, ``tls``, ``ws``, ``wss`` or ``stream``
    address: str  # what limits count the client's address by, see `networks.limit_key`; "": none
    unsent_bytes: int  # bytes waiting to be sent to a slow client


SessionKey: TypeAlias = str | tuple[str, str]
"""The uid itself for a user's default device, (uid, device) otherwise."""


Handle: TypeAlias = int
"""A transport's name of one of its connections: its descriptor, or a number."""

NO_HANDLE: Final[Handle] = sys.maxsize  # that of no connection, in any transport


class Transport(Protocol):
    """A transport, as the engine uses it for one of its connections; no method waits."""

    def disconnect(self, handle: Handle, goodbye: bytes) -> None:
        """Stop reading; soon send `goodbye`, half-close, drain for a bounded time, close."""

    def send(self, handle: Handle, data: bytes) -> None:
        """Send a packet, or buffer it; a client that reads too slowly for the buffer's bound is cut off."""

    def try_send(self, handle: Handle, data: bytes) -> bool:
        """Send unless earlier bytes are unsent; then False, and `Engine.all_sent` is called later."""

    def poll_now(self, handle: Handle) -> bool:
        """Read available bytes now, as if the connection had become ready; False: its reader needs a turn."""

    def receive_queue_age_s(self, handle: Handle, now: float) -> float:
        """Return how many seconds before `now` the bytes that were read last had arrived."""

    def acknowledged_bytes(self, handle: Handle) -> tuple[int, int] | None:
        """Return how many bytes the other end's kernel has acknowledged so far, and how many it will have
        when it has acknowledged all that was sent; None: not known."""

    def certificate(self, handle: Handle) -> bytes | None:
        """Return the certificate that the client presented and TLS has verified, as DER; None without one."""


class ClientFeatures(NamedTuple):
    """What a client has said at its login that it handles."""

    confirms: bool = False  # it confirms messages
    batch: bool = False  # it takes rows: states as arrays, many changes in one packet


# All there are, shared by the sessions: a further feature costs a session no memory.
FEATURES: Final = {each: each for each in map(ClientFeatures._make, product((False, True), repeat=2))}
NO_FEATURES: Final = FEATURES[ClientFeatures()]


@dataclass(slots=True, eq=False)
class Guest:
    """A connection that has not logged in."""

    transport: Transport
    handle: Handle  # the transport's name of the connection
    # What limits count the client's address by, see `networks.limit_key`; "": its transport has no addresses.
    # Kept from the accept to the login: the kernel forgets the address of a connection that is reset.
    address: str = ""
    unhandled: bytes = b""  # as a session's


@dataclass(slots=True, eq=False)
class Session:
    """A logged-in connection, or one that was lost and is within its grace."""

    transport: Transport | None  # None once the connection is lost
    handle: Handle  # `NO_HANDLE` once the connection is lost
    key: SessionKey  # the session's key in registry and wheel
    number: int  # of the login, counted in this process; part of the session's id
    idle_timeout: float  # seconds of silence after which this session ends
    login_at: float  # monotonic time at which its login arrived
    last_seen: float  # monotonic time at which its last valid frame was read
    # What was read and is not handled: an unfinished frame, behind packets that are left for another turn.
    unhandled: bytes = b""
    end_code: Code = Code.IDLE_TIMEOUT  # reason of its end when it expires
    features: ClientFeatures = NO_FEATURES

    def detach(self) -> None:
        """Forget the connection, because it is lost or about to be closed."""
        self.transport, self.handle = None, NO_HANDLE
        self.unhandled = b""

    @property
    def uid(self) -> str:
        return self.key if isinstance(self.key, str) else self.key[0]

    @property
    def device(self) -> str:
        """The user's device; the default one is ``""``."""
        return "" if isinstance(self.key, str) else self.key[1]


Client: TypeAlias = Guest | Session


@dataclass(slots=True)
class NewSession:
    """What a granted login starts; times are monotonic seconds."""

    key: SessionKey
    idle_timeout: float  # seconds, as granted
    arrived: float  # when the login arrived, which may have been unread for a while
    expires_at: float | None = None  # when its token or certificate expires, whichever is first; None: never
    shows: ProfileChange = UNCHANGED  # what differs from a plain profile
    facts: LoginFacts = NO_FACTS
    status_ends_at: float | None = None  # when the status in `shows` ends; None: never
    features: ClientFeatures = NO_FEATURES


class LoginResult(NamedTuple):
    """The new session, the one that it supersedes, and the change for Redis."""

    session: Session
    superseded: Session | None
    change: Change


class Registry:
    """All live sessions of this process, including those within their grace.

    Args:
        boot_id: unique to this run of the process; prefix of its session ids.
        clock: converts monotonic time to Unix milliseconds.

    Attributes:
        profiles: the sessions' profiles, read-only.
        version: rises with every session that starts or ends.
    """

    def __init__(self, boot_id: str, clock: Clock) -> None:
        self._boot_id = boot_id
        self._clock = clock
        self._sessions: dict[SessionKey, Session] = {}
        self._devices: dict[str, str | tuple[str, ...]] = {}  # named devices by uid; usually one
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
        return self._sessions.get(key)

    def has_user(self, uid: str) -> bool:
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

    def login(self, guest: Guest, new: NewSession, now: float) -> LoginResult:
        """Make the guest a session, in place of the same device's older one and its profile."""
        self._numbers += 1
        key = new.key
        session = Session(
            guest.transport, guest.handle, key, self._numbers, new.idle_timeout, new.arrived, now
        )
        session.features = new.features
        superseded = self._sessions.get(key)
        self._sessions[key] = session
        if superseded is not None:
            self.profiles.remove(superseded.number)
        elif not isinstance(key, str):
            self._add_device(*key)
        if new.facts is not NO_FACTS:
            self.profiles.note_login(session.number, new.facts)
        if new.shows is not UNCHANGED:
            self.profiles.update(session.number, new.shows)
        self.version += 1
        change = self._change(Op.LOGIN, session, Code.LOGIN, new.arrived, now)
        return LoginResult(session, superseded, change)

    def end(self, session: Session, code: Code, now: float) -> Change | None:
        """Remove `session`; None if it was superseded or has ended before."""
        if session not in self:
            return None
        del self._sessions[session.key]
        if not isinstance(session.key, str):
            self._remove_device(*session.key)
        self.profiles.remove(session.number)
        self.version += 1
        return self._change(Op.END, session, code, now, now)

    def update(
        self, session: Session, now: float, change: ProfileChange, idle_timeout: float | None = None
    ) -> Change | None:
        """Update a session's profile and idle time-out; None if that changes nothing."""
        if session not in self:
            return None
        code = self.profiles.update(session.number, change)
        if idle_timeout is not None and idle_timeout != session.idle_timeout:
            session.idle_timeout = idle_timeout
            code = code or Code.UPDATED
        if change.privacy:  # also if it is no news here: another node may know more
            return self._change(Op.UPDATE, session, code or Code.UPDATED, now, now)._replace(
                privacy=change.privacy
            )
        return self._shown(session, code, now)

    def set_rooms(self, session: Session, rooms: str, now: float) -> Change | None:
        """Set a live session's rooms, which its client has not asked for; None if that changes nothing."""
        return self._shown(session, self.profiles.set_rooms(session.number, rooms), now)

    def note_privacy(self, key: SessionKey, session_id: str, privacy: Privacy) -> None:
        """Note what the user of a session hides, as Redis has it; nothing if the session has ended."""
        session = self._sessions.get(key)
        if session is not None and self.session_id(session) == session_id:
            self.profiles.note_privacy(session.number, privacy)

    def end_status(self, session: Session, now: float) -> Change | None:
        """End a status that has an end; None if that changes nothing."""
        return self._shown(session, self.profiles.end_status(session.number), now)

    def set_auto_away(self, session: Session, now: float) -> Change | None:
        """Set a session away automatically; None if it is away already, or has ended."""
        return (
            self._shown(session, self.profiles.set_auto_away(session.number), now)
            if session in self
            else None
        )

    def clear_auto_away(self, session: Session, now: float) -> Change | None:
        """End auto-away; None if the session was not set away automatically."""
        return self._shown(session, self.profiles.clear_auto_away(session.number), now)

    def _shown(self, session: Session, code: Code | None, now: float) -> Change | None:
        return None if code is None else self._change(Op.UPDATE, session, code, now, now)

    def registration(self, session: Session, now: float) -> Change:
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
        key = session.key
        uid, device = (key, "") if isinstance(key, str) else key
        return Change(
            op,
            uid,
            device,
            self.session_id(session),
            int(code),
            at,
            self._clock.decided_ms(now),
            self._clock.seen_ms(session.last_seen),
            round(session.idle_timeout * 1000),
            self.profiles.get(session.number),
        )
