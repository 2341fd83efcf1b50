"""Limits that all transports share, and what a refused client is sent."""

import re
from dataclasses import dataclass

from presence import protocol
from presence.core.authenticator import Refusal
from presence.core.registry import Guest
from presence.core.server_protocol import ReadOutcome
from presence.protocol import Code

# A read that is not a plain keepalive. It completes any frame, and no more: one read is answered in one step,
# and thousands of small requests would keep all other connections waiting.
READ_BYTES = protocol.HEADER_BYTES + protocol.FRAME_LIMIT_BYTES
MAX_GUEST_FRAMES = 64  # of WebSocket: a login in pieces, and pings
GUEST_READ_BYTES = 2048  # completes any login; every accepted connection is read with it
MAX_PACKET_BYTES = protocol.HEADER_BYTES + protocol.SERVER_FRAME_LIMIT_BYTES
# What a closing connection may still send, and for how long; closing with unread input would reset the
# connection and lose the refusal. A client that writes at full speed fills the buffers of both sockets.
MAX_DRAIN_BYTES = 262_144
DRAIN_TIMEOUT_S = 1.0
UNSENT_TIMEOUT_S = 10.0
MIN_PROGRESS_BYTES = 16_384  # a link of 13 kbit/s takes so much in it; an answer may be 16 times as long
MAX_CONNECTIONS_PER_TURN = 512  # some milliseconds
MAX_LOGINS_PER_TURN = 128  # of connections not logged in: a login costs ten times as much as a keepalive
# One read may hold thousands of small packets, some 10 us each. So a read longer than a few keepalives is
# deferred until all ready connections were read, and handled in slices, with a turn for other tasks after
# each `TURN_BUDGET_S`.
MAX_PACKETS_PER_SLICE = 32
TURN_BUDGET_S = 0.002
MAX_READS_PER_POLL = 24  # each at most 16 KB of TLS: enough for the longest packet in records of one byte
MAX_TIMEOUTS_PER_TURN = 16  # each costs as much as a login, and logins wait meanwhile

_HTTP = re.compile(rb"(GET|HEAD|POST|PUT|OPTIONS|CONNECT) ")  # as a length it is over the limit
_NOT_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n"
    b"This port speaks the presence protocol over TCP. WebSocket has a port of its own, ws_port.\n"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one transport.

    Attributes:
        login_timeout: seconds from the accept within which a login must be complete.
        unsent_bytes: most unsent bytes of a slow reader, not counting one packet.
        unsent_timeout: seconds within which a slow reader must take `MIN_PROGRESS_BYTES` of them, or all.
    """

    login_timeout: float = 5.0
    unsent_bytes: int = 65_536
    unsent_timeout: float = UNSENT_TIMEOUT_S


LOGIN_TIMED_OUT = protocol.encode(
    protocol.error(None, Code.LOGIN_TIMEOUT, "no complete login arrived within the time for it")
)


def too_many_connections(retry_after: float) -> Refusal:
    return Refusal(Code.BUSY, "this server takes no more connections at present", retry_after)


def encode_refusal(refusal: Refusal) -> bytes:
    return protocol.encode(protocol.error(None, refusal.code, refusal.message, refusal.retry_after))


def answer_http(outcome: ReadOutcome, data: bytes) -> None:
    """Let the answer to a first frame be one of HTTP if that is what the client speaks, as browsers do."""
    if outcome.end_code is Code.TOO_LARGE and isinstance(outcome.client, Guest) and _HTTP.match(data):
        outcome.reply = bytearray(_NOT_HTTP)
