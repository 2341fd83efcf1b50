"""A server that asks for tokens, and one that has a certificate."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import protocol
from loadtest.hostile.stage import READ_BYTES, Stage, drop, staged
from loadtest.nodes.serving import Serving
from loadtest.security.credentials import Issuer, write_certificate, write_keys
from protocol import Packet

# There is time to check all tokens: for cases that are about something else.
UNBOUNDED = ("--token-check-share", "1")


@dataclass(frozen=True)
class Guarded:
    """A stage whose server asks for tokens.

    Attributes:
        stage: where those who behave have tokens.
        issuers: of good ones.
        keys: the file of their keys.
    """

    stage: Stage
    issuers: Sequence[Issuer]
    keys: Path


@contextmanager
def guarded(*flags: str, algorithms: Sequence[str] = ("EdDSA",)) -> Iterator[Guarded]:
    """Run a server that asks for tokens, with a key of each algorithm, for the length of a ``with`` block."""
    with tempfile.TemporaryDirectory(prefix="security-") as folder:
        keys = Path(folder) / "keys.json"
        issuers = [Issuer.fresh(f"key-{alg.lower()}", alg) for alg in algorithms]
        write_keys(keys, issuers)
        with staged("--token-keys", str(keys), *flags, others_login=issuers[0].login) as stage:
            yield Guarded(stage, issuers, keys)


@dataclass(frozen=True)
class Secured:
    """A stage whose server serves TLS, too.

    Attributes:
        stage: where those who behave come without TLS.
        folder: where the certificate is.
        address: where TLS is served.
    """

    stage: Stage
    folder: Path
    address: tuple[str, int]


@contextmanager
def secured(*flags: str) -> Iterator[Secured]:
    """Run a server with a certificate, for the length of a ``with`` block."""
    with tempfile.TemporaryDirectory(prefix="security-") as name:
        folder = Path(name)
        cert, key = write_certificate(folder, "first")
        tls = ("--tls-cert", str(cert), "--tls-key", str(key), "--tls-port", "0")
        with staged(*tls, *flags) as stage:
            yield Secured(stage, folder, tls_address(stage.serving))


def answer(stage: Stage, frame: bytes) -> Packet:
    """Send a login on a connection of its own; return the first thing that the server says."""
    client = stage.connect()
    client.sendall(frame)
    decoder = protocol.Decoder(protocol.SERVER_FRAME_LIMIT_BYTES)
    while (packet := decoder.next()) is None:
        if not (data := client.recv(READ_BYTES)):
            raise SystemExit("the server closed a connection without a word")
        decoder.feed(data)
    drop(client)
    return packet


def tls_address(serving: Serving) -> tuple[str, int]:
    """Return where a server serves TLS, as it says."""
    line = serving.said("serving tls")[-1]
    return line["host"], line["port"]
