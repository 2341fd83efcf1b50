"""TLS handshakes, each advanced by a piece of what has arrived.

The number of handshakes under way is limited, because each holds memory. A handshake is under way from the
client's first byte, so silent clients take no place. Beyond the limit the oldest is dropped for the new one:
an honest handshake takes two round trips, so the oldest are stalled ones, and a flood locks no client out.

Tests: `tests/transports/test_tls.py`, `tests/transports/test_client_certificates.py`.
"""

from presence import protocol
from presence.protocol import Code
from presence.transports.connection_states import Connection
from presence.transports.connections import Connections
from presence.transports.tls import TlsListening
from presence.transports.tls_connection import NotTls, TlsConnectionState

MAX_HANDSHAKES_PER_TURN = 8  # some milliseconds, even with a large RSA key
_NOT_TLS = protocol.encode(protocol.error(None, Code.PROTOCOL_ERROR, "this port is for TLS"))


class Handshakes:
    """The handshakes of a transport.

    Args:
        connections: their state.
        tls: the certificate, and how many may be under way; None without TLS.
    """

    def __init__(self, connections: Connections, tls: TlsListening | None) -> None:
        self._connections = connections
        self._tls = tls

    def advance(self, connection: Connection) -> None:
        """Continue a handshake with what has arrived; when it is over, the login is awaited."""
        connections, tls = self._connections, connection.tls
        if tls is None:
            return
        try:
            if tls.fresh:
                self._begin(connection, tls)
            try:
                is_over = tls.handshake()
            finally:
                connections.send_output(connection)
        except BlockingIOError:
            return
        except NotTls as error:
            connections.failures.handshake_failed(error)
            connections.forget_tls(connection)  # so the refusal is sent unencrypted
            connections.close_gracefully(connection.fd, _NOT_TLS)
        except OSError as error:
            connections.failures.handshake_failed(error)
            if tls.fresh:
                connections.close(connection.fd)
            else:
                connections.close_gracefully(connection.fd, b"")  # after the alert that says what is wrong
        else:
            if is_over:
                del connections.handshaking[connection]
                connections.counters.handshakes += 1
                connections.counters.handshakes_resumed += tls.is_resumed
                connection.state = connection.next_guest_state

    def _begin(self, connection: Connection, tls: TlsConnectionState) -> None:
        """Begin a handshake; raises what `TlsConnectionState.begin` does."""
        if self._tls is None:
            raise NotTls
        tls.begin(self._tls.certificate)
        handshaking = self._connections.handshaking
        if len(handshaking) >= self._tls.handshakes:
            self._connections.counters.handshakes_refused += 1
            self._connections.close(next(iter(handshaking)).fd)
        handshaking[connection] = None
