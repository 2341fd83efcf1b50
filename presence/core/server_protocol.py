"""The server's side of the protocol: received bytes in, what the client said out; no I/O and no clock.

A connection is a `Guest` until its login, then the `Session` that the login made. Each complete packet is an
event for the engine. What the protocol alone decides, such as the refusal of a packet that is not allowed, it
answers itself. The reactions follow the table in `protocol/packet_effects.py`.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from presence import protocol
from presence.common import meta_json
from presence.core.profiles import INVISIBLE, NO_LAST_SEEN, UNCHANGED, ProfileChange
from presence.core.registry import FEATURES, Client, ClientFeatures, Guest, Session
from presence.core.rooms import RoomChange
from presence.core.service_requests import REQUEST_KINDS, ConfirmationRequest, Request, parse_request
from presence.protocol import HEADER_BYTES, Code, Kind, Packet, ProtocolError

_KEEPALIVE_BODY = protocol.KEEPALIVE[HEADER_BYTES:]
_PROFILE_KEYS = frozenset({"status", "meta", "private", "hide"})
_ROOM_KEYS = frozenset(RoomChange._fields)
_HIDDEN_AS = {"last_seen": NO_LAST_SEEN}  # `HIDES` of the protocol
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_SERVER_KINDS = (Kind.OK, Kind.ERROR, Kind.PRESENCE, Kind.DELIVER, Kind.GOODBYE, Kind.CHANGES, Kind.ROOMS)
_MISPLACED = {  # kinds that a logged-in client must not send
    Kind.LOGIN: "this connection has logged in already",
    **dict.fromkeys(_SERVER_KINDS, "packets of this kind come from the server only"),
}


class Login(NamedTuple):
    """The client asks to log in. `id` is that of the packet, here and below."""

    id: int | None
    uid: str | None  # None: the one that the token names
    device: str | None  # None: the default device
    token: str | None
    idle_timeout: float | None  # seconds; None: the server's default
    shows: ProfileChange
    device_class: str  # "" if the login names none
    quiet: bool  # see `presence.core.quiet_sessions`
    features: ClientFeatures
    rooms: tuple[str, ...]
    granted: Mapping[str, Any]  # keys of the answer


class Update(NamedTuple):
    """The client changes what its session shows, its token, time-out, quiet or rooms; None: unchanged."""

    id: int | None
    shows: ProfileChange
    token: str | None
    idle_timeout: float | None  # seconds, as requested
    quiet: bool | None
    rooms: RoomChange | None
    granted: Mapping[str, Any]  # keys of the answer

    @property
    def is_renewal(self) -> bool:
        """Whether it holds a new token and nothing else, which shows no activity of the user."""
        return self.token is not None and self == Update(
            self.id, UNCHANGED, self.token, None, None, None, self.granted
        )


class Logout(NamedTuple):
    """The client ends its session."""

    code: Code


class Answered(Enum):
    """Packets that the protocol has answered, if they need an answer."""

    KEEPALIVE = 1
    UNSUPPORTED = 2
    REFUSED = 3  # not allowed in this state; the connection is closed


Event: TypeAlias = Login | Update | Logout | Request | Answered


@dataclass(slots=True, eq=False)
class ReadOutcome:
    """The effects of some bytes of one connection, for its transport to perform."""

    client: Client  # the connection from now on: a guest, or the session that it logged in to
    reply: bytearray = field(default_factory=bytearray)  # to send; mutable: one read may have 1,000 answers
    end_code: Code | None = None  # reason to disconnect after the reply; None: stay connected
    packets: int = 0  # complete ones of the session; the login before it is none
    has_activity: bool = False  # whether one of these resets the idle time-out
    requests: list[Request] | None = None  # for the request handler, in order
    sight_changed: bool = False  # whether a new token may change whom and what the client may watch
    unfinished: bool = False  # whether packets are left for another call, which has to follow soon
    failure: Exception | None = None  # an internal error, which ends this connection only


@dataclass(eq=False, repr=False)
class ServerProtocol:
    """The server's side of the protocol, for all connections."""

    checks_tokens: bool = False  # else new tokens are not supported
    handles_requests: bool = False  # whether there is a request handler; else requests are not supported

    def receive(self, outcome: ReadOutcome, max_packets: int = sys.maxsize) -> Iterator[Event]:
        """Yield what a client said in its unhandled bytes; write the protocol's own answers to the outcome.

        The caller handles each event before it takes the next, because a granted login replaces
        `outcome.client`, and an `end_code` means that further packets are dropped.

        Args:
            outcome: a new one, of the connection.
            max_packets: maximum of packets to handle; see `ReadOutcome.unfinished`.
        """
        data, logged_in = outcome.client.unhandled, isinstance(outcome.client, Session)
        start, size, handled, packets, has_activity = 0, len(data), 0, 0, False
        try:
            while start < size and outcome.end_code is None:
                if handled >= max_packets:
                    outcome.unfinished = True
                    break
                limit = protocol.FRAME_LIMIT_BYTES if logged_in else protocol.FRAME_LIMIT_BEFORE_LOGIN_BYTES
                end = protocol.frame_end(data, start, limit)
                if not end:
                    break
                body = data[start + HEADER_BYTES : end]
                start = end
                handled += 1
                if not logged_in:
                    yield _first_packet(protocol.decode(body), outcome)
                    logged_in = isinstance(outcome.client, Session)
                    continue
                packets += 1
                if body == _KEEPALIVE_BODY:
                    has_activity = True
                    yield Answered.KEEPALIVE
                else:
                    packet = protocol.decode(body)
                    has_activity = has_activity or protocol.is_activity(packet.kind)
                    yield self._session_packet(packet, outcome)
        except ProtocolError as error:
            _refuse(outcome, error)
        outcome.packets, outcome.has_activity = packets, has_activity
        outcome.client.unhandled = data[start:] if outcome.end_code is None else b""

    def _session_packet(self, packet: Packet, outcome: ReadOutcome) -> Event:
        """Return the event of a packet of a logged-in connection."""
        kind, payload = packet.kind, packet.payload
        if kind == Kind.KEEPALIVE:
            if packet.id is not None:
                outcome.reply += protocol.encode_unchecked(protocol.ok(packet.id))
            confirms = self.handles_requests and "confirmed" in payload
            return ConfirmationRequest(packet.id, payload["confirmed"]) if confirms else Answered.KEEPALIVE
        if kind == Kind.UPDATE:
            return self._update(packet, outcome)
        if kind == Kind.LOGOUT:
            outcome.reply += protocol.encode_unchecked(protocol.ok(packet.id))
            return Logout(Code.BACKGROUND if payload.get("reason") == "background" else Code.LOGOUT)
        if kind in _MISPLACED:
            return _misplaced(packet, outcome, _MISPLACED[Kind(kind)])
        if kind in REQUEST_KINDS and self.handles_requests:
            return parse_request(packet)
        what = f"{Kind(kind).name.lower()} packets" if kind in REQUEST_KINDS else f"packets of kind {kind}"
        return _unsupported(packet, outcome, f"this server does not handle {what}")

    def _update(self, packet: Packet, outcome: ReadOutcome) -> Event:
        payload = packet.payload
        if "token" in payload and not self.checks_tokens:
            return _unsupported(packet, outcome, "this server checks no tokens")
        get = payload.get
        shows, rooms, granted = _shows(payload), _room_change(payload), _granted(payload)
        return Update(packet.id, shows, get("token"), get("idle_timeout"), get("quiet"), rooms, granted)


