"""Packets, and one constructor for each kind.

The constructors do not validate: `protocol.codec.encode` does, for all packets. Parts that are None are
omitted.

Tests: `tests/protocol/test_round_trip.py`, `tests/protocol/test_codec.py`.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from presence.protocol.constants import Code, Kind
from presence.protocol.rows import RoomRow, Row

NO_PAYLOAD: Final[Mapping[str, Any]] = MappingProxyType({})  # shared by all packets without a payload


class Packet(NamedTuple):
    """One packet, in either direction.

    Attributes:
        kind: a `Kind`, or a number that this version does not know.
        id: chosen by the client, returned in the reply; None if there is none.
        payload: string keys; do not modify it. Keys that the kind does not define are kept.
    """

    kind: int
    id: int | None = None
    payload: Mapping[str, Any] = NO_PAYLOAD


def _packet(kind: Kind, id: int | None, **payload: Any) -> Packet:
    return Packet(kind, id, {name: value for name, value in payload.items() if value is not None})


def login(
    uid: str | None,
    *,
    id: int | None = None,
    device: str | None = None,
    token: str | None = None,
    idle_timeout: float | None = None,
    meta: Mapping[str, Any] | None = None,
    private: Mapping[str, Any] | None = None,
    status: str | None = None,
    until_ms: int | None = None,
    scope: str | None = None,
    hide: Iterable[str] | None = None,
    quiet: bool | None = None,
    device_class: str | None = None,
    v: int | None = None,
    confirms: bool | None = None,
    batch: bool | None = None,
    rooms: Iterable[str] | None = None,
) -> Packet:
    """Begin a session, by default one that is ``"online"``; see `presence.protocol.constants.STATUSES`.

    ``uid`` may be None if a token names it; ``idle_timeout`` is a request, in seconds; ``until_ms``, Unix
    milliseconds, ends the status; with the ``scope`` ``"user"`` the status belongs to the user and not to the
    session; ``hide`` names what others are not shown of the user; ``quiet`` has changes of watched users wait
    for the client's next packet; ``device_class`` says what the device is: ``"phone"``, ``"web"``;
    ``confirms``: whether the client confirms messages; ``batch``: whether it takes rows; ``rooms``: the rooms
    that the session is in.
    """
    return _packet(
        Kind.LOGIN,
        id,
        uid=uid,
        device=device,
        token=token,
        idle_timeout=idle_timeout,
        meta=meta,
        private=private,
        status=status,
        until_ms=until_ms,
        scope=scope,
        hide=None if hide is None else list(hide),
        quiet=quiet,
        v=v,
        confirms=confirms,
        batch=batch,
        rooms=None if rooms is None else list(rooms),
        **{"class": device_class},
    )


def message(to: str, body: Any, *, id: int | None = None, confirm: float | None = None) -> Packet:
    """Send ``body``, any value of MessagePack's own types, to the sessions of the user ``to``.

    With ``confirm``, the answer says which of them certainly have it, after so many seconds at the latest.
    """
    wanted = {} if confirm is None else {"confirm": confirm}
    return Packet(Kind.MESSAGE, id, {"to": to, "body": body, **wanted})


def keepalive(id: int | None = None) -> Packet:
    """Show that the client is alive; answered only if it carries an id."""
    return Packet(Kind.KEEPALIVE, id)


def confirmation(numbers: Iterable[int]) -> Packet:
    """Confirm messages by the numbers in their ``deliver`` packets; a keepalive as well."""
    return Packet(Kind.KEEPALIVE, None, {"confirmed": list(numbers)})


def logout(reason: str | None = None, *, id: int | None = None) -> Packet:
    """End the session immediately; ``reason`` is ``"logout"`` or ``"background"``."""
    return _packet(Kind.LOGOUT, id, reason=reason)


def query(
    uids: Iterable[str] = (),
    *,
    id: int | None = None,
    detail: bool | None = None,
    rooms: Iterable[str] | None = None,
) -> Packet:
    """Request the current states of some users, with ``detail`` also those of their devices, or of rooms."""
    rooms = None if rooms is None else list(rooms)
    return _packet(Kind.QUERY, id, uids=list(uids), detail=detail, rooms=rooms)


def watch(
    uids: Iterable[str] = (),
    *,
    id: int | None = None,
    detail: bool | None = None,
    visibility_pass: str | None = None,
    roster: bool | None = None,
    rooms: Iterable[str] | None = None,
) -> Packet:
    """Request the states of some users, and each later change; a pass lets the client see more users.

    With ``detail`` the states have devices, from then on in all changes that this connection is sent. With
    ``roster`` the users in the roster of the session's user are watched, too, and changes of it followed.
    A watch of ``rooms`` is of nothing else, here and below.
    """
    payload = {"uids": list(uids), "detail": detail, "pass": visibility_pass, "roster": roster}
    payload["rooms"] = None if rooms is None else list(rooms)
    return _packet(Kind.WATCH, id, **payload)


def unwatch(
    uids: Iterable[str] | None = None,
    *,
    id: int | None = None,
    roster: bool | None = None,
    rooms: Iterable[str] | None = None,
) -> Packet:
    """Stop watching some users, with ``roster`` those of the roster, too; or ``rooms``, and no users.

    All watches end if ``uids`` and ``rooms`` are None.
    """
    if rooms is not None:  # to an older server, an unwatch without uids is one of all users
        return _packet(Kind.UNWATCH, id, uids=[], rooms=list(rooms))
    return _packet(Kind.UNWATCH, id, uids=None if uids is None else list(uids), roster=roster)


def update(
    *,
    id: int | None = None,
    meta: Mapping[str, Any] | None = None,
    private: Mapping[str, Any] | None = None,
    token: str | None = None,
    status: str | None = None,
    until_ms: int | None = None,
    scope: str | None = None,
    hide: Iterable[str] | None = None,
    idle_timeout: float | None = None,
    quiet: bool | None = None,
    rooms: Iterable[str] | None = None,
    join: Iterable[str] | None = None,
    leave: Iterable[str] | None = None,
) -> Packet:
    """Change what a session shows, its token or idle time-out; an empty map removes ``meta`` or ``private``.

    ``status``, ``until_ms``, ``scope``, ``hide``, ``idle_timeout`` and ``quiet``: see `login`. The session is
    then in ``rooms``, or by default in those from before, without those of ``leave``, and in those of
    ``join``.
    """
    return _packet(
        Kind.UPDATE,
        id,
        meta=meta,
        private=private,
        token=token,
        status=status,
        until_ms=until_ms,
        scope=scope,
        hide=None if hide is None else list(hide),
        idle_timeout=idle_timeout,
        quiet=quiet,
        rooms=None if rooms is None else list(rooms),
        join=None if join is None else list(join),
        leave=None if leave is None else list(leave),
    )


def ok(id: int | None, **payload: Any) -> Packet:
    """Grant the request with that id."""
    return Packet(Kind.OK, id, payload)


def error(id: int | None, code: Code, message: str, retry_after: float | None = None) -> Packet:
    """Refuse the request with that id; ``retry_after`` in seconds."""
    return _packet(
        Kind.ERROR, id, code=int(code), reason=code.reason, message=message, retry_after=retry_after
    )


def presence(uid: str, state: Mapping[str, Any], reason: str) -> Packet:
    """Notify a watcher of a user's state: a map with ``status``, ``since_ms``, ``last_seen_ms``, ``id``."""
    return Packet(Kind.PRESENCE, None, {"uid": uid, **state, "reason": reason})


