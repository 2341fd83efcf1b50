"""A second decoder of the protocol, written from `protocol/SPEC.md` alone: what both must agree about.

It imports nothing of the first one, not even its numbers, and neither msgpack: a mistake in a table or in a
library must not be in both. It reads one value after the other and builds it, where the first one walks the
shape before anything is built. It is slow, and no limit of memory is its business beyond the frame's own.
"""

import math
import struct
from typing import Any, Final, NamedTuple, NoReturn

from loadtest.fuzz.oracle_schema import complaints

MALFORMED: Final = 310
TOO_LARGE: Final = 315
NESTED_MAX: Final = (
    12  # containers inside each other, the payload the first; the frame's array lies around it
)
_UINTS: Final = {0xCC: "!B", 0xCD: "!H", 0xCE: "!I", 0xCF: "!Q"}
_INTS: Final = {0xD0: "!b", 0xD1: "!h", 0xD2: "!i", 0xD3: "!q"}
_FLOATS: Final = {0xCA: "!f", 0xCB: "!d"}
_NUMBERS: Final = {tag: struct.Struct(form) for tag, form in {**_UINTS, **_INTS, **_FLOATS}.items()}
_STRINGS: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_BINARIES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_ARRAYS: Final = {0xDC: 2, 0xDD: 4}
_MAPS: Final = {0xDE: 2, 0xDF: 4}
_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}


class Taken(NamedTuple):
    """The body holds this packet; `payload` is empty where it has none."""

    kind: int
    id: int | None
    payload: dict[str, Any]


class Refused(NamedTuple):
    """It breaks a rule.

    Attributes:
        codes: of every rule that is seen to be broken; a decoder may name any of them.
        kind: the packet's kind as far as it can be read; None: a malformed frame.
        id: the request's, likewise.
    """

    codes: frozenset[int]
    kind: int | None
    id: int | None


class _Broken(Exception):
    """The bytes are no value that the protocol allows."""


def length_of(data: bytes, start: int, limit: int) -> int | Refused:
    """Return how many bytes of `data` the frame at `start` takes, 0 while they are not all there."""
    if len(data) < start + 4:
        return 0
    length = int.from_bytes(data[start : start + 4], "big")
    if length > limit:
        return Refused(frozenset({TOO_LARGE}), None, None)
    if length == 0:
        return Refused(frozenset({MALFORMED}), None, None)
    return 4 + length if len(data) >= start + 4 + length else 0


def judge(body: bytes) -> Taken | Refused:
    """Say what a frame's body holds."""
    kind = id = None
    try:
        count, at = _outer_array(body)
        first, at = _value(body, at, NESTED_MAX)
        kind = _uint(first)
        payload: Any = {}
        if count > 1:
            second, at = _value(body, at, NESTED_MAX)
            id = None if second is None else _uint(second)
        if count > 2:
            payload, at = _value(body, at, NESTED_MAX)
        if at != len(body) or type(payload) is not dict:
            _break()
    except _Broken:
        return Refused(frozenset({MALFORMED}), kind, id)
    codes = complaints(kind, payload)
    return Refused(codes, kind, id) if codes else Taken(kind, id, payload)


def _outer_array(body: bytes) -> tuple[int, int]:
    """Return how many elements the frame has, and where the first begins."""
    tag = _byte(body, 0)
    if 0x90 <= tag <= 0x9F:
        count, at = tag - 0x90, 1
    elif tag in _ARRAYS:
        count, at = _count(body, 1, _ARRAYS[tag])
    else:
        _break()
    if count not in (1, 2, 3):
        _break()
    return count, at


def _uint(value: object) -> int:
    if type(value) is int and value >= 0:
        return value
    raise _Broken


def _value(body: bytes, at: int, room: int) -> tuple[Any, int]:
    """Return the value at `at` and where it ends; `room`: containers that may lie inside each other here."""
    tag = _byte(body, at)
    at += 1
    if tag <= 0x7F:
        return tag, at
    if tag >= 0xE0:
        return tag - 0x100, at
    if tag <= 0x8F:
        return _map(body, at, tag - 0x80, room)
    if tag <= 0x9F:
        return _array(body, at, tag - 0x90, room)
    if tag <= 0xBF:
        return _text(body, at, tag - 0xA0)
    if tag in _CONSTANTS:
        return _CONSTANTS[tag], at
    if tag in _NUMBERS:
        return _number(body, at, _NUMBERS[tag])
    if tag in _STRINGS:
        return _text(body, *_sized(body, at, _STRINGS[tag]))
    if tag in _BINARIES:
        return _bytes(body, *_sized(body, at, _BINARIES[tag]))
    if tag in _ARRAYS:
        return _array(body, *_sized(body, at, _ARRAYS[tag]), room)
    if tag in _MAPS:
        return _map(body, *_sized(body, at, _MAPS[tag]), room)
    raise _Broken  # extension types, and the one byte that is never used


def _array(body: bytes, at: int, count: int, room: int) -> tuple[list[Any], int]:
    if not room:
        _break()
    values = []
    for _ in range(count):  # whatever it claims: the bytes are used up before long
        value, at = _value(body, at, room - 1)
        values.append(value)
    return values, at


def _map(body: bytes, at: int, count: int, room: int) -> tuple[dict[str, Any], int]:
    if not room:
        _break()
    values = {}
    for _ in range(count):
        key, at = _value(body, at, 0)
        if type(key) is not str:
            _break()
        values[key], at = _value(body, at, room - 1)
    return values, at


def _number(body: bytes, at: int, form: struct.Struct) -> tuple[int | float, int]:
    end = at + form.size
    if end > len(body):
        _break()
    (value,) = form.unpack(body[at:end])
    if type(value) is float and (math.isnan(value) or math.isinf(value)):
        _break()
    return value, end


def _text(body: bytes, at: int, length: int) -> tuple[str, int]:
    raw, end = _bytes(body, at, length)
    try:
        return raw.decode("utf-8"), end
    except UnicodeDecodeError:
        _break()


def _bytes(body: bytes, at: int, length: int) -> tuple[bytes, int]:
    if at + length > len(body):
        _break()
    return body[at : at + length], at + length


def _count(body: bytes, at: int, width: int) -> tuple[int, int]:
    raw, end = _bytes(body, at, width)
    return int.from_bytes(raw, "big"), end


def _sized(body: bytes, at: int, width: int) -> tuple[int, int]:
    """Return where what has a length of its own begins, and that length."""
    count, at = _count(body, at, width)
    return at, count


def _byte(body: bytes, at: int) -> int:
    if at >= len(body):
        _break()
    return body[at]


def _break() -> NoReturn:
    raise _Broken
