"""Packets that a program might try to send, valid ones and others: for the encoder."""

import math
from typing import Any, Final

from loadtest.fuzz.choices import Choices
from protocol import DEPTH_MAX, UIDS_MAX, Kind, Packet

DEEPEST: Final = DEPTH_MAX + 3

KINDS: Final = (*Kind, 0, 9, 63, 69, 2**64 - 1, 2**64, -1, True)
IDS: Final[tuple[Any, ...]] = (None, 0, 7, 127, 128, 255, 256, 2**32, 2**64 - 1, 2**64, -1, "7", 1.0, False)
KEYS: Final[tuple[Any, ...]] = (
    *("uid", "device", "token", "idle_timeout", "meta", "status", "v", "to", "body", "reason", "uids"),
    *("session", "keepalive", "time_ms", "delivered", "presence", "code", "message", "retry_after"),
    *("since_ms", "last_seen_ms", "id", "from", "at_ms", "reconnect", "unknown", "", "\ud800", 1, None, b"x"),
)
PLAIN: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, 313, -1, -33, 2**31, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1),
    *(0.0, -0.0, 0.5, 1e300, math.nan, math.inf, -math.inf),
    *("", "ada", "bob", "online", "away", "logout", "background", "a b", "a{", "\x7f", "\u2028", "\ud800"),
    *("é" * 64, "é" * 64 + "x", "é" * 32, "x" * 65, "x" * 128, "x" * 129, "x" * 768, "x" * 769),
    *(b"", b"\xff", bytearray(b"x"), b"x" * 300, object(), {1, 2}, 1j),
    *(
        ["ada"] * UIDS_MAX,
        ["ada"] * (UIDS_MAX + 1),
        ["ada", "b c"],
        [],
        {},
        {"k": "x" * 252},
        {"k": "x" * 253},
    ),
    *({"ada": {"status": "online"}}, {"ada": {"status": "away", "since_ms": None, "id": "1-2", "meta": {}}}),
)
PLAIN_SHARE: Final = 4  # of 5 values; the others are containers


def packet(choices: Choices) -> Packet:
    """Return a packet of any kind with whatever payload."""
    kind, id = choices.of(KINDS), choices.of(IDS)
    return Packet(kind, id, mapping(choices, DEEPEST))


def mapping(choices: Choices, room: int) -> dict[Any, Any]:
    """Return a map; `room`: containers that may lie inside each other."""
    return {choices.of(KEYS): value(choices, room - 1) for _ in range(choices.below(8))}


def value(choices: Choices, room: int) -> Any:
    """Return what may stand in a payload, or may not."""
    if not room or choices.below(PLAIN_SHARE + 1) < PLAIN_SHARE:
        return choices.of(PLAIN)
    match choices.below(4):
        case 0:
            return mapping(choices, room)
        case 1:
            return [value(choices, room - 1) for _ in range(choices.below(5))]
        case 2:
            return tuple(value(choices, room - 1) for _ in range(choices.below(3)))
        case _:
            return nested(choices.below(DEEPEST + 1), choices.of(PLAIN))


def nested(levels: int, innermost: Any) -> Any:
    """Return a value that so many containers lie around, lists and maps in turn."""
    for level in range(levels):
        innermost = {"k": innermost} if level % 2 else [innermost]
    return innermost


def as_received(value: Any) -> Any:
    """Return a value as it arrives once it was packed: of tuples lists, of all byte strings plain ones."""
    if isinstance(value, dict):
        return {key: as_received(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_received(each) for each in value]
    if isinstance(value, bytearray):
        return bytes(value)
    return value
