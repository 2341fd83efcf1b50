"""What goes wrong with connections, counted and logged alike by all transports.

Tests: `tests/transports/test_limits.py`, `tests/transports/test_tls.py`.
"""

import ssl
from http import HTTPStatus

import structlog

from presence.common.logs import RateLimited
from presence.common.scarcity import fault_fields
from presence.core.authenticator import Refusal
from presence.core.engine import Engine
from presence.protocol import Code
from presence.transports.limits import encode_refusal
from presence.transports.transport_counters import TransportCounters


class ConnectionFailures:
    """Counts and logs what goes wrong with connections.

    Args:
        engine: counts the clients that are refused.
        counters: of the transport.
    """

    def __init__(self, engine: Engine, counters: TransportCounters) -> None:
        self._engine = engine
        self._counters = counters
        self._log = RateLimited(structlog.get_logger("presence.transport"))

    def accept_failed(self, error: OSError) -> None:
        self._counters.accept_errors += 1
        self._log.error("accept failed", error=error.strerror, accepted=self._counters.accepted)

    def refused(self, refusal: Refusal, address: str) -> bytes:
        """Return the packet that tells the client, which has this address."""
        self._engine.connection_refused(refusal.code, address)
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

    def upgrade_refused(self, status: HTTPStatus) -> None:
        """Count a request of WebSocket by the status of its answer."""
        refused, name = self._counters.upgrades_refused, str(int(status))
        refused[name] = refused.get(name, 0) + 1
        self._log.info("websocket request refused", status=int(status), refused=refused[name])

    def login_timed_out(self, address: str) -> None:
        self._counters.login_timeouts += 1
        self._engine.connection_refused(Code.LOGIN_TIMEOUT, address)

    def connection_failed(self, error: Exception) -> None:
        """Count a connection that an error in this server closes."""
        self._counters.failures += 1
        self._log.error("connection failed", failures=self._counters.failures, **fault_fields(error))
