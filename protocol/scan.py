"""The shape of a MessagePack value, checked before any of it is built.

A decoder that trusts a container's header allocates what the header claims, and nested headers
multiply: 1,000 nested arrays that claim 16,000 elements each fit in 3 KB and cost 128 MB,
although no single one claims more than a frame may hold. So this scan reads tags and lengths only.

Invariant: ``owed``, the values still missing in all open containers together, never exceeds the
remaining bytes, because a value takes at least one byte. Decoding is therefore linear in
the frame. Time O(values), memory O(depth).

Tests: `tests/protocol/test_bombs.py`, `tests/protocol/test_codec.py`.
"""

import math
import struct
from typing import Final, NoReturn

from presence.protocol.constants import Code
from presence.protocol.errors import ProtocolError

_FLOATS: Final = {0xCA: struct.Struct("!f"), 0xCB: struct.Struct("!d")}


def _widths() -> bytes:
    """Size in bytes of the values whose first byte determines it; 0 for all others."""
    widths = bytearray(256)
    for tag in (*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3):  # small ints, nil, booleans
        widths[tag] = 1
    for length in range(32):  # short strings
        widths[0xA0 + length] = 1 + length
    for power in range(4):  # uint8 to uint64, int8 to int64
        widths[0xCC + power] = widths[0xD0 + power] = 1 + 2**power
    return bytes(widths)


_WIDTH: Final = _widths()
_STRINGS: Final = frozenset((*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB))
# First byte of str and bin with a length field: bytes of that length.
_SIZED: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
# First byte of a container: bytes of its count, values per element, the count if it is in the tag.
_CONTAINERS: Final = {
    **{0x80 + count: (0, 2, count) for count in range(16)},
    **{0x90 + count: (0, 1, count) for count in range(16)},
    0xDC: (2, 1, 0),
    0xDD: (4, 1, 0),
    0xDE: (2, 2, 0),
    0xDF: (4, 2, 0),
}


def end_of_value(body: bytes, start: int, depth_max: int) -> int:
    """Return the offset after the value that begins at ``start``.

    Args:
        body: one frame's body.
        start: where the value begins.
        depth_max: how deep containers may be nested; 0 allows none.

    Raises:
        ProtocolError: the value does not fit in the body, is nested too deep, has a map key that is not
            a string, a NaN or an infinity, an extension type, or the byte that MessagePack does not use.
    """
    at, size = start, len(body)
    owed = left = 1  # `left`: values missing in the innermost open container
    in_map = False
    outer: list[tuple[int, bool]] = []  # `left` and `in_map` of the containers around it
    while True:
        if owed > size - at:
            _refuse("the frame ends before its values do")
        tag = body[at]
        if in_map and not left & 1 and tag not in _STRINGS:
            _refuse("a map key is not a string")
        left -= 1
        owed -= 1
        if width := _WIDTH[tag]:
            at += width
        elif container := _CONTAINERS.get(tag):
            if len(outer) == depth_max:
                _refuse("containers nest too deep")
            count_bytes, values, count = container
            if count_bytes:
                count = _length(body, at + 1, count_bytes)
            outer.append((left, in_map))
            left, in_map = count * values, values == 2
            owed += left
            at += 1 + count_bytes
        else:
            at = _end_of_other(body, at, tag)
        while not left:
            if not outer:
                if at > size:
                    _refuse("the frame ends before its values do")
                return at
            left, in_map = outer.pop()


def _end_of_other(body: bytes, at: int, tag: int) -> int:
    """Return the end of a float, or of a string or binary with a length field; refuse everything else."""
    if tag in _FLOATS:
        return _end_of_float(body, at + 1, _FLOATS[tag])
    length_bytes = _SIZED.get(tag)
    if length_bytes is None:
        _refuse("a byte that MessagePack never uses" if tag == 0xC1 else "an extension type")
    return at + 1 + length_bytes + _length(body, at + 1, length_bytes)


def _end_of_float(body: bytes, at: int, form: struct.Struct) -> int:
    end = at + form.size
    if end > len(body):
        _refuse("the frame ends before its values do")
    if not math.isfinite(form.unpack_from(body, at)[0]):
        _refuse("a number is NaN or infinite")
    return end


def _length(body: bytes, at: int, width: int) -> int:
    if at + width > len(body):
        _refuse("the frame ends before its values do")
    return int.from_bytes(body[at : at + width], "big")


def _refuse(message: str) -> NoReturn:
    raise ProtocolError(Code.PROTOCOL_ERROR, message)
