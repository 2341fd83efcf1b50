"""The presence protocol, version 1: bytes to packets and back, without I/O.

`SPEC.md` beside this file is the specification, `vectors.json` its test vectors. Nothing here uses
sockets or clocks.
"""

from presence.protocol.codec import (
    HEADER_BYTES,
    KEEPALIVE,
    KEEPALIVE_PACKET,
    decode,
    encode,
    frame_end,
    keepalive_answer,
)
from presence.protocol.constants import (
    DEPTH_MAX,
    DEVICE_MAX_BYTES,
    FRAME_LIMIT_BEFORE_LOGIN_BYTES,
    FRAME_LIMIT_BYTES,
    META_DEPTH_MAX,
    META_MAX_BYTES,
    SERVER_FRAME_LIMIT_BYTES,
    TOKEN_MAX_BYTES,
    UID_MAX_BYTES,
    UIDS_MAX,
    VERSION,
    Code,
    Kind,
)
from presence.protocol.decoder import Decoder
from presence.protocol.errors import EncodeError, ProtocolError
from presence.protocol.packet import (
    NO_PAYLOAD,
    Packet,
    deliver,
    error,
    goodbye,
    keepalive,
    login,
    logout,
    message,
    ok,
    presence,
    query,
    unwatch,
    update,
    watch,
)
from presence.protocol.reactions import TABLE, ConnectionState, Other, Reaction, ServerAnswer
from presence.protocol.schema import check_payload

__all__ = [
    "DEPTH_MAX",
    "DEVICE_MAX_BYTES",
    "FRAME_LIMIT_BEFORE_LOGIN_BYTES",
    "FRAME_LIMIT_BYTES",
    "HEADER_BYTES",
    "KEEPALIVE",
    "KEEPALIVE_PACKET",
    "META_DEPTH_MAX",
    "META_MAX_BYTES",
    "NO_PAYLOAD",
    "SERVER_FRAME_LIMIT_BYTES",
    "TABLE",
    "TOKEN_MAX_BYTES",
    "UIDS_MAX",
    "UID_MAX_BYTES",
    "VERSION",
    "Code",
    "ConnectionState",
    "Decoder",
    "EncodeError",
    "Kind",
    "Other",
    "Packet",
    "ProtocolError",
    "Reaction",
    "ServerAnswer",
    "check_payload",
    "decode",
    "deliver",
    "encode",
    "error",
    "frame_end",
    "goodbye",
    "keepalive",
    "keepalive_answer",
    "login",
    "logout",
    "message",
    "ok",
    "presence",
    "query",
    "unwatch",
    "update",
    "watch",
]
