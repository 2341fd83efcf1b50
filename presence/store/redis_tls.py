"""TLS to Redis, with a reason when it fails.

redis-py loads certificates for each connection, so renewed files are read again; a problem with them is an
`OSError` like any other. In TLS 1.3 a server checks the client's certificate after the handshake is over for
the client: the server sends the reason and closes, and the client's first write fails before it has read
that. So a PING is exchanged first, and the reason is read.
"""

import ssl
from typing import Any, Final

import redis

MAX_ANSWER_BYTES: Final = 4096  # of the first answer; errors of Redis take some hundred

# Options of the URL that name files.
_FILES: Final = {"ssl_ca_certs": "ca_certs", "ssl_certfile": "certfile", "ssl_keyfile": "keyfile"}
# Ends of a connection that have nothing to do with keys and certificates.
_CUT: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)


class TlsError(redis.ConnectionError):
    """No TLS with this server until an operator changes keys, certificates or the URL."""


class TlsConnection(redis.SSLConnection):
    """A connection of redis-py that raises `TlsError` if retrying cannot help."""

    def _connect(self) -> Any:
        sock: Any = super()._connect()  # type: ignore[no-untyped-call]  # redis-py's
        try:
            _exchange_ping(sock)
        except OSError as error:
            sock.close()
            raise self._named(error) from error
        return sock

    def _wrap_socket_with_ssl(self, sock: Any) -> Any:
        try:
            return super()._wrap_socket_with_ssl(sock)  # type: ignore[no-untyped-call]  # redis-py's
        except OSError as error:
            raise self._named(error) from error

    def _named(self, error: OSError) -> Exception:
        where = f"TLS with {self._host_error()}"  # type: ignore[no-untyped-call]  # redis-py's
        if isinstance(error, TimeoutError):
            return redis.TimeoutError(f"{where}: no answer in time; does it speak TLS at this port?")
        if isinstance(error, ssl.SSLCertVerificationError):
            return TlsError(f"{where}: its certificate is refused: {error.verify_message}")
        if isinstance(error, ssl.SSLError) and not isinstance(error, _CUT):
            reason = (error.reason or str(error)).lower().replace("_", " ")
            hint = "; it wants a client certificate that it trusts: ssl_certfile, ssl_keyfile"
            return TlsError(f"{where}: {reason}{hint if 'alert' in reason else ''}")
        if isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError)):
            paths = [f"{option}={path}" for option, name in _FILES.items() if (path := getattr(self, name))]
            return TlsError(f"{where}: {error.strerror}, of {', '.join(paths)}")
        return error


def _exchange_ping(sock: Any) -> None:
    """Exchange a PING; any answer will do, also a request for a password."""
    try:
        sock.sendall(b"PING\r\n")
    except (ssl.SSLEOFError, ConnectionError):
        sock.recv(1)  # raises the last alert of the server, if there was one
        raise
    answer = b""
    while not answer.endswith(b"\r\n") and len(answer) < MAX_ANSWER_BYTES:
        data = sock.recv(MAX_ANSWER_BYTES)
        if not data:
            raise ConnectionResetError("the connection was closed after the handshake")
        answer += data
