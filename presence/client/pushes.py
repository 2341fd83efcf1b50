"""What a client reports without a request: messages, changes of its connection, of watched users and rooms.

Tests: `tests/client/test_times.py`, `tests/client/test_streams.py`, `tests/client/test_rows.py`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from presence.client.argument_checks import utc
from presence.protocol import Kind, Packet, RoomRow, from_row

MEANWHILE: Final = "meanwhile"
WATCHED: Final = "watched"
REMOVED: Final = "removed"
_ENTRY_ID: Final = re.compile(r"(\d{1,20})-(\d{1,20})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Connected:
    """Logged in: for the first time, or again.

    The client restores its watches and its own meta and status by itself. Changes since the last connection
    follow as `PresenceChanged`.
    """

    session: str  # the server's name for this session, as in its logs and events
    idle_timeout: float  # seconds of silence after which the server ends the session
    keepalive: float  # seconds between two keepalives, as the server wants them
    time_ms: int | None  # the server's clock, Unix milliseconds; None if unknown
    again: bool  # whether this client was online before


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is lost, or an attempt to reconnect failed; the client tries again by itself.

    The reason is the server's, or ``closed`` (it closed, or the network did), ``unreachable`` (no
    connection), ``no_token`` (the program returned none), ``login_timeout`` (no answer to the login),
    ``dead_server`` (no answer to a keepalive), ``bad_server`` (its bytes break the protocol).
    """

    reason: str
    message: str  # the same for people; may be empty
    retry_in: float  # seconds until the next attempt
    code: int | None = None  # the server's; None if the client detected the loss


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The server has announced that it closes the connection; the consequence follows as another push."""

    code: int  # a reason code
    reason: str  # its name
    reconnect: bool  # whether the client comes back (then `Disconnected` follows) or has ended
    retry_after: float | None  # seconds to wait, as the server asks; None if it named none
    message: str  # for people; may be empty


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message from another user."""

    sender: str  # uid of the sender
    body: Any  # as it was sent
    at_ms: int  # when the server received it, Unix milliseconds

    @property
    def at(self) -> datetime:
        """When the server received it."""
        return utc(self.at_ms)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a message whose recipients were asked to confirm it."""

    delivered: int  # sessions to whose connections it was handed, at least 1
    confirmed: int  # of these, those that certainly have it
    by_app: (
        int  # of the confirmed, those whose app has received it; of the others the kernel has, or a proxy's
    )
    unconfirmed: int  # the rest of the delivered; all, if the server is older


@dataclass(frozen=True, slots=True)
class UserState:
    """A user's presence: ``online``, ``away``, ``busy``, ``dnd``, ``offline``, ``unknown``, or
    ``not_allowed``, if this client may not see it; treat any other as ``unknown``.

    With several devices the user has the first of dnd, busy, online and away that one of them has. `meta` is
    that of the latest login among the devices with that status.
    """

    status: str
    since_ms: int | None = None  # when this status began, Unix milliseconds; None if unknown
    last_seen_ms: int | None = None  # last sign of life; None while online, or if the server does not know
    id: str | None = None  # of the event that led to it; None: not known
    meta: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None  # why the user is offline: the name of a code; None: not known, or not offline
    devices: "tuple[DeviceState, ...] | None" = None  # by name; None: not asked for, or not known

    @property
    def since(self) -> datetime | None:
        """When this status began; None if unknown."""
        return None if self.since_ms is None else utc(self.since_ms)

    @property
    def last_seen(self) -> datetime | None:
        """The last sign of life; None while online, or if the server does not know."""
        return None if self.last_seen_ms is None else utc(self.last_seen_ms)

    def is_newer_than(self, other: "UserState") -> bool:
        """Whether this is newer than another state of the same user; True if one of them has no id."""
        mine, others = _id_numbers(self.id), _id_numbers(other.id)
        return mine is None or others is None or mine > others


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A device of a user who is online."""

    device: str  # "": the default one
    status: str  # as of `UserState`
    since_ms: int  # when it logged in, Unix milliseconds
    device_class: str | None = None  # what it is, as it says: phone, web; None if it does not
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def since(self) -> datetime:
        """When it logged in."""
        return utc(self.since_ms)


@dataclass(frozen=True, slots=True)
class PresenceChanged:
    """A watched user's state has changed. Each change of a user is reported once, in order.

    The reason is the name of the code that caused it, also of a device (see `watch_devices` of `connect`);
    ``watched`` for the first state of a user given to `watch_nowait`, or added to the roster;
    ``removed``, as is the status, for a user who was taken off the roster and is not watched any more;
    ``meanwhile`` for a change found after a lost connection (intermediate states are not reported).
    """

    uid: str
    state: UserState
    reason: str