def changes(rows: Iterable[Row]) -> Packet:
    """Notify a watcher that takes rows of users' states, the oldest change first; see `to_row`."""
    return Packet(Kind.CHANGES, None, {"changes": list(rows)})


def rooms(rows: Iterable[RoomRow]) -> Packet:
    """Notify a watcher of changes of rooms, or of their present state."""
    return Packet(Kind.ROOMS, None, {"rooms": list(rows)})


def deliver(sender: str, body: Any, at_ms: int, confirm: int | None = None) -> Packet:
    """Deliver a message that ``sender`` sent at ``at_ms`` (Unix milliseconds).

    A client that confirms messages is to confirm the number ``confirm``, if there is one.
    """
    wanted = {} if confirm is None else {"confirm": confirm}
    return Packet(Kind.DELIVER, None, {"from": sender, "body": body, "at_ms": at_ms, **wanted})


def goodbye(code: Code, message: str | None = None, retry_after: float | None = None) -> Packet:
    """Announce that the server is closing the connection; ``retry_after`` in seconds.

    Whether the client may reconnect follows from both: see `Code.allows_return`.
    """
    return _packet(
        Kind.GOODBYE,
        None,
        code=int(code),
        reason=code.reason,
        reconnect=code.allows_return(retry_after),
        message=message,
        retry_after=retry_after,
    )
