"""TLS to Redis, with a reason when there is none.

redis-py loads certificates and shakes hands for each connection, so files that were renewed are read anew;
what goes wrong then is an `OSError` among others. And in TLS 1.3 a server looks at the client's certificate
when the handshake is over for the client: it says why it hangs up, and what the client is about to write
fails before it has read that. So here a word is exchanged first, and the reason is read.
"""

import ssl
from typing import Any, Final

import redis

MAX_ANSWER_BYTES: Final = 4096  # of the first word; Redis' own errors take some hundred

# Options of the URL that name files.
_FILES: Final = {"ssl_ca_certs": "ca_certs", "ssl_certfile": "certfile", "ssl_keyfile": "keyfile"}
# Ends of a connection that say nothing of keys and certificates.
_CUT: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)


class TlsError(redis.ConnectionError):
    """There is no TLS with this server until an operator has changed keys, certificates or the URL."""


class TlsConnection(redis.SSLConnection):
    """A connection of redis-py that raises `TlsError` where waiting cures nothing."""

    def _connect(self) -> Any:
        sock: Any = super()._connect()  # type: ignore[no-untyped-call]  # redis-py's
        try:
            _exchange_a_word(sock)
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


def _exchange_a_word(sock: Any) -> None:
    """Wait for any answer: one that asks for a password will do."""
    try:
        sock.sendall(b"PING\r\n")
    except (ssl.SSLEOFError, ConnectionError):
        sock.recv(1)  # raises what the server said last, if it said anything
        raise
    answer = b""
    while not answer.endswith(b"\r\n") and len(answer) < MAX_ANSWER_BYTES:
        data = sock.recv(MAX_ANSWER_BYTES)
        if not data:
            raise ConnectionResetError("the connection was closed after the handshake")
        answer += data
