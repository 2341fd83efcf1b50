"""What a client hands out without being asked: messages, changes of others' presence, its own connection."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Connected:
    """Logged in: for the first time, or again.

    What the server knew of an earlier connection (watches, status) ended with it.

    Attributes:
        session: the server's name for this session, as in its logs and events.
        idle_timeout: seconds of silence after which the server ends the session.
        keepalive: seconds between two beats, as the server wants them.
        time_ms: the server's clock, Unix milliseconds; None if it did not tell.
        again: whether this client was online before.
    """

    session: str
    idle_timeout: float
    keepalive: float
    time_ms: int | None
    again: bool


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is lost, or an attempt to come back failed; the client tries again by itself.

    Attributes:
        reason: why: the server's reason, or ``closed`` (it closed, or the network did), ``unreachable``
            (no connection), ``login_timeout`` (no answer to the login), ``dead_server`` (no answer to a
            beat), ``bad_server`` (its bytes break the protocol).
        message: the same for people; may be empty.
        retry_in: seconds until the next attempt.
        code: the server's code; None where the client noticed by itself.
    """

    reason: str
    message: str
    retry_in: float
    code: int | None = None


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The server has announced that it closes the connection; what follows from that comes next.

    Attributes:
        code: a reason code.
        reason: its name.
        reconnect: whether the client comes back (then `Disconnected` follows) or has ended.
        retry_after: seconds that the server asks it to stay away; None if it did not say.
        message: for people; may be empty.
    """

    code: int
    reason: str
    reconnect: bool
    retry_after: float | None
    message: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message from another user.

    Attributes:
        sender: uid of who sent it.
        body: as it was sent.
        at_ms: when the server took it, Unix milliseconds.
    """

    sender: str
    body: Any
    at_ms: int


@dataclass(frozen=True, slots=True)
class UserState:
    """A user's presence.

    Attributes:
        status: ``online``, ``away``, ``offline`` or ``unknown``; treat any other as ``unknown``.
        since_ms: when it began, Unix milliseconds; None if not told.
        last_seen_ms: last sign of life; None while online, or if not told.
        id: of the event that led to it: of two states of a user the one with the higher id is the newer.
        meta: as the user set it.
    """

    status: str
    since_ms: int | None = None
    last_seen_ms: int | None = None
    id: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PresenceChanged:
    """A watched user's state has changed.

    Attributes:
        uid: whose.
        state: the new one.
        reason: name of the code that caused it.
    """

    uid: str
    state: UserState
    reason: str


Push = Connected | Disconnected | Goodbye | Delivered | PresenceChanged


def user_state(payload: Mapping[str, Any]) -> UserState:
    """Return the state that a map of the protocol describes."""
    return UserState(
        payload["status"],
        payload.get("since_ms"),
        payload.get("last_seen_ms"),
        payload.get("id"),
        payload.get("meta", {}),
    )
