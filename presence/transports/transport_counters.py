"""What a transport counts: the same for all transports.

Tests: `tests/transports/test_limits.py`, `tests/transports/test_tls.py`, `tests/admin/test_prometheus.py`.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class TransportCounters:
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
        latency_classes: connections by latency class.
        tls_connections, handshakes_underway: at present.
        websocket_connections: at present, also those whose request is not answered.
        upgrades: accepted requests of WebSocket.
        upgrades_refused: others, by the status of the answer, as text.
        handshakes, handshakes_failed, handshakes_refused: "refused" were dropped for newer ones.
        handshakes_resumed: those of `handshakes` that began with a session ticket.
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
    latency_classes: tuple[int, ...] = ()
    tls_connections: int = 0
    handshakes_underway: int = 0
    handshakes: int = 0
    handshakes_resumed: int = 0
    handshakes_failed: int = 0
    handshakes_refused: int = 0
    proxied: int = 0
    proxy_headers_refused: int = 0
    awaiting_proxy_headers: int = 0
    addresses_kept: int = 0
    websocket_connections: int = 0
    upgrades: int = 0
    upgrades_refused: dict[str, int] = field(default_factory=dict)
