"""What a transport counts."""

from dataclasses import dataclass


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
