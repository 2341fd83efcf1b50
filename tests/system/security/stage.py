"""A server, with clients beside it who behave: what a case does to it must not concern them."""

import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.outcome import failed_checks
from loadtest.redis_contents import Data
from loadtest.servers import PRESENCE, PresenceServer, Setup
from loadtest.stream_events import StreamEvent
from presence import protocol
from presence.loadtest.client_loop import ClientLoop, LoopClient, LoopThread, login_frame
from presence.loadtest.server_address import reset_on_close, source_addresses
from presence.protocol import Code, Kind, Packet
from tests.support.preloaded import PreloadedServer
from tests.system.security.credentials import Issuer, write_certificate, write_keys

BYSTANDERS = 50  # who behave
BYSTANDER_KEEPALIVE_S = 0.4
SOURCES = 8  # addresses to connect from: each brings 28,000 ports
TIMEOUT_S = 20.0  # for an answer that should come immediately; the machine may be busy
READ_BYTES = 65_536
_SOURCE = source_addresses("127.0.0.1", SOURCES)


class Resident(LoopClient):
    """Logs in once, sends keepalives, and stays as long as the server keeps it.

    Args:
        frame: of its login; b"": with nothing but the uid.

    Attributes:
        is_lost: whether the server has ended the connection.
    """

    def __init__(self, loop: ClientLoop, uid: str, frame: bytes = b"") -> None:
        super().__init__(loop, uid)
        self.reconnects = self.is_lost = False
        self.answers = 0
        self._frame = frame or login_frame(uid)

    def on_connected(self) -> None:
        self.send(self._frame)

    def on_packet(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        self.answers += kind == Kind.OK

    def on_disconnect(self, payload: Mapping[str, Any] | None, now: float) -> None:
        self.is_lost = True


class BlockingConnection:
    """A connection that waits for its answers."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address, TIMEOUT_S, (next(_SOURCE) or "", 0))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = protocol.Decoder(protocol.SERVER_FRAME_LIMIT_BYTES)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def ask(self, frame: bytes) -> Packet:
        """Send a frame and return the next packet."""
        self.send(frame)
        return self.answer()

    def answer(self) -> Packet:
        """Return the next packet; raises OSError if none comes."""
        if (packet := self._next()) is None:
            raise ConnectionResetError("the server closed the connection without a word")
        return packet

    def rest(self) -> list[Packet]:
        """Return all packets until the server ends the connection; raises OSError if it breaks."""
        packets = []
        while (packet := self._next()) is not None:
            packets.append(packet)
        return packets

    def ends_with(self, code: Code) -> bool:
        """Whether the server's last packet has that code, and could be read."""
        packets: list[Packet] = []
        with suppress(OSError):
            packets = self.rest()
        return bool(packets) and packets[-1].payload.get("code") == code

    def drop(self) -> None:
        """Close with a reset, so that the kernel keeps nothing of the connection."""
        reset_on_close(self.sock)
        self.sock.close()

    def _next(self) -> Packet | None:
        while (packet := self._decoder.next()) is None:
            if not (data := self.sock.recv(READ_BYTES)):
                return None
            self._decoder.feed(data)
        return packet


@dataclass(frozen=True)
class AttackedServer:
    """A server with its Redis, well-behaved clients beside the attack, and an issuer of good tokens."""

    server: PresenceServer
    data: Data
    bystanders: Sequence[Resident]
    issuer: Issuer

    @property
    def pid(self) -> int:
        return self.server.process.pid

    @property
    def tls_address(self) -> tuple[str, int]:
        line = self.server.logged("serving TLS")[-1]
        return line["host"], line["port"]

    def connect(self) -> BlockingConnection:
        return BlockingConnection(self.server.address)

    def events(self) -> list[StreamEvent]:
        return self.data.events(Setup().keys())

    def bystanders_hurt(self) -> list[str]:
        """Return what happened to the bystanders; nothing should."""
        lost = sum(each.is_lost for each in self.bystanders)
        uids = {each.uid for each in self.bystanders}
        offline = sum(event.uid in uids and event.type == "offline" for event in self.events())
        return failed_checks(
            (lost, f"{lost} of {BYSTANDERS} others lost their connection"),
            (offline, f"{offline} others told as offline"),
        )


@contextmanager
def attacked_server(
    *flags: str,
    tokens: bool = False,
    tls: bool = False,
    program: Sequence[str] = PRESENCE,
) -> Iterator[AttackedServer]:
    """Run a server for the length of a ``with`` block, with bystanders logged in.

    Args:
        flags: of `presence serve`.
        tokens: whether the server requires tokens.
        tls: whether it also serves TLS, on a port of its own.
        program: see `PresenceServer`.
    """
    with tempfile.TemporaryDirectory(prefix="security-") as name, Data() as data:
        folder = Path(name)
        issuer = Issuer()
        if tokens:
            write_keys(folder / "keys.json", issuer)
            flags = (*flags, "--token-keys", str(folder / "keys.json"))
        if tls:
            cert, key = write_certificate(folder)
            flags = (*flags, "--tls-cert", str(cert), "--tls-key", str(key), "--tls-port", "0")
        flags = ("--redis", data.url, "--disconnect-grace", "0", *flags)
        with PreloadedServer(*flags, program=program) as server:
            loop = ClientLoop(server.address, beat_s=BYSTANDER_KEEPALIVE_S)
            uids = [f"other-{number}" for number in range(BYSTANDERS)]
            others = [Resident(loop, uid, issuer.login(uid) if tokens else b"") for uid in uids]
            with LoopThread(loop) as thread:
                thread.connect_all(others, 1000.0, TIMEOUT_S)
                yield AttackedServer(server, data, others, issuer)
