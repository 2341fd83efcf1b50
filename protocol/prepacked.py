"""States packed and checked once and used in many packets: as maps, and as rows.

Packing and checking 500 states takes milliseconds, joining packed ones a tenth of that.

Tests: `tests/protocol/test_codec.py`.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgpack

from presence.protocol.codec import HEADER_BYTES, encode
from presence.protocol.constants import SERVER_FRAME_LIMIT_BYTES, UID_MAX_BYTES, UIDS_MAX, Kind
from presence.protocol.errors import EncodeError
from presence.protocol.packet import ok
from presence.protocol.rows import ROW_ELEMENTS, RoomRow, Row

# `UIDS_MAX` of this size fit into one frame with the longest uids. With a full meta one takes 363 bytes.
STATE_MAX_BYTES: Final = (SERVER_FRAME_LIMIT_BYTES - 64) // UIDS_MAX - UID_MAX_BYTES - 2
ROW_MAX_BYTES: Final = STATE_MAX_BYTES + UID_MAX_BYTES + 2  # the same with rows; a full one takes 516 bytes
_ANY_UID = "somebody"  # the rules for a state do not depend on the uid
_STATUSES: Final = frozenset({"online", "away", "busy", "dnd", "offline", "unknown", "not_allowed"})
_PLAIN_KEYS: Final = frozenset({"status", "since_ms", "last_seen_ms", "id", "reason"})
_PLAIN_ELEMENTS: Final = 7  # of a row without meta and devices
_PLAIN_MAX: Final = 2**63 - 1  # of a number: the difference of two can be packed
_pack: Final = msgpack.Packer().pack
_CHANGES_HEAD: Final[bytes] = _pack([int(Kind.CHANGES), None, {"changes": []}])[:-1]
_ROOMS_HEAD: Final[bytes] = _pack([int(Kind.ROOMS), None, {"rooms": []}])[:-1]
_BEFORE_ROW_BYTES: Final = HEADER_BYTES + len(_CHANGES_HEAD) + 1  # of a packet with one row


def pack_state(state: Mapping[str, Any]) -> bytes:
    """Return a state as an answer contains it.

    Raises:
        EncodeError: an answer with it would violate the protocol, or it takes more than `STATE_MAX_BYTES`
            without devices.
    """
    if not is_plain(state):
        encode(ok(None, presence={_ANY_UID: state}))
    packed: bytes = _pack(state)
    if len(packed) > STATE_MAX_BYTES and "devices" not in state:
        raise EncodeError(f"a state takes {len(packed)} bytes")
    return packed


def states_answer(id: int | None, states: Mapping[str, bytes], roster: int | None = None) -> bytes:
    """Return the frame of ok with `presence`.

    Args:
        id: of the request.
        states: valid uids to results of `pack_state`; at most `UIDS_MAX`.
        roster: the key `roster`; None: without it.

    Raises:
        EncodeError: the frame would exceed its limit.
    """
    packer = msgpack.Packer()
    parts = [
        packer.pack_array_header(3),
        packer.pack(int(Kind.OK)),
        packer.pack(id),
        packer.pack({"presence": {}} if roster is None else {"roster": roster, "presence": {}})[:-1],
        packer.pack_map_header(len(states)),
    ]
    for uid, packed in states.items():
        parts.append(packer.pack(uid))
        parts.append(packed)
    body = b"".join(parts)
    if len(body) > SERVER_FRAME_LIMIT_BYTES:
        raise EncodeError(f"{len(states)} states take {len(body)} bytes")
    return struct.pack("!I", len(body)) + body


def pack_row(row: Row) -> bytes:
    """Return the row of a valid uid, made by `make_row`, as an answer or a packet of changes contains it.

    Raises:
        EncodeError: such a packet would violate the protocol, or the row takes more than `ROW_MAX_BYTES`
            without devices.
    """
    if not _is_plain_row(row):
        encode(ok(None, states=[row]))
    packed: bytes = _pack(row)
    if len(packed) > ROW_MAX_BYTES and len(row) < ROW_ELEMENTS:
        raise EncodeError(f"a row takes {len(packed)} bytes")
    return packed


def rows_answer(id: int | None, rows: Sequence[bytes], roster: int | None = None) -> bytes:
    """Return the frame of ok with `states`.

    Args:
        id: of the request.
        rows: results of `pack_row`; at most `UIDS_MAX`.
        roster: the key `roster`; None: without it.

    Raises:
        EncodeError: the frame would exceed its limit.
    """
    more = {} if roster is None else {"roster": roster}
    return _rows_frame(_pack([int(Kind.OK), id, {**more, "states": []}])[:-1], rows)


def change_packet(row: bytes) -> bytes:
    """Return the frame of a change alone; `row` is a result of `pack_row`, with a code."""
    return _rows_frame(_CHANGES_HEAD, (row,))


def join_changes(packets: Sequence[bytes]) -> bytes:
    """Return one frame with the changes of up to `UIDS_MAX` results of `change_packet`.

    Raises:
        EncodeError: the frame would exceed its limit.
    """
    if len(packets) == 1:
        return packets[0]
    return _rows_frame(_CHANGES_HEAD, [packet[_BEFORE_ROW_BYTES:] for packet in packets])


def pack_room_row(row: RoomRow) -> bytes:
    """Return a valid row of a room as an answer or a packet of changes contains it."""
    packed: bytes = _pack(row)
    return packed


def rooms_answer(id: int | None, rows: Sequence[bytes], later: Sequence[str] = ()) -> bytes:
    """Return the frame of ok with `rooms`.

    Args:
        id: of the request.
        rows: results of `pack_room_row`; at most `WATCHED_ROOMS_MAX`.
        later: rooms whose members follow, in a row each.

    Raises:
        EncodeError: the frame would exceed its limit.
    """
    head = {"later": [*later], "rooms": []} if later else {"rooms": []}
    return _rows_frame(_pack([int(Kind.OK), id, head])[:-1], rows)


def rooms_packet(rows: Sequence[bytes]) -> bytes:
    """Return the frame of changes of rooms; `rows` and errors as of `rooms_answer`."""
    return _rows_frame(_ROOMS_HEAD, rows)


def is_plain(state: Mapping[str, Any]) -> bool:
    """Whether a state surely obeys the protocol; of most states that is seen at a glance."""
    get = state.get
    return (
        state.keys() <= _PLAIN_KEYS
        and get("status") in _STATUSES
        and _is_plain_time(get("since_ms"))
        and _is_plain_time(get("last_seen_ms"))
        and (get("id") is None or _is_plain_text(get("id")))
        and _is_plain_text(get("reason", ""))
    )


def _is_plain_time(value: object) -> bool:
    return value is None or (type(value) is int and 0 <= value <= _PLAIN_MAX)


def _is_plain_text(value: object) -> bool:
    return type(value) is str and value.isascii()


def _is_plain_row(row: Row) -> bool:
    """Whether a row of a valid uid surely obeys the protocol."""
    if isinstance(row, str):
        return True
    if len(row) > _PLAIN_ELEMENTS or not (row[1] is None or row[1] in _STATUSES):
        return False
    code, ms, n, since, seen = (*row, None, None, None, None, None)[2:_PLAIN_ELEMENTS]
    since_ms = 0 if since is None else (ms or 0) + since
    last_seen_ms = since_ms - (seen or 0)
    return (
        type(code) is not str
        and 0 <= since_ms <= _PLAIN_MAX
        and 0 <= last_seen_ms <= _PLAIN_MAX
        and (ms or 0) <= _PLAIN_MAX
        and (n or 0) <= _PLAIN_MAX
    )


def _rows_frame(head: bytes, rows: Sequence[bytes]) -> bytes:
    count = len(rows)
    body = b"".join((head, _array_header(count), *rows))
    if len(body) > SERVER_FRAME_LIMIT_BYTES:
        raise EncodeError(f"{count} rows take {len(body)} bytes")
    return struct.pack("!I", len(body)) + body


def _array_header(count: int) -> bytes:
    return bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2)
