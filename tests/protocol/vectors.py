"""Reads `protocol/vectors.json` like the tests of any client."""

import json
from importlib.resources import files
from typing import Any, NamedTuple

from presence.protocol import (
    FRAME_LIMIT_BEFORE_LOGIN_BYTES,
    FRAME_LIMIT_BYTES,
    SERVER_FRAME_LIMIT_BYTES,
    Packet,
)

_LIMITS = {
    None: FRAME_LIMIT_BYTES,
    "before_login": FRAME_LIMIT_BEFORE_LOGIN_BYTES,
    "server": SERVER_FRAME_LIMIT_BYTES,
}


class Good(NamedTuple):
    name: str
    frame: bytes
    limit_bytes: int
    packet: Packet


class Bad(NamedTuple):
    name: str
    frame: bytes
    limit_bytes: int
    code: int
    reason: str
    kind: int | None
    id: int | None


class StateOfRow(NamedTuple):
    name: str
    row: Any
    uid: str
    state: dict[str, Any]


def _plain(value: Any) -> Any:
    match value:
        case {"$bin": digits, **rest} if not rest:
            return bytes.fromhex(digits)
        case {"$int": digits, **rest} if not rest:
            return int(digits)
        case dict():
            return {key: _plain(inner) for key, inner in value.items()}
        case list():
            return [_plain(inner) for inner in value]
    return value


def _load() -> tuple[list[Good], list[Bad], list[StateOfRow]]:
    vectors = json.loads((files("presence.protocol") / "vectors.json").read_text("utf-8"))
    good = [
        Good(
            each["name"],
            bytes.fromhex(each["hex"]),
            _LIMITS[each.get("limit")],
            Packet(**_plain(each["packet"])),
        )
        for each in vectors["good"]
    ]
    bad = [
        Bad(
            each["name"],
            bytes.fromhex(each["hex"]),
            _LIMITS[each.get("limit")],
            each["code"],
            each["reason"],
            each["kind"],
            each["id"],
        )
        for each in vectors["bad"]
    ]
    return good, bad, [StateOfRow(**_plain(each)) for each in vectors["rows"]]


GOOD, BAD, ROWS = _load()


def exact(packet: Packet) -> str:
    """Return text that differs for different packets; plain equality treats 1, 1.0 and True as equal."""
    kind, id, payload = packet
    return f"{int(kind)} {id!r} {dict(payload)!r}"
