"""Bounds that every transport keeps, whatever it moves bytes over, and what it counts."""

from dataclasses import dataclass

from presence import protocol
from presence.core.admission import Refusal
from presence.protocol import Code

# A read that is not the usual keepalive. It completes any frame, and no more: what one read holds is
# answered in one go, and thousands of small requests would keep all others waiting.
READ_BYTES = protocol.HEADER_BYTES + protocol.FRAME_LIMIT_BYTES
GUEST_READ_BYTES = 2048  # completes any login; it is asked for at each accept
MAX_PACKET_BYTES = protocol.HEADER_BYTES + protocol.SERVER_FRAME_LIMIT_BYTES
MAX_DRAIN_BYTES = 65_536  # what a hung-up connection may still send before it is cut off
DRAIN_TIMEOUT_S = 1.0  # and for how long; a close with unread input would reset away the refusal
MIN_PROGRESS_BYTES = 16_384  # in 10 s a link of 13 kbit/s takes so much; an answer may be 16 times as long
MAX_CONNECTIONS_PER_TURN = 512  # connections served before everybody else has a turn: some milliseconds
MAX_LOGINS_PER_TURN = 128  # and so many where each may be a login, which costs ten times as much
# One read may hold thousands of small packets, some 10 us each. So what is longer than a few keepalives waits
# until all ready connections were read, and is handled in slices, with a turn for others after each
# `TURN_BUDGET_S`.
MAX_PACKETS_PER_SLICE = 32
TURN_BUDGET_S = 0.004
MAX_READS_PER_POLL = 24  # at most 16 KB of TLS each: enough for the longest packet in records of one byte
MAX_TIMEOUTS_PER_TURN = 16  # each as dear as a login; those of strangers come in crowds, and logins wait


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one transport.

    Attributes:
        login_timeout: seconds from the accept within which a login must be complete.
        unsent_bytes: most bytes that wait for a slow reader, beside one packet.
        unsent_timeout: seconds in which a slow reader has to take `MIN_PROGRESS_BYTES` of them, or all.
    """

    login_timeout: float = 5.0
    unsent_bytes: int = 65_536
    unsent_timeout: float = 10.0


@dataclass(slots=True)
class TransportStatistics:
    """Counters since the start, and how things stand; a transport leaves at 0 what it does not have.

    Attributes:
        connections: that are open.
        accepted, closed: connections.
        slow_readers: connections that were cut off since they did not take what was sent.
        login_timeouts: connections that were turned away because their time was up.
        failures: connections that ended over a mistake of this server.
        accept_errors: accepts that failed for lack of descriptors or memory.
        unsent_connections: for which something waits.
        batches: of connections that were read in one go.
        paces: connections by the set that watches them.
        tls_connections, handshakes_underway: now.
        handshakes, handshakes_failed, handshakes_refused: refused are those given up for new ones.
        proxied, proxy_headers_refused: headers that were good; connections that had no good one.
        awaiting_proxy_headers: connections whose header is not complete.
        addresses_kept: of clients, that the kernel could not say, or that are counted.
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


def told(refusal: Refusal) -> bytes:
    """Return what a connection is told that is not welcome."""
    return protocol.encode(protocol.error(None, refusal.code, refusal.message, refusal.retry_after))
