"""Clients over TLS, and without, in one thread: they log in one after the other, and beat together."""

import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress

import protocol
from loadtest.connection import source_addresses
from loadtest.links import plain_login
from loadtest.security.credentials import trusting_nobody
from protocol import Kind, ProtocolError

SOURCES = 8
TIMEOUT_S = 20.0
READ_BYTES = 4096
ASKING = protocol.encode(protocol.keepalive(9))


class Client:
    """One that is logged in.

    Args:
        address: the server's.
        uid: the user.
        source: the address to connect from.
        context: for TLS; None: without.

    Raises:
        OSError: it was not let in.
    """

    def __init__(
        self, address: tuple[str, int], uid: str, source: str | None, context: ssl.SSLContext | None
    ) -> None:
        sock = socket.socket()
        sock.settimeout(TIMEOUT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if source:
            sock.bind((source, 0))
        sock.connect(address)
        self._sock = sock if context is None else context.wrap_socket(sock)
        self._sock.sendall(plain_login(uid))
        if (packet := self._next()).kind != Kind.OK:
            raise ConnectionRefusedError(packet.payload["reason"])

    def beat(self) -> bool:
        """Send a keepalive; return whether the connection took it."""
        with suppress(OSError):
            self._sock.sendall(protocol.KEEPALIVE)
            return True
        return False

    def ask(self) -> None:
        """Send what the server is to answer."""
        with suppress(OSError):
            self._sock.sendall(ASKING)

    def is_answered(self) -> bool:
        """Whether the server answers what was asked."""
        with suppress(OSError, ProtocolError):
            return self._next().kind == Kind.OK
        return False

    def close(self) -> None:
        """Close, without a word of TLS."""
        self._sock.close()

    def _next(self) -> protocol.Packet:
        decoder = protocol.Decoder(protocol.SERVER_FRAME_LIMIT_BYTES)
        while (packet := decoder.next()) is None:
            if not (data := self._sock.recv(READ_BYTES)):
                raise ConnectionResetError("closed")
            decoder.feed(data)
        return packet


def clients(address: tuple[str, int], name: str, count: int, *, tls: bool) -> list[Client]:
    """Log so many in, one after the other."""
    context = trusting_nobody() if tls else None
    sources = source_addresses(address[0], SOURCES)
    return [Client(address, f"{name}-{number}", next(sources), context) for number in range(count)]


def unanswered(all_: Sequence[Client]) -> int:
    """Return how many are not answered; all ask at once, or the last would fall silent meanwhile."""
    for each in all_:
        each.ask()
    return sum(not each.is_answered() for each in all_)


def beat(all_: Sequence[Client], every_s: float, seconds: float) -> int:
    """Let all beat at that interval for so long, evenly; return how many beats were taken."""
    begun, taken, number = time.monotonic(), 0, 0
    while (due := begun + number * every_s / len(all_)) < begun + seconds:
        time.sleep(max(0.0, due - time.monotonic()))
        taken += all_[number % len(all_)].beat()
        number += 1
    return taken


def certificate(address: tuple[str, int]) -> bytes:
    """Return the certificate that a new connection is shown, DER."""
    sock = socket.create_connection(address, TIMEOUT_S)
    with trusting_nobody().wrap_socket(sock) as secured:  # which closes both
        return secured.getpeercert(binary_form=True) or b""


def hello() -> bytes:
    """Return what a client says first."""
    outgoing = ssl.MemoryBIO()
    client = trusting_nobody().wrap_bio(ssl.MemoryBIO(), outgoing)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()
