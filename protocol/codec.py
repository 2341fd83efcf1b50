"""Frames to packets and back. A frame is a 4-byte big-endian length and that many bytes of MessagePack."""

import struct
from typing import Any, Final

import msgpack

from presence.protocol.constants import DEPTH_MAX, SERVER_FRAME_LIMIT_BYTES, Code, Kind
from presence.protocol.errors import EncodeError, ProtocolError
from presence.protocol.packet import NO_PAYLOAD, Packet
from presence.protocol.scan import end_of_value
from presence.protocol.schema import check_payload

HEADER_BYTES: Final = 4
_MAX_ELEMENTS: Final = 3  # kind, id, payload
_SHORT_BYTES, _SHORT_TAG, _SMALL = 3, 0x92, 0x80  # `[kind, id]` of numbers of one byte, as most logouts are
_header = struct.Struct("!I")
_unpack_header = _header.unpack_from

KEEPALIVE: Final = bytes.fromhex("00000002 9103")  # the whole frame of a keepalive without an id
KEEPALIVE_PACKET: Final = Packet(Kind.KEEPALIVE)  # what that frame decodes to

# First bytes of `[3, id]` and `[64, id]` by the size of the whole frame, and the tags of an id.
_ASKING: Final = {size: _header.pack(size - HEADER_BYTES) + b"\x92\x03" for size in (7, 8, 9, 11, 15)}
_OK: Final = {size: _header.pack(size - HEADER_BYTES) + b"\x92\x40" for size in _ASKING}
_ID_TAGS: Final = {7: range(0x80), 8: (0xCC,), 9: (0xCD,), 11: (0xCE,), 15: (0xCF,)}


def keepalive_answer(data: bytes) -> bytes:
    """Return the ok for exactly one keepalive frame `[3, id]`, or nothing if ``data`` is something else.

    The id is copied as packed, so nothing is decoded: this is the second most common read of a transport.
    """
    size = len(data)
    if size in _ASKING and data[:6] == _ASKING[size] and data[6] in _ID_TAGS[size]:
        return _OK[size] + data[6:]
    return b""


def frame_end(buffer: bytes | bytearray, start: int, limit_bytes: int) -> int:
    """Return the end of the frame that begins at ``start``, or 0 while the buffer does not hold all of it.

    Args:
        buffer: bytes read so far.
        start: offset of the frame's first length byte.
        limit_bytes: the largest length allowed, without the length's own four bytes.

    Raises:
        ProtocolError: the length is over the limit (``TOO_LARGE``) or 0, known from its four bytes alone.
    """
    if len(buffer) - start < HEADER_BYTES:
        return 0
    (length,) = _unpack_header(buffer, start)
    if length > limit_bytes:
        raise ProtocolError(
            Code.TOO_LARGE, f"a frame of {length} bytes is over the limit of {limit_bytes} bytes"
        )
    if not length:
        raise ProtocolError(Code.PROTOCOL_ERROR, "a frame is empty")
    end: int = start + HEADER_BYTES + length
    return end if end <= len(buffer) else 0


def decode(body: bytes) -> Packet:
    """Turn one frame's body, without its length, into a packet that obeys every rule of the protocol.

    Unknown kinds may have any payload. Payload keys that the kind does not define are kept.

    Raises:
        ProtocolError: the body breaks a rule; ``kind`` and ``id`` are set as far as they are readable.
    """
    try:
        return _decode(body)
    except ProtocolError as error:
        error.kind, error.id = _peek(body)
        raise


def encode(packet: Packet, limit_bytes: int = SERVER_FRAME_LIMIT_BYTES) -> bytes:
    """Return the packet as a frame, with its length; an empty payload and a missing id are omitted.

    Refuses what `decode` would refuse, so that a mistake shows on the side that made it.

    Raises:
        EncodeError: the packet breaks a rule of the protocol, or its body is longer than ``limit_bytes``.
    """
    try:
        body = _packed(packet)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EncodeError(f"kind {packet.kind} cannot be packed: {error}") from error
    if len(body) > limit_bytes:
        raise EncodeError(f"kind {packet.kind}: {len(body)} bytes are over the limit of {limit_bytes} bytes")
    try:
        _decode(body)
    except ProtocolError as error:
        raise EncodeError(f"kind {packet.kind}: {error.message}") from error
    return _header.pack(len(body)) + body


def encode_unchecked(packet: Packet) -> bytes:
    """Do the same without checks: for frequent packets of which the caller has made every part itself."""
    body = _packed(packet)
    return _header.pack(len(body)) + body


def _packed(packet: Packet) -> bytes:
    elements: list[Any] = [packet.kind, packet.id, dict(packet.payload)]
    if not packet.payload:
        del elements[2 if packet.id is not None else 1 :]
    body: bytes = msgpack.packb(elements)
    return body


def _decode(body: bytes) -> Packet:
    if len(body) == _SHORT_BYTES and body[0] == _SHORT_TAG and body[1] < _SMALL and body[2] < _SMALL:
        check_payload(body[1], NO_PAYLOAD)
        return Packet(body[1], body[2])
    # The scan bounds what unpackb may build, and leaves it nothing to refuse but bad UTF-8.
    if end_of_value(body, 0, DEPTH_MAX + 1) != len(body):
        raise _malformed("bytes follow the array")
    try:
        elements = msgpack.unpackb(body)
    except ValueError:
        raise _malformed("a string is not UTF-8") from None
    if type(elements) is not list:
        raise _malformed("a frame must hold an array")
    count = len(elements)
    if not 1 <= count <= _MAX_ELEMENTS:
        raise _malformed("the array must have 1 to 3 elements")
    kind = elements[0]
    if not _is_uint(kind):
        raise _malformed("kind must be an unsigned integer")
    id = elements[1] if count > 1 else None
    if id is not None and not _is_uint(id):
        raise _malformed("id must be an unsigned integer or nil")
    payload = elements[2] if count > 2 else NO_PAYLOAD
    if count > 2 and type(payload) is not dict:
        raise _malformed("payload must be a map")
    check_payload(kind, payload)
    return Packet(kind, id, payload)


def _peek(body: bytes) -> tuple[int | None, int | None]:
    """Read kind and id from a refused body, as far as they are valid."""
    kind = id = None
    try:
        count, at = _array_header(body)
        if 1 <= count <= _MAX_ELEMENTS:
            kind, at = _peek_uint(body, at)
        if kind is not None and count > 1:
            id, at = _peek_uint(body, at)
    except (ProtocolError, UnicodeDecodeError):
        pass  # the rest is not readable
    return kind, id


def _array_header(body: bytes) -> tuple[int, int]:
    """Return an array's count and the offset of its elements; a count of 0 if there is no array."""
    tag = body[0] if body else 0
    if 0x90 <= tag <= 0x9F:
        return tag & 0x0F, 1
    width = {0xDC: 2, 0xDD: 4}.get(tag, 0)
    return int.from_bytes(body[1 : 1 + width], "big"), 1 + width


def _peek_uint(body: bytes, at: int) -> tuple[int | None, int]:
    end = end_of_value(body, at, 0)
    value = msgpack.unpackb(body[at:end])
    return (value if _is_uint(value) else None), end


def _is_uint(value: object) -> bool:
    return type(value) is int and value >= 0  # a bool is an int in Python, but not here


def _malformed(message: str) -> ProtocolError:
    return ProtocolError(Code.PROTOCOL_ERROR, message)
