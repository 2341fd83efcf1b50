"""The server's TLS certificate, and its renewal while connections continue.

A context belongs to the connections that began with it: after a reload they keep theirs, and new connections
get the new one. So a reload affects no existing connection, and a failed reload affects none at all.

TLS 1.2 and 1.3, with forward secrecy, without compression and without renegotiation, which would let a client
make the server repeat the work of a handshake. One session ticket per TLS 1.3 connection: a client that
returns with it saves both sides the signature; the library's default of two serves browsers that open several
connections.

A context makes the keys of its tickets itself, at random, and neither gives nor takes them. A client may
return to another worker, after a reload, so all connections begin with one context, `ticket_context`, that is
made before workers are forked and outlives reloads. Each then gets the context of the certificate in use: the
library takes the certificate from this one, and ticket keys always from the first. Loading a new certificate
into one context would not do, because an old one of another key type would stay beside it.

Where clients have certificates there are no tickets and TLS 1.3 only, which has no other way to resume a
session: a resumed one is not verified again, although its certificate may have expired or been revoked since.

Tests: `tests/transports/test_tls_certificates.py`, `tests/transports/test_client_certificates.py`.
"""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from socket import socket
from typing import NamedTuple

from presence.common import files

TICKETS = 1
HANDSHAKES = 2000  # under way at the same time
_CRL = "-----BEGIN X509 CRL-----"


class CertificateError(ValueError):
    """A certificate or key cannot be used; the message names file and problem, and shows no key."""


@dataclass(frozen=True, slots=True)
class ClientVerification:
    """Which certificates of clients are accepted.

    Attributes:
        ca: PEM file with the authorities that sign them.
        crl: PEM file with a revocation list of each authority that signs them; None: none is revoked.
        required: whether a handshake without a certificate fails.
    """

    ca: Path
    crl: Path | None
    required: bool


class CertificateInfo(NamedTuple):
    """A context with the certificate, and when its certificate and its first revocation list expire."""

    context: ssl.SSLContext
    ends_at: datetime
    crl_ends_at: datetime | None  # None: never, or there is none


class Certificate:
    """A certificate with its key, from files.

    Args:
        cert: PEM file with the certificate, followed by its chain.
        key: PEM file with its private key; None if it is in `cert`.
        clients: which certificates of clients are accepted; None: none is requested.

    Raises:
        CertificateError: they cannot be used.

    Attributes:
        ticket_context: what a new connection begins with; its `context` is then set to the next attribute.
        context: has the certificate in use.
        ends_at: when the certificate expires.
        crl_ends_at: when the first revocation list expires, after which no certificate of its authority is
            accepted; None: never, or there is none.
    """

    def __init__(
        self, cert: Path, key: Path | None = None, clients: ClientVerification | None = None
    ) -> None:
        self._cert = cert
        self._key = key
        self._clients = clients
        self.use(self.read())

    def read(self) -> CertificateInfo:
        """Return what the files hold now, without using it. It may block as long as the disk does.

        Raises:
            CertificateError: they cannot be used.
        """
        key = self._key or self._cert
        ends_at = _end_of(_text(self._cert), self._cert)
        if "PRIVATE KEY-----" not in _text(key):
            raise CertificateError(f"{key}: holds no private key in PEM form")
        context = _context()
        _load_certificate(context, self._cert, key)
        crl_ends_at = None if self._clients is None else _verify_clients(context, self._clients)
        return CertificateInfo(context, ends_at, crl_ends_at)

    def use(self, shown: CertificateInfo) -> None:
        """Use this for new connections."""
        self.context, self.ends_at, self.crl_ends_at = shown
        self.ticket_context = ticket_context() if self._clients is None else self.context


@dataclass(frozen=True, slots=True)
class TlsListening:
    """Listeners for TLS, and how to serve them.

    Attributes:
        listeners: bound, listening sockets; owned by the transport from now on.
        certificate: the one used there.
        handshakes: most handshakes under way at the same time; beyond that, connections are closed.
    """

    listeners: Sequence[socket]
    certificate: Certificate
    handshakes: int = HANDSHAKES


def _text(path: Path) -> str:
    try:
        with files.open_regular_file(path) as file:
            return file.read().decode("utf-8", "replace")
    except OSError as error:
        raise CertificateError(f"{path}: {error.strerror}") from None


def _end_of(pem: str, path: Path) -> datetime:
    from cryptography import x509  # noqa: PLC0415 - takes a tenth of a second, which servers without TLS save

    try:
        return x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc
    except ValueError:
        is_pem = "-----BEGIN CERTIFICATE-----" in pem
        problem = "the certificate is incomplete or damaged" if is_pem else "holds no certificate in PEM form"
        raise CertificateError(f"{path}: {problem}") from None


@cache
def ticket_context() -> ssl.SSLContext:
    """Return the context whose keys encrypt all session tickets of this process and those forked from it."""
    return _context()


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # Frames carry their length, so a truncation without TLS's close notification hides nothing, and the
    # client still gets its answers. Older libraries behave so by default.
    context.options |= getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    context.num_tickets = TICKETS
    return context


def _load_certificate(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    asked = False

    def no_password() -> str:
        nonlocal asked
        asked = True
        return ""  # if not, the library would ask at the terminal

    try:
        context.load_cert_chain(cert, key, password=no_password)
    except (OSError, ValueError) as error:
        if asked:
            problem = "is encrypted with a password, which a server cannot ask for"
        elif getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            problem = f"is not the key of {cert}"
        else:
            problem = f"cannot be used with {cert}: {getattr(error, 'reason', None) or 'not readable as PEM'}"
        raise CertificateError(f"{key}: {problem}") from None


def _verify_clients(context: ssl.SSLContext, clients: ClientVerification) -> datetime | None:
    """Make a context verify certificates of clients; return when the first revocation list expires."""
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.verify_mode = ssl.CERT_REQUIRED if clients.required else ssl.CERT_OPTIONAL
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # to trust one authority below a root
    _load_trusted(context, clients.ca)
    trusted = context.cert_store_stats()
    if not trusted["x509_ca"] or trusted["x509"] != trusted["x509_ca"]:
        raise CertificateError(f"{clients.ca}: must hold certificates of authorities, and no others")
    if clients.crl is None:
        return None
    ends_at = _end_of_lists(_text(clients.crl), clients.crl)
    _load_trusted(context, clients.crl)
    if context.cert_store_stats()["x509"] != trusted["x509"]:
        raise CertificateError(f"{clients.crl}: must hold revocation lists only, and no certificate")
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return ends_at


def _load_trusted(context: ssl.SSLContext, path: Path) -> None:
    _text(path)  # names the problem of a file that cannot be read
    try:
        context.load_verify_locations(path)
    except OSError as error:
        problem = getattr(error, "reason", None) or "not readable as PEM"
        raise CertificateError(f"{path}: cannot be used to verify clients: {problem}") from None


def _end_of_lists(pem: str, path: Path) -> datetime | None:
    """Return when the first of the revocation lists expires."""
    from cryptography import x509  # noqa: PLC0415 - as above

    try:
        lists = [x509.load_pem_x509_crl((_CRL + each).encode()) for each in pem.split(_CRL)[1:]]
    except ValueError:
        lists = []
    if not lists:
        raise CertificateError(f"{path}: does not hold revocation lists in PEM form")
    return min((each.next_update_utc for each in lists if each.next_update_utc), default=None)
