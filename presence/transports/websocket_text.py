"""Packets as JSON text and back, for the subprotocol ``presence.v1.json``.

A packet is the same array as in a frame, `[kind, id, payload]`. Binary values are as in `meta_json`:
`{"$bin": "00ff"}`. What a text means is left to the codec: here it only becomes a frame.

Tests: `tests/transports/test_websocket_text.py`.
"""

import json
from typing import Any, NoReturn

import msgpack

from presence.common import meta_json
from presence.protocol import HEADER_BYTES

_NOT_JSON = "a text message must be one packet as JSON"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Made once: `json.loads` and `json.dumps` would make one for each packet.
_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class BadText(ValueError):
    """A text message is no packet; the text says why, for the client."""


def to_frame(text: str) -> bytes:
    """Return the frame of a packet; its rules are not checked.

    Raises:
        BadText: the text is not JSON, or has a value that no frame can have.
    """
    try:
        body = msgpack.packb(meta_json.from_plain(_decode(text)))
    except json.JSONDecodeError as error:
        raise BadText(f"{_NOT_JSON}, but at character {error.pos} it is not") from None
    except (ValueError, OverflowError, RecursionError):
        raise BadText(f"{_NOT_JSON}, with values that a frame can have") from None
    frame: bytes = len(body).to_bytes(HEADER_BYTES, "big") + body
    return frame


def to_text(body: bytes | bytearray) -> str:
    """Return the packet in a frame's body as a text."""
    packet: list[Any] = msgpack.unpackb(body)
    return _encode(meta_json.to_plain(packet))
