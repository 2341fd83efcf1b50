"""What the epoll transport knows of a connection: what is pending, its state, and its latency class.

An idle connection is a session and two bytes: its latency class, and how many keepalives in a row the next
slower class would have served as well; and its client's address, if a proxy has named it or it is counted.
Replies are kept until the batch has been read; only the answer to a lone keepalive is sent immediately, when
nothing can be queued before it. Everything else is in an object (`Connection`). There is one until the login,
and again while anything is pending: unsent bytes, packets left for another turn, the close. A connection with
a layer, TLS or WebSocket, keeps it.

A descriptor is reused as soon as it is closed. So it names a connection only where the kernel or the core has
just said so. Queues and deadlines hold the `Connection`, and a closed one says that it is.

The states of a connection. A guest skips those that it does not need (see `guests.py`); the other transitions
are methods of `Connections`:

    accept -> (HEADER ->) (HANDSHAKE ->) (UPGRADE ->) LOGIN -> LOGGED_IN

    begin_close   any of these -> CLOSE_QUEUED   input is ignored; replies and close packet are kept
    send_close    CLOSE_QUEUED -> FLUSHING       they are written, behind what is unsent
    _half_close   FLUSHING     -> HALF_CLOSED    the sending side is shut; input is read and dropped
    close         any          -> CLOSED         at the end of input; if the unsent bytes are too many, or are
                                                 taken too slowly; after `MAX_DRAIN_BYTES`, `DRAIN_TIMEOUT_S`

What the kernel and the clock report, by state:

                  readable            writable (while bytes are unsent)     deadline
    HEADER        Guests.advance                                            Guests.timed_out
    HANDSHAKE     Guests.advance      flush                                 Guests.timed_out
    UPGRADE       Guests.advance      flush                                 Guests.timed_out
    LOGIN         read                flush                                 Guests.timed_out
    LOGGED_IN     read                flush; at the end Engine.all_sent     unsent_timed_out
    CLOSE_QUEUED  send_close, drain   flush; at the end send_close          close
    FLUSHING      drain               flush; at the end _half_close         close
    HALF_CLOSED   drain                                                     close

Each connection is watched by one epoll set, that of its *latency class*. What the client sends moves it.
`DEMOTE_AFTER_KEEPALIVES` keepalives in a row move it to the next slower class, which would have served them
too:

    accept -> (AWAITING_HEADER ->) (HANDSHAKING ->) (AWAITING_HEADER ->) IMMEDIATE -> login -> BATCHED
    anything but a keepalive:            any class -> IMMEDIATE
    a keepalive that wants an answer:    BATCHED   -> SHORT
    keepalives in a row:                 IMMEDIATE -> SHORT
    the same, none wants an answer:      SHORT     -> BATCHED

Tests: `tests/transports/test_connections.py`, `tests/transports/test_epoll_transport.py`.
"""

from enum import Enum, IntEnum

from presence.transports.tls_connection import TlsConnectionState
from presence.transports.websocket_connection import WebSocketConnectionState

# About two minutes; a client that wants every third keepalive answered keeps its class.
DEMOTE_AFTER_KEEPALIVES = 12


class LatencyClass(IntEnum):
    """Which epoll set watches a connection; the head of this file has the transitions."""

    IMMEDIATE = 0  # not logged in, or has recently sent more than keepalives: served without a pause
    SHORT = 1  # keepalives that want an answer: gathered for a few milliseconds
    BATCHED = 2  # keepalives without an answer: gathered for longer
    AWAITING_HEADER = 3  # of a proxy, or of WebSocket: see `guests.py`
    HANDSHAKING = 4  # TLS: see `guests.py`
    UNWATCHED = 5  # none

    @property
    def slower(self) -> "LatencyClass":
        """The next slower of the served classes."""
        return LatencyClass.SHORT if self is LatencyClass.IMMEDIATE else LatencyClass.BATCHED


# The members by themselves, here and below: CPython 3.11 takes 0.3 us to find one in its class.
IMMEDIATE, SHORT, BATCHED, AWAITING_HEADER, HANDSHAKING, UNWATCHED = LatencyClass
SERVED_CLASSES = (IMMEDIATE, SHORT, BATCHED)
WATCHING_CLASSES = (*SERVED_CLASSES, AWAITING_HEADER, HANDSHAKING)


class TransportState(Enum):
    """How far a connection is; the head of this file has the transitions."""

    HEADER = "a proxy's header is awaited"
    HANDSHAKE = "the TLS handshake is not over"
    UPGRADE = "the request of WebSocket is not answered"
    LOGIN = "the login is awaited"
    LOGGED_IN = "its client is a session"
    CLOSE_QUEUED = "the close packet is not sent yet"
    FLUSHING = "the close packet is sent, or among the unsent bytes"
    HALF_CLOSED = "the sending side is shut"
    CLOSED = "the descriptor is closed, and may be another connection's"


HEADER, HANDSHAKE, UPGRADE, LOGIN, LOGGED_IN, CLOSE_QUEUED, FLUSHING, HALF_CLOSED, CLOSED = TransportState
_GUEST_STATES = (LOGIN, UPGRADE, HANDSHAKE, HEADER)


class Connection:
    """What is pending on a connection, and the layers between its packets and TCP, if it has any."""

    __slots__ = (
        "close_packet",
        "drained_bytes",
        "fd",
        "header",
        "is_deferred",
        "largest_packet",
        "progress_bytes",
        "state",
        "tls",
        "unsent",
        "websocket",
    )

    def __init__(self, fd: int, state: TransportState = LOGGED_IN) -> None:
        self.fd = fd  # its descriptor, unless it is closed
        self.state = state
        self.tls: TlsConnectionState | None = None  # from the accept on, if it is a TLS connection
        self.websocket: WebSocketConnectionState | None = None  # the same; above `tls`, if there are both
        self.header: bytearray | None = None  # the received part of a proxy's header
        self.is_deferred = False  # whether the reader has packets of it left for another turn
        self.unsent: bytearray | None = None  # bytes waiting for a slow reader
        self.largest_packet = 0  # bytes among them that make no slow reader, because they are one packet
        self.progress_bytes = 0  # that a slow reader has taken since its deadline was set
        self.close_packet: bytes | bytearray = b""  # the last bytes to send
        self.drained_bytes = 0  # read and dropped since the close began

    @property
    def is_guest(self) -> bool:
        return self.state in _GUEST_STATES

    @property
    def is_closed(self) -> bool:
        return self.state is CLOSED

    @property
    def layer(self) -> TlsConnectionState | WebSocketConnectionState | None:
        """What turns its bytes into frames and back; None if they are frames."""
        return self.websocket or self.tls

    @property
    def next_guest_state(self) -> TransportState:
        """What is awaited next of a guest whose proxy, if any, has named it, and whose request is open."""
        if self.tls is not None and not self.tls.ready:
            return HANDSHAKE
        return LOGIN if self.websocket is None else UPGRADE

    @property
    def can_send(self) -> bool:
        """Whether packets can be sent: over TLS, whether the handshake is over."""
        return self.tls is None or self.tls.ready

    @property
    def is_idle(self) -> bool:
        """Whether it says no more than that there is a session."""
        return self.state is LOGGED_IN and self.unsent is None and not self.is_deferred and self.layer is None
