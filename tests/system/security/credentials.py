"""Issuers of tokens and the file of their keys; certificates and the files of these."""

import ssl
import time
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from presence import protocol
from presence.auth.token_signer import Signer, key_set, make_key, public_entry
from presence.loadtest.client_loop import LOGIN_ID

AUDIENCE = "presence"
HOST = IPv4Address("127.0.0.1")
TTL_S = 7200.0  # longer than any case
_DAY = timedelta(days=1)


class Issuer:
    """Signs tokens with a key of its own."""

    def __init__(self) -> None:
        self.entry = make_key("key", "EdDSA")
        self._signer = Signer(self.entry)

    def token(self, uid: str) -> str:
        return self._signer.token(uid, audience=AUDIENCE, now=time.time(), ttl_s=TTL_S)

    def login(self, uid: str) -> bytes:
        return login(uid, self.token(uid))


def login(uid: str | None, token: str | None = None, *, idle_timeout: float | None = None) -> bytes:
    """Return the frame of a login."""
    return protocol.encode(protocol.login(uid, id=LOGIN_ID, token=token, idle_timeout=idle_timeout))


def with_bad_signature(token: str) -> str:
    """Return a token whose signature is wrong in the middle, where every bit counts."""
    head, _, signature = token.rpartition(".")
    middle = len(signature) // 2
    other = "A" if signature[middle] != "A" else "B"
    return f"{head}.{signature[:middle]}{other}{signature[middle + 1 :]}"


def write_keys(path: Path, issuer: Issuer) -> None:
    """Write the server's file of token keys."""
    path.touch(mode=0o600)
    path.write_text(key_set([public_entry(issuer.entry)]))


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate for this machine, and its key; return both paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "load test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(HOST)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_path, key_path = folder / "server.pem", folder / "server.key"
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for path, content in ((key_path, secret), (cert_path, certificate.public_bytes(Encoding.PEM))):
        path.touch(mode=0o600)
        path.write_bytes(content)
    return cert_path, key_path


def unverified_context() -> ssl.SSLContext:
    """Return a client context that accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
