"""Requests of a logged-in client that need Redis or other nodes, and the interface of their handler.

A request is accepted immediately and answered later, so keepalives and logins are never delayed. The answer
goes to the connection that sent the request; if that is lost, it is dropped.

Tests: `tests/core/test_server_protocol.py`, `tests/transports/test_requests.py`.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from presence import protocol
from presence.core.registry import Session
from presence.protocol import Code, Kind, Packet

REQUEST_KINDS: Final = frozenset({Kind.MESSAGE, Kind.QUERY, Kind.WATCH, Kind.UNWATCH})


class MessageRequest(NamedTuple):
    """Deliver `body` to all sessions of the user `to`. `id` is that of the packet, here and below."""

    id: int | None
    to: str
    body: Any
    confirm_s: float | None = None  # wait so long for confirmations by its recipients; None: for none


class QueryRequest(NamedTuple):
    """Return the states of some users."""

    id: int | None
    uids: list[str]
    detail: bool = False  # with those of their devices


class WatchRequest(NamedTuple):
    """Return the states of some users, and send each change from now on."""

    id: int | None
    uids: list[str]
    detail: bool = False  # with those of their devices, in all changes of this session
    visibility_pass: str | None = None  # lets the client see more users; see `presence.core.visibility`
    roster: bool = False  # also of the users in the roster of the session's user, which is followed


class UnwatchRequest(NamedTuple):
    """Stop sending changes of some users; None: of all, and of all rooms."""

    id: int | None
    uids: list[str] | None
    roster: bool = False  # also of those of the roster, which is followed no longer


class RoomQueryRequest(NamedTuple):
    """Return the state of some rooms."""

    id: int | None
    rooms: list[str]


class RoomWatchRequest(NamedTuple):
    """Return the state of some rooms, and send each change from now on."""

    id: int | None
    rooms: list[str]


class RoomUnwatchRequest(NamedTuple):
    """Stop sending changes of some rooms."""

    id: int | None
    rooms: list[str]


class ConfirmationRequest(NamedTuple):
    """Note that the client has received some messages: no activity of the user, and without an answer."""

    id: int | None
    numbers: list[int]  # of the messages, by their `deliver` packets


RoomRequest: TypeAlias = RoomQueryRequest | RoomWatchRequest | RoomUnwatchRequest
Request: TypeAlias = (
    MessageRequest | QueryRequest | WatchRequest | UnwatchRequest | RoomRequest | ConfirmationRequest
)

_ROOM_REQUESTS: Final[Mapping[int, type[RoomRequest]]] = {
    Kind.QUERY: RoomQueryRequest,
    Kind.WATCH: RoomWatchRequest,
    Kind.UNWATCH: RoomUnwatchRequest,
}


def parse_request(packet: Packet) -> Request:
    """Return the request in a packet of one of `REQUEST_KINDS`."""
    id, payload = packet.id, packet.payload
    if packet.kind in _ROOM_REQUESTS and "rooms" in payload:
        return _ROOM_REQUESTS[packet.kind](id, payload["rooms"])
    match packet.kind:
        case Kind.MESSAGE:
            return MessageRequest(id, payload["to"], payload["body"], payload.get("confirm"))
        case Kind.QUERY:
            return QueryRequest(id, payload["uids"], payload.get("detail", False))
        case Kind.WATCH:
            detail, roster = payload.get("detail", False), payload.get("roster", False)
            return WatchRequest(id, payload["uids"], detail, payload.get("pass"), roster)
        case _:
            return UnwatchRequest(id, payload.get("uids"), payload.get("roster", False))


class RequestHandler(Protocol):
    """Answers requests; no method waits."""

    def handle(self, session: Session, request: Request) -> None:
        """Accept a request. Answers may be sent in another order.

        The session is connected, except for a message or a confirmation: one that was sent right before a
        logout or the end of the connection still counts.
        """

    def all_sent(self, session: Session) -> None:
        """Send what was put off: all unsent bytes of the connection have been sent."""

    def release_held(self, session: Session) -> None:
        """Send soon, and not in this call, the changes that are held for a session; see `QuietSessions`."""

    def sight_changed(self, session: Session) -> None:
        """End watches of users and rooms that the client may no longer see: its token is a new one."""

    def session_disconnected(self, session: Session) -> None:
        """Release what belongs to a session whose connection is lost or closing; called once per session."""


def send_packet(session: Session, packet: Packet) -> None:
    """Send a packet on a session's connection, if it still has one."""
    if session.transport is not None:
        session.transport.send(session.handle, protocol.encode(packet))


def send_ok(session: Session, id: int | None, payload: Mapping[str, Any]) -> None:
    send_packet(session, protocol.ok(id, **payload))


def send_error(
    session: Session, id: int | None, code: Code, message: str, retry_after: float | None = None
) -> None:
    """Answer a request with an error; `retry_after` in seconds."""
    send_packet(session, protocol.error(id, code, message, retry_after))