def _first_packet(packet: Packet, outcome: ReadOutcome) -> Event:
    """Return the event of the first packet of a connection, which must be a login."""
    if packet.kind != Kind.LOGIN:
        return _misplaced(packet, outcome, "the first packet must be a login", Code.NOT_LOGGED_IN)
    get = packet.payload.get
    return Login(
        packet.id,
        get("uid"),
        get("device"),
        get("token"),
        get("idle_timeout"),
        _shows(packet.payload),
        get("class", ""),
        get("quiet", False),
        FEATURES[ClientFeatures(get("confirms", False), get("batch", False))],
        tuple(get("rooms", ())),
        _granted(packet.payload),
    )


def _shows(payload: Mapping[str, Any]) -> ProfileChange:
    """Return what a login or an update changes of what a session shows."""
    if not _PROFILE_KEYS & payload.keys():
        return UNCHANGED
    status, until_ms, privacy = payload.get("status"), payload.get("until_ms"), ""
    if payload.get("scope") == "user" and status == "invisible":
        status, until_ms, privacy = None, None, f"+{INVISIBLE}"
    elif payload.get("scope") == "user" and status is not None:
        privacy = f"-{INVISIBLE}"
    for name, hidden_as in _HIDDEN_AS.items() if "hide" in payload else ():
        privacy += f"{'+' if name in payload['hide'] else '-'}{hidden_as}"
    return ProfileChange(
        status,
        until_ms,
        meta_json.to_text(payload["meta"]) if "meta" in payload else None,
        meta_json.to_text(payload["private"]) if "private" in payload else None,
        privacy,
    )


def _room_change(payload: Mapping[str, Any]) -> RoomChange | None:
    """Return what an update asks for in rooms; None: nothing."""
    asked = {name: tuple(payload[name]) for name in _ROOM_KEYS & payload.keys()}
    return RoomChange(**asked) if asked else None


def _granted(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the answer to a login or an update says of the user's privacy."""
    granted: dict[str, Any] = {}
    if payload.get("scope") == "user" and "status" in payload:
        granted["scope"] = "user"
    if "hide" in payload:
        granted["hide"] = [name for name in _HIDDEN_AS if name in payload["hide"]]
    return granted or _NOTHING


def _unsupported(packet: Packet, outcome: ReadOutcome, message: str) -> Event:
    """Answer a packet that this server does not handle; the connection stays."""
    outcome.reply += protocol.encode(protocol.error(packet.id, Code.UNSUPPORTED, message))
    return Answered.UNSUPPORTED


def _misplaced(packet: Packet, outcome: ReadOutcome, message: str, code: Code = Code.PROTOCOL_ERROR) -> Event:
    """Refuse a packet that is not allowed in this state, and close the connection."""
    _refuse(outcome, ProtocolError(code, message, id=packet.id, kind=packet.kind))
    return Answered.REFUSED


def _refuse(outcome: ReadOutcome, error: ProtocolError) -> None:
    """Report bad input to the client, then disconnect it."""
    outcome.end_code = error.code
    if isinstance(outcome.client, Guest) or error.kind is not None:
        refusal = protocol.error(error.id, error.code, error.message)
    else:
        refusal = protocol.goodbye(error.code, error.message)
    outcome.reply += protocol.encode(refusal)
