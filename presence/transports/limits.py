"""Limits and statistics that all transports share."""

from dataclasses import dataclass

from presence import protocol
from presence.core.authenticator import Refusal
from presence.protocol import Code

# A read that is not a plain keepalive. It completes any frame, and no more: one read is answered in one step,
# and thousands of small requests would keep all other connections waiting.
READ_BYTES = protocol.HEADER_BYTES + protocol.FRAME_LIMIT_BYTES
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


@dataclass(slots=True)
class TransportStatistics:
    """Counters since the start and gauges; a transport leaves those at 0 that it does not have.

    Attributes:
        connections: open connections.
        accepted, closed: connections.
        slow_readers: connections dropped because the client read too slowly.
        login_timeouts: connections closed because their login did not arrive in time.
        failures: connections closed because of an error in this server.
        accept_errors: accepts that failed for lack of descriptors or memory.
        unsent_connections: connections with unsent bytes.
        batches: of ready connections that were read.
        paces: connections by latency class.
        tls_connections, handshakes_underway: at present.
        handshakes, handshakes_failed, handshakes_refused: "refused" were dropped for newer ones.
        proxied, proxy_headers_refused: connections with a valid header, and without one.
        awaiting_proxy_headers: connections whose header is not complete.
        addresses_kept: client addresses that a proxy named or that are counted.
    """

    connections: int = 0
    accepted: int = 0
    closed: int = 0
    slow_readers: int = 0
    login_timeouts: int = 0
    failures: int = 0
    accept_errors: int = 0
    unsent_connections: int = 0
    batches: int = 0
    paces: tuple[int, ...] = ()
    tls_connections: int = 0
    handshakes_underway: int = 0
    handshakes: int = 0
    handshakes_failed: int = 0
    handshakes_refused: int = 0
    proxied: int = 0
    proxy_headers_refused: int = 0
    awaiting_proxy_headers: int = 0
    addresses_kept: int = 0


LOGIN_TIMED_OUT = protocol.encode(
    protocol.error(None, Code.LOGIN_TIMEOUT, "no complete login arrived within the time for it")
)
TOO_MANY_CONNECTIONS = "this server takes no more connections at present"


def encode_refusal(refusal: Refusal) -> bytes:
    return protocol.encode(protocol.error(None, refusal.code, refusal.message, refusal.retry_after))
