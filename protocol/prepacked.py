"""States packed and checked once and used in many answers.

Packing and checking 500 states takes milliseconds, joining packed ones a tenth of that.

Tests: `tests/protocol/test_codec.py`.
"""

import struct
from collections.abc import Mapping
from typing import Any, Final

import msgpack

from presence.protocol.codec import encode
from presence.protocol.constants import SERVER_FRAME_LIMIT_BYTES, UID_MAX_BYTES, UIDS_MAX, Kind
from presence.protocol.errors import EncodeError
from presence.protocol.packet import ok

# `UIDS_MAX` of this size fit into one frame with the longest uids. With a full meta one takes 363 bytes.
STATE_MAX_BYTES: Final = (SERVER_FRAME_LIMIT_BYTES - 64) // UIDS_MAX - UID_MAX_BYTES - 2
_ANY_UID = "somebody"  # the rules for a state do not depend on the uid


def pack_state(state: Mapping[str, Any]) -> bytes:
    """Return a state as an answer contains it.

    Raises:
        EncodeError: an answer with it would violate the protocol, or it takes more than `STATE_MAX_BYTES`
            without devices.
    """
    encode(ok(None, presence={_ANY_UID: state}))
    packed: bytes = msgpack.packb(state)
    if len(packed) > STATE_MAX_BYTES and "devices" not in state:
        raise EncodeError(f"a state takes {len(packed)} bytes")
    return packed


def states_answer(id: int | None, states: Mapping[str, bytes]) -> bytes:
    """Return the frame of ok with `presence`.

    Args:
        id: of the request.
        states: valid uids to results of `pack_state`; at most `UIDS_MAX`.

    Raises:
        EncodeError: the frame would exceed its limit.
    """
    packer = msgpack.Packer()
    parts = [
        packer.pack_array_header(3),
        packer.pack(int(Kind.OK)),
        packer.pack(id),
        packer.pack({"presence": {}})[:-1],
        packer.pack_map_header(len(states)),
    ]
    for uid, packed in states.items():
        parts.append(packer.pack(uid))
        parts.append(packed)
    body = b"".join(parts)
    if len(body) > SERVER_FRAME_LIMIT_BYTES:
        raise EncodeError(f"{len(states)} states take {len(body)} bytes")
    return struct.pack("!I", len(body)) + body