@dataclass(frozen=True, slots=True)
class WatchEnded:
    """The server refused a watch that no call waits for: no changes of these users will be reported.

    Temporary failures, as of a busy server, do not cause it: then the client tries again by itself.
    """

    uids: tuple[str, ...]
    code: int  # a reason code
    reason: str  # its name
    message: str  # for people; may be empty


@dataclass(frozen=True, slots=True)
class RoomState:
    """A room: how many members it has, and who they are, if this client is shown that.

    Invisible users do not count, and members whom this client may not see are not shown: there may be fewer
    than `count`.
    """

    count: int
    members: frozenset[str] | None = None  # None: they are not shown, or are too many


@dataclass(frozen=True, slots=True)
class RoomChanged:
    """A watched room has changed; of several changes in a short time, only the result is reported.

    After a lost connection it reports what has changed meanwhile. `state` None: this client may not watch the
    room, or the server has no rooms; no more changes of the room are reported.
    """

    room: str
    state: RoomState | None
    joined: frozenset[str]  # since the state before; empty, here and below, if members of one are not known
    left: frozenset[str]


PushKind: TypeAlias = Literal["messages", "presence", "rooms", "connection"]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Here were pushes that the program has not read in time: the queue of their kind was full.

    Messages of this number were acknowledged to their senders as delivered. After changes of presence,
    `watched` of the client has the newest states, and after changes of rooms `watched_rooms`. Superseded
    changes do not count.
    """

    kind: PushKind
    count: int


Push = Connected | Disconnected | Goodbye | Delivered | PresenceChanged | WatchEnded | RoomChanged | Dropped


def _id_numbers(id: str | None) -> tuple[int, int] | None:
    """Return an entry id as numbers: as text, 9-0 is above 10-0."""
    found = _ENTRY_ID.fullmatch(id or "")
    return (int(found[1]), int(found[2])) if found else None


def receipt(answer: Mapping[str, Any]) -> Receipt:
    """Return what the answer to a message says of its confirmations."""
    delivered, confirmed = answer.get("delivered", 0), answer.get("confirmed", 0)
    return Receipt(delivered, confirmed, answer.get("by_app", 0), max(0, delivered - confirmed))


def user_state(payload: Mapping[str, Any]) -> UserState:
    """Return the state that a map of the protocol describes."""
    return UserState(
        payload["status"],
        payload.get("since_ms"),
        payload.get("last_seen_ms"),
        payload.get("id"),
        payload.get("meta", {}),
        payload.get("reason") if payload["status"] == "offline" else None,
        tuple(map(_device_state, payload["devices"])) if "devices" in payload else None,
    )


def _device_state(payload: Mapping[str, Any]) -> DeviceState:
    since_ms = payload["since_ms"]
    device_class, meta = payload.get("class"), payload.get("meta", {})
    return DeviceState(payload["device"], payload["status"], since_ms, device_class, meta)


def user_states(answer: Mapping[str, Any]) -> dict[str, UserState]:
    """Return the states in an answer, by uid; those of an older server are in `presence`."""
    states = {**answer.get("presence", {}), **dict(map(from_row, answer.get("states", ())))}
    return {uid: user_state(state) for uid, state in states.items()}


def room_state(row: RoomRow, before: RoomState | None = None) -> RoomState:
    """Return the state that a row of a room describes; `before`: that of the row before."""
    _room, count, *shown = row[:4]
    if not shown:
        return RoomState(count)
    if len(shown) == 1:
        return RoomState(count, frozenset(shown[0]))
    joined, left = shown
    known = None if before is None else before.members
    return RoomState(count, None if known is None else known.difference(left).union(joined))


def room_states(answer: Mapping[str, Any]) -> dict[str, RoomState]:
    """Return the states in an answer, by room."""
    return {row[0]: room_state(row) for row in answer.get("rooms", ()) if row[1] is not None}


def presence_changes(packet: Packet) -> list[PresenceChanged]:
    """Return the changes in a packet of either kind that has some, in order; none of any other kind."""
    states: Iterable[tuple[str, Mapping[str, Any]]] = ()
    if packet.kind == Kind.CHANGES:
        states = map(from_row, packet.payload["changes"])
    elif packet.kind == Kind.PRESENCE:
        states = [(packet.payload["uid"], packet.payload)]
    return [PresenceChanged(uid, user_state(state), state["reason"]) for uid, state in states]
