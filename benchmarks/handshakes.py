"""``python -m benchmarks.handshakes``: full and resumed TLS handshakes, with the server's own contexts.

Both sides run in this process, on memory buffers, each timed by itself. Prints their times, up to the first
byte of content, and the bytes that go to the client; medians. The certificate is signed by its authority, and
there is no intermediate one.

Tests: `tests/system/benchmarks/test_measures.py`.
"""

import argparse
import ssl
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import trustme

from loadtest.arguments import from_1
from loadtest.outcome import markdown
from presence.transports.tls import Certificate

HOST: Final = "localhost"
HEAD: Final = "handshake | server µs | client µs | bytes to the client"
KEYS: Final = {"RSA-2048": trustme.KeyType.RSA, "P-256": trustme.KeyType.ECDSA}
VERSIONS: Final = {"TLS 1.3": ssl.TLSVersion.TLSv1_3, "TLS 1.2": ssl.TLSVersion.TLSv1_2}


@dataclass
class Handshake:
    """One handshake, and the first byte of content behind it."""

    server_us: float = 0.0
    client_us: float = 0.0
    received_bytes: int = 0  # by the client
    is_resumed: bool = False
    session: ssl.SSLSession | None = None  # for the next one


def shake(certificate: Certificate, context: ssl.SSLContext, session: ssl.SSLSession | None) -> Handshake:
    """Let a client with this context, and a session of an earlier handshake, connect to the server."""
    done = Handshake()
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    begun = time.perf_counter()
    client_output = ssl.MemoryBIO()
    client = context.wrap_bio(to_client, client_output, server_hostname=HOST, session=session)
    done.client_us += time.perf_counter() - begun
    begun = time.perf_counter()
    server_output = ssl.MemoryBIO()
    server = certificate.ticket_context.wrap_bio(to_server, server_output, server_side=True)
    server.context = certificate.context
    content = b""
    while not content:
        done.server_us += time.perf_counter() - begun
        begun = time.perf_counter()
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
            content = client.read(1)
        to_server.write(client_output.read())
        done.client_us += time.perf_counter() - begun
        begun = time.perf_counter()
        with suppress(ssl.SSLWantReadError):
            server.do_handshake()
            server.write(b"x")
        done.received_bytes += server_output.pending
        to_client.write(server_output.read())
    done.server_us, done.client_us = done.server_us * 1e6, done.client_us * 1e6
    done.is_resumed, done.session = client.session_reused is True, client.session
    return done


def measured(key: trustme.KeyType, version: ssl.TLSVersion, number: int) -> dict[str, list[Handshake]]:
    """Make full and resumed handshakes in turns, so that what else the machine does affects both."""
    authority = trustme.CA(key_type=key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = version
    authority.configure_trust(context)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "server.pem"
        authority.issue_cert(HOST, key_type=key).private_key_and_cert_chain_pem.write_to_path(str(file))
        certificate = Certificate(file)
    found: dict[str, list[Handshake]] = {"full": [], "resumed": []}
    for _ in range(number):
        found["full"].append(shake(certificate, context, None))
        found["resumed"].append(shake(certificate, context, found["full"][-1].session))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.handshakes", description=__doc__)
    parser.add_argument("--number", type=from_1, default=1000, help="of each kind")
    arguments = parser.parse_args()
    rows, is_valid = [], True
    for version_name, version in VERSIONS.items():
        for key_name, key in KEYS.items():
            for kind, each in measured(key, version, arguments.number).items():
                is_valid &= all(one.is_resumed == (kind == "resumed") for one in each)
                figures = (
                    statistics.median(one.server_us for one in each),
                    statistics.median(one.client_us for one in each),
                    statistics.median(one.received_bytes for one in each),
                )
                rows.append([f"{version_name}, {key_name}, {kind}", *(f"{value:,.0f}" for value in figures)])
    print(markdown(HEAD, rows))
    return 0 if is_valid else 1


if __name__ == "__main__":
    sys.exit(main())
