"""What a transport counts, and how it counts and logs what goes wrong: the same for all transports.

Tests: `tests/transports/test_limits.py`, `tests/transports/test_tls.py`, `tests/admin/test_prometheus.py`.
"""

import ssl
from dataclasses import dataclass

import structlog

from presence.common.logs import RateLimited
from presence.common.scarcity import fault_fields
from presence.core.authenticator import Refusal
from presence.core.engine import Engine
from presence.protocol import Code
from presence.transports.limits import encode_refusal


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
        latency_classes: connections by latency class.
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
    latency_classes: tuple[int, ...] = ()
    tls_connections: int = 0
    handshakes_underway: int = 0
    handshakes: int = 0
    handshakes_failed: int = 0
    handshakes_refused: int = 0
    proxied: int = 0
    proxy_headers_refused: int = 0
    awaiting_proxy_headers: int = 0
    addresses_kept: int = 0


class Incidents:
    """Counts and logs what goes wrong with connections.

    Args:
        engine: counts the clients that are refused.
        counters: of the transport.
    """

    def __init__(self, engine: Engine, counters: TransportStatistics) -> None:
        self._engine = engine
        self._counters = counters
        self._log = RateLimited(structlog.get_logger("presence.transport"))

    def accept_failed(self, error: OSError) -> None:
        self._counters.accept_errors += 1
        self._log.error("accept failed", error=error.strerror, accepted=self._counters.accepted)

    def refused(self, refusal: Refusal) -> bytes:
        """Return the packet that tells the client."""
        self._engine.count_refusal(refusal.code)
        return encode_refusal(refusal)

    def header_refused(self, problem: str) -> None:
        """Count a proxy without a valid header."""
        self._counters.proxy_headers_refused += 1
        refused = self._counters.proxy_headers_refused
        self._log.warning("proxy header refused", problem=problem, refused=refused)

    def handshake_failed(self, cause: BaseException | None) -> None:
        """Count a failed TLS handshake; `cause`: the library's error, or that of the connection."""
        self._counters.handshakes_failed += 1
        if isinstance(cause, ssl.SSLCertVerificationError):
            self._log.info("client certificate refused", reason=cause.verify_message)

    def login_timed_out(self) -> None:
        self._counters.login_timeouts += 1
        self._engine.count_refusal(Code.LOGIN_TIMEOUT)

    def connection_failed(self, error: Exception) -> None:
        """Count a connection that an error in this server closes."""
        self._counters.failures += 1
        self._log.error("connection failed", failures=self._counters.failures, **fault_fields(error))
