"""What a logged-in client asks for that its own session cannot answer, and who answers it.

A request is taken at once and answered later, when Redis or another node has said what it takes; keepalives
and logins go on meanwhile. The answer goes to the connection that asked; if that is gone, to nobody.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from presence import protocol
from presence.core.registry import Session
from presence.protocol import Code, Kind, Packet

REQUEST_KINDS: Final = frozenset({Kind.MESSAGE, Kind.QUERY, Kind.WATCH, Kind.UNWATCH})


class Message(NamedTuple):
    """Hand `body` to all sessions of the user `to`. `id`: of the packet, here and below."""

    id: int | None
    to: str
    body: Any


class Query(NamedTuple):
    """Tell the states of some users."""

    id: int | None
    uids: list[str]


class Watch(NamedTuple):
    """Tell the states of some users, and each change from now on."""

    id: int | None
    uids: list[str]


class Unwatch(NamedTuple):
    """Tell no more changes of some users; None: of any."""

    id: int | None
    uids: list[str] | None


Request: TypeAlias = Message | Query | Watch | Unwatch


def parse_request(packet: Packet) -> Request:
    """Return what a packet of one of `REQUEST_KINDS` asks for."""
    id, payload = packet.id, packet.payload
    match packet.kind:
        case Kind.MESSAGE:
            return Message(id, payload["to"], payload["body"])
        case Kind.QUERY:
            return Query(id, payload["uids"])
        case Kind.WATCH:
            return Watch(id, payload["uids"])
        case _:
            return Unwatch(id, payload.get("uids"))


class RequestHandler(Protocol):
    """Who answers requests. Nothing here waits."""

    def handle(self, session: Session, request: Request) -> None:
        """Take a request. Answers may come in another order.

        The session's connection is there, except for a message: one that was sent right before a logout or
        the end of the connection is still handed on.
        """

    def drained(self, session: Session) -> None:
        """The connection, which had unsent bytes, has none any more: what was put off for it may go."""

    def session_disconnected(self, session: Session) -> None:
        """The connection of a session is gone or about to be: of every session, once, mostly in vain."""


def send_packet(session: Session, packet: Packet) -> None:
    """Send a packet on a session's connection; nothing if that is gone."""
    if session.link is not None:
        session.link.send(session.handle, protocol.encode(packet))


def send_ok(session: Session, id: int | None, payload: Mapping[str, Any]) -> None:
    """Answer a request with ok."""
    send_packet(session, protocol.ok(id, **payload))


def send_error(
    session: Session, id: int | None, code: Code, message: str, retry_after: float | None = None
) -> None:
    """Answer a request with an error; `retry_after` in seconds."""
    send_packet(session, protocol.error(id, code, message, retry_after))
