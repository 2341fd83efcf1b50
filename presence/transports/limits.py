"""Bounds that every transport keeps, whatever it moves bytes over."""

from dataclasses import dataclass

import protocol
from protocol import Code

# A read that is not the usual keepalive. It completes any frame, and no more: what one read holds is
# answered in one go, and thousands of small requests would keep all others waiting.
READ_BYTES = protocol.HEADER_BYTES + protocol.FRAME_LIMIT_BYTES
DRAIN_BYTES = 65_536  # what a hung-up connection may still send before it is cut off
DRAIN_S = 1.0  # and for how long; a close with unread input would reset away the refusal
TURN_CONNECTIONS = 512  # connections served before everybody else has a turn: some milliseconds


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one transport.

    Attributes:
        login_timeout: seconds from the accept within which a login must be complete.
        unsent_bytes: most bytes that wait for a slow reader.
        unsent_timeout: seconds that any of them may wait.
        max_connections: connections at once; a further one is refused as busy.
    """

    login_timeout: float = 5.0
    unsent_bytes: int = 65_536
    unsent_timeout: float = 10.0
    max_connections: int = 10_000


LOGIN_TIMED_OUT = protocol.encode(
    protocol.error(None, Code.LOGIN_TIMEOUT, "no complete login arrived within the time for it")
)
SERVER_ERROR = protocol.encode(protocol.goodbye(Code.SERVER_ERROR))


def busy(retry_after_s: float) -> bytes:
    """Return the refusal of a connection beyond the limit."""
    return protocol.encode(
        protocol.error(None, Code.BUSY, "this server has no room for more connections", retry_after_s)
    )
