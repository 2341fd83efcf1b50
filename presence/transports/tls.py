"""The certificate that this server shows, and its renewal while connections go on.

A context belongs to the connections that began with it: after a reload they keep theirs, and whoever comes
then gets the new one. So a reload touches nobody who is connected, and one that fails touches nobody at all.

TLS 1.2 and 1.3, with forward secrecy, without compression and without renegotiation, which would let a client
make the server do a handshake's work again and again. One ticket for each TLS 1.3 connection: the client
that comes back with it spares both sides the signature; the library's two serve browsers that open several.
"""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from socket import socket
from typing import NamedTuple

from presence.common import files

TICKETS = 1
HANDSHAKES = 2000  # at once


class CertificateError(ValueError):
    """A certificate or key cannot be used; the text names the file and the problem, and nothing of a key."""


class CertificateInfo(NamedTuple):
    """What new connections are shown, and until when clients take it."""

    context: ssl.SSLContext
    ends_at: datetime


class Certificate:
    """A certificate with its key, from files.

    Args:
        cert: PEM file with the certificate, and behind it those that lead to its issuer.
        key: PEM file with its private key; None: it is in `cert`, too.

    Raises:
        CertificateError: they cannot be used.

    Attributes:
        context: for connections that begin now.
        ends_at: until when clients take the certificate.
    """

    def __init__(self, cert: Path, key: Path | None = None) -> None:
        self._cert = cert
        self._key = key
        self.use(self.read())

    def read(self) -> CertificateInfo:
        """Return what is in the files now; nothing changes by it. It may block, and hang with the disk.

        Raises:
            CertificateError: they cannot be used.
        """
        key = self._key or self._cert
        ends_at = _end_of(_text(self._cert), self._cert)
        if "PRIVATE KEY-----" not in _text(key):
            raise CertificateError(f"{key}: holds no private key in PEM form")
        return CertificateInfo(_context(self._cert, key), ends_at)

    def use(self, shown: CertificateInfo) -> None:
        """Show this from now on."""
        self.context, self.ends_at = shown


@dataclass(frozen=True, slots=True)
class TlsListening:
    """Where TLS is served, and how.

    Attributes:
        listeners: bound, listening sockets; owned by the transport from now on.
        certificate: what is shown there.
        handshakes: most that are under way at once; beyond, connections are closed.
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
    from cryptography import x509  # noqa: PLC0415 - takes a tenth of a second, which plain servers spare

    try:
        return x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc
    except ValueError:
        raise CertificateError(f"{path}: does not begin with a certificate in PEM form") from None


def _context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # Frames say how long they are: a client that ends without TLS's goodbye can hide nothing by it, and still
    # gets its answers. Older libraries take it so by themselves.
    context.options |= getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    context.num_tickets = TICKETS
    asked = False

    def no_password() -> str:
        nonlocal asked
        asked = True
        return ""  # else the library would ask at the terminal

    try:
        context.load_cert_chain(cert, key, password=no_password)
    except (OSError, ValueError) as error:
        if asked:
            problem = "is locked with a password, and nobody is there to type it"
        elif getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            problem = f"is not the key of {cert}"
        else:
            problem = f"cannot be used with {cert}: {getattr(error, 'reason', None) or 'not readable as PEM'}"
        raise CertificateError(f"{key}: {problem}") from None
    return context
