"""The cells of the state table, each with bytes that trigger it, and who tests it.

The core knows connected and logged-in connections; what follows a refusal, and the time for a login, is
in the hands of the transports.
"""

from collections.abc import Iterator

from presence import protocol
from presence.protocol import (
    TABLE,
    Code,
    ConnectionState,
    Kind,
    Other,
    Packet,
    ProtocolError,
    Reaction,
    ServerAnswer,
)

Cell = tuple[ConnectionState, Kind | Other]

AT_TRANSPORT: list[Cell] = [
    (state, trigger)
    for state, trigger in TABLE
    if state is ConnectionState.CLOSING or trigger is Other.LOGIN_TIMEOUT
]
AT_CORE: list[Cell] = [
    (state, trigger)
    for state, trigger in TABLE
    if state in (ConnectionState.CONNECTED, ConnectionState.LOGGED_IN) and trigger is not Other.LOGIN_TIMEOUT
]

ID = 77
_STATE = {"status": "online", "since_ms": 1, "last_seen_ms": None, "id": None}
_FRAMES: dict[Kind | Other, list[bytes]] = {
    Kind.LOGIN: [
        protocol.encode(protocol.login("ada", id=ID)),
        protocol.encode(protocol.login("ada", id=ID, rooms=["lobby"])),
    ],
    Kind.MESSAGE: [protocol.encode(protocol.message("bob", "hi", id=ID))],
    Kind.KEEPALIVE: [protocol.KEEPALIVE, protocol.encode(protocol.keepalive(ID))],
    Kind.LOGOUT: [protocol.encode(protocol.logout(id=ID))],
    Kind.QUERY: [
        protocol.encode(protocol.query(["bob"], id=ID)),
        protocol.encode(protocol.query(rooms=["lobby"], id=ID)),
    ],
    Kind.WATCH: [
        protocol.encode(protocol.watch(["bob"], id=ID)),
        protocol.encode(protocol.watch(rooms=["lobby"], id=ID)),
    ],
    Kind.UNWATCH: [
        protocol.encode(protocol.unwatch(id=ID)),
        protocol.encode(protocol.unwatch(rooms=["lobby"], id=ID)),
    ],
    Kind.UPDATE: [
        protocol.encode(protocol.update(id=ID, status="away")),
        protocol.encode(protocol.update(id=ID, rooms=[], join=["lobby"], leave=["hall"])),
    ],
    Kind.OK: [protocol.encode(protocol.ok(ID))],
    Kind.ERROR: [protocol.encode(protocol.error(ID, Code.BUSY, "busy"))],
    Kind.PRESENCE: [protocol.encode(protocol.presence("bob", _STATE, "login"))],
    Kind.DELIVER: [protocol.encode(protocol.deliver("bob", "hi", 1))],
    Kind.GOODBYE: [protocol.encode(protocol.goodbye(Code.KICKED))],
    Kind.CHANGES: [protocol.encode(protocol.changes([["bob", "online", 1]]))],
    Kind.ROOMS: [protocol.encode(protocol.rooms([["lobby", 1, ["bob"]]]))],
    Other.UNKNOWN: [protocol.encode(Packet(9, ID)), protocol.encode(Packet(1000, ID, {"any": "thing"}))],
    Other.INVALID: [bytes.fromhex("00000005 93014d81a1"), bytes.fromhex("00000004 93024d80")],
    Other.MALFORMED: [b"\0\0\0\0", b"\xff\xff\xff\xff", bytes.fromhex("00000001 c0")],
    Other.LOGIN_TIMEOUT: [b""],
}


def frames(trigger: Kind | Other) -> list[bytes]:
    """Return examples of what arrives, each a whole frame (or the length of one that is refused by it)."""
    return _FRAMES[trigger]


def answers_expected(reaction: Reaction, frame: bytes) -> Iterator[tuple[Kind, int | None, int | None]]:
    """Yield kind, id and code of what the server must send for `frame`."""
    packet_id, code = _id_and_code(frame)
    if reaction.answer is ServerAnswer.NOTHING or (
        reaction.answer is ServerAnswer.OK_IF_ID and packet_id is None
    ):
        return
    if reaction.answer is ServerAnswer.OK_OR_REFUSAL and protocol.decode(frame[4:]).kind == Kind.MESSAGE:
        yield Kind.ERROR, packet_id, Code.RECIPIENT_OFFLINE  # bob is nowhere
    elif reaction.answer in (
        ServerAnswer.OK,
        ServerAnswer.OK_OR_ERROR,
        ServerAnswer.OK_OR_REFUSAL,
        ServerAnswer.OK_IF_ID,
    ):
        yield Kind.OK, packet_id, None
    else:
        goodbye = reaction.answer is ServerAnswer.GOODBYE
        yield (
            Kind.GOODBYE if goodbye else Kind.ERROR,
            None if goodbye else packet_id,
            int(reaction.code or code),
        )


def brief(packet: Packet) -> tuple[Kind, int | None, int | None]:
    """Return kind, id and code of a packet, as `answers_expected` yields them."""
    return Kind(packet.kind), packet.id, packet.payload.get("code")


def _id_and_code(frame: bytes) -> tuple[int | None, Code]:
    try:
        end = protocol.frame_end(frame, 0, protocol.FRAME_LIMIT_BYTES) if frame else 0
        return (protocol.decode(frame[4:end]).id if end else None), Code.PROTOCOL_ERROR
    except ProtocolError as error:
        return error.id, error.code
