"""The packets of clients in a fuzzed session, and ways to damage one."""

import struct
from functools import cache
from typing import Any, Final

from presence import protocol
from presence.protocol import Code, Kind, Packet
from tests.fuzz.choices import Choices
from tests.fuzz.gate import TOKENS, UIDS

DEVICES: Final = (None, "a", "b")
_SHOWN: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"status": "away"},
    {"meta": {"k": [1, {"$bin": b"\xff"}]}},
    {"status": "online", "meta": {}},
)
_WISHES: Final = (None, 2.0, 4.0, 2**63, 1e-9)


def _packets() -> list[Packet]:
    """Return one packet of each kind, and more of those whose answer depends on earlier ones."""
    uids = [["bob"], [], ["ada", "bob", "eve"] * 20]
    return [
        Packet(Kind.KEEPALIVE),
        *(protocol.keepalive(id) for id in (0, 255, 2**64 - 1)),
        *(Packet(Kind.UPDATE, 5, shown) for shown in _SHOWN),
        Packet(Kind.UPDATE, None, {"status": "online"}),
        Packet(Kind.UPDATE, 6, {"meta": {"n": None}, "status": "away"}),
        *(Packet(Kind.UPDATE, 8, {"token": token}) for token in TOKENS),
        protocol.message("bob", {"text": "hi"}, id=4),
        protocol.message("ada", None),
        *(
            Packet(kind, 9, {"uids": each})
            for kind in (Kind.QUERY, Kind.WATCH, Kind.UNWATCH)
            for each in uids
        ),
        Packet(Kind.UNWATCH),
        Packet(9, 1, {"new": True}),
        Packet(63),
        Packet(Kind.LOGOUT),
        Packet(Kind.LOGOUT, 3, {"reason": "background"}),
        protocol.ok(1, delivered=1),
        protocol.error(2, Code.BUSY, "no"),
        protocol.goodbye(Code.REPLACED),
        protocol.presence("bob", {"status": "online"}, "login"),
        protocol.deliver("bob", b"x", 5),
    ]


PACKETS: Final = tuple(protocol.encode(packet) for packet in _packets())


def login(choices: Choices) -> bytes:
    """Return a login of one of a few users on one of a few devices."""
    uid, device, shown = choices.of((*UIDS, None)), choices.of(DEVICES), choices.below(len(_SHOWN))
    wish, token = choices.of(_WISHES), choices.of((*TOKENS, None))
    return _login(uid if token else uid or UIDS[0], device, wish, token, shown)


@cache
def _login(uid: str | None, device: str | None, wish: float | None, token: str | None, shown: int) -> bytes:
    packet = protocol.login(uid, id=1, device=device, token=token, idle_timeout=wish, **_SHOWN[shown])
    return protocol.encode(packet)


def damaged(frame: bytes, choices: Choices) -> bytes:
    """Return a damaged frame: one bit or byte changed, truncated, extended, or with another length."""
    body = bytearray(frame[4:])
    at = choices.below(256) % len(body)
    match choices.below(5):
        case 0:
            body[at] = choices.below(256)
        case 1:
            body[at] ^= 1 << choices.below(8)
        case 2:
            del body[at or 1 :]
        case 3:
            body += choices.take(2)
        case _:
            length = choices.of((0, 1025, 16_385, 2**32 - 1, len(body) + 1))
            return struct.pack("!I", length) + bytes(body)
    return struct.pack("!I", len(body)) + bytes(body)
