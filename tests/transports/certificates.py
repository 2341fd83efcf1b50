"""Certificates for tests: their own authority, files like an operator's, and client contexts."""

import ssl
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import trustme

from presence.transports.tls import Certificate

HOST = "localhost"


@cache
def authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@cache
def issued(number: int = 0) -> trustme.LeafCert:
    """Return a certificate of `localhost`; each number has its own."""
    return authority().issue_cert(HOST, common_name=f"{number}", key_type=trustme.KeyType.ECDSA)


def write(folder: Path, number: int = 0) -> tuple[Path, Path]:
    """Write a certificate and its key; return the two files."""
    cert, key = folder / "server.pem", folder / "server.key"
    cert.write_bytes(b"".join(blob.bytes() for blob in issued(number).cert_chain_pems))
    key.write_bytes(issued(number).private_key_pem.bytes())
    return cert, key


@cache
def loaded() -> Certificate:
    """Return a server's certificate whose files have been deleted."""
    with TemporaryDirectory() as folder:
        return Certificate(*write(Path(folder)))


@cache
def client_context() -> ssl.SSLContext:
    """Return the context of a client that trusts this authority only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority().configure_trust(context)
    return context


def client_hello() -> bytes:
    """Return a client's first message."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        client_context().wrap_bio(incoming, outgoing, server_hostname=HOST).do_handshake()
    return outgoing.read()
