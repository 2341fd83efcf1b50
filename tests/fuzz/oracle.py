"""A second decoder of the protocol, written from `protocol/SPEC.md` alone: both must agree.

It imports nothing from the first one, not even its numbers, and not msgpack either: a mistake in a table or
a library must not be in both. It reads and builds one value after the other, while the first one checks the
shape before anything is built. It is slow, and limits no memory beyond the frame's own size.
"""

import math
import struct
from typing import Any, Final, NamedTuple

from tests.fuzz.oracle_schema import MALFORMED, TOO_LARGE, complaints

NESTED_MAX: Final = 12  # nested containers, including the payload but not the frame
_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}
_FORMS: Final = {0xCA: "!f", 0xCB: "!d", 0xCC: "!B", 0xCD: "!H", 0xCE: "!I", 0xCF: "!Q"}
_FORMS_SIGNED: Final = {0xD0: "!b", 0xD1: "!h", 0xD2: "!i", 0xD3: "!q"}
_NUMBERS: Final = {tag: struct.Struct(form) for tag, form in {**_FORMS, **_FORMS_SIGNED}.items()}
_BINARIES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}  # by the tag, the number of bytes of the length
_STRINGS: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_ARRAYS: Final = {0xDC: 2, 0xDD: 4}
_MAPS: Final = {0xDE: 2, 0xDF: 4}


class Taken(NamedTuple):
    """The body is this packet; `payload` is empty if it has none."""

    kind: int
    id: int | None
    payload: dict[str, Any]


class Refused(NamedTuple):
    """The body breaks a rule.

    Attributes:
        codes: of every broken rule; a decoder may name any of them.
        kind: the packet's kind as far as it can be read; None: a malformed frame.
        id: the request's, likewise.
    """

    codes: frozenset[int]
    kind: int | None
    id: int | None


class _Broken(Exception):
    """The bytes are not a value that the protocol allows."""


def length_of(data: bytes, start: int, limit: int) -> int | Refused:
    """Return the length in bytes of the frame at `start`, or 0 if it is incomplete."""
    if len(data) < start + 4:
        return 0
    length = int.from_bytes(data[start : start + 4], "big")
    if length > limit:
        return Refused(frozenset({TOO_LARGE}), None, None)
    if length == 0:
        return Refused(frozenset({MALFORMED}), None, None)
    return 4 + length if len(data) >= start + 4 + length else 0


def judge(body: bytes) -> Taken | Refused:
    """Return the packet of a frame's body, or the broken rules."""
    kind = id = None
    payload: Any = {}
    reader = _Reader(body)
    try:
        count = reader.frame()
        kind = _uint(reader.value(NESTED_MAX))
        if count > 1 and (second := reader.value(NESTED_MAX)) is not None:
            id = _uint(second)
        if count > 2:
            payload = reader.value(NESTED_MAX)
    except _Broken:
        return Refused(frozenset({MALFORMED}), kind, id)
    if reader.at != len(body) or type(payload) is not dict:
        return Refused(frozenset({MALFORMED}), kind, id)
    codes = complaints(kind, payload)
    return Refused(codes, kind, id) if codes else Taken(kind, id, payload)


def _uint(value: object) -> int:
    if type(value) is int and value >= 0:
        return value
    raise _Broken


class _Reader:
    """Reads values of MessagePack; `room` is how many levels of containers are allowed."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.at = 0

    def frame(self) -> int:
        """Return the number of elements of the frame's array."""
        tag = self._uint(1)
        count = self._uint(_ARRAYS[tag]) if tag in _ARRAYS else tag - 0x90
        if count in (1, 2, 3):
            return count
        raise _Broken

    def value(self, room: int) -> Any:
        """Return the next value."""
        tag = self._uint(1)
        if tag <= 0x7F:
            return tag
        if tag >= 0xE0:
            return tag - 0x100
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in _NUMBERS:
            return self._number(_NUMBERS[tag])
        if 0xA0 <= tag <= 0xBF:
            return self._text(tag - 0xA0)
        if tag in _STRINGS:
            return self._text(self._uint(_STRINGS[tag]))
        if tag in _BINARIES:
            return self._take(self._uint(_BINARIES[tag]))
        if not room:
            raise _Broken
        if tag <= 0x8F:
            return self._map(tag - 0x80, room)
        if tag <= 0x9F:
            return self._array(tag - 0x90, room)
        if tag in _ARRAYS:
            return self._array(self._uint(_ARRAYS[tag]), room)
        if tag in _MAPS:
            return self._map(self._uint(_MAPS[tag]), room)
        raise _Broken  # extension types, and the one unused byte

    def _array(self, count: int, room: int) -> list[Any]:
        values = []
        for _ in range(count):  # whatever it claims: the bytes end soon
            values.append(self.value(room - 1))  # noqa: PERF401 - it ends with the bytes
        return values

    def _map(self, count: int, room: int) -> dict[str, Any]:
        values = {}
        for _ in range(count):
            if type(key := self.value(0)) is not str:
                raise _Broken
            values[key] = self.value(room - 1)
        return values

    def _number(self, form: struct.Struct) -> int | float:
        (value,) = form.unpack(self._take(form.size))
        if type(value) is float and not math.isfinite(value):
            raise _Broken
        return value  # type: ignore[no-any-return]

    def _text(self, length: int) -> str:
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise _Broken from None

    def _uint(self, width: int) -> int:
        return int.from_bytes(self._take(width), "big")

    def _take(self, length: int) -> bytes:
        begin, self.at = self.at, self.at + length
        if self.at > len(self.body):
            raise _Broken
        return self.body[begin : self.at]
