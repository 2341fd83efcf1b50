"""A server with a Redis of its own and clients who behave; what is done to it must not concern them."""

import re
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import protocol
from loadtest.connection import source_addresses
from loadtest.events import Event
from loadtest.nodes.crowd import Crowd
from loadtest.nodes.records import Records
from loadtest.nodes.serving import Serving, Setup
from presence.embedded import embedded_redis
from presence.store.client import open_client
from protocol import Code, Packet

OTHERS = 50  # who behave
OTHERS_BEAT_S = 0.4
SOURCES = 8  # addresses to connect from: each brings 28,000 ports
TIMEOUT_S = 20.0  # for an answer that should come at once; the machine may be busy
READ_BYTES = 65_536
SOURCE = source_addresses("127.0.0.1", SOURCES)
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s


@dataclass(frozen=True)
class Stage:
    """What a case plays on.

    Attributes:
        serving: the server.
        url: its Redis.
        others: clients who behave.
        login_timeout, unsent_timeout: the server's, seconds.
    """

    serving: Serving
    url: str
    others: Crowd
    login_timeout: float
    unsent_timeout: float

    def connect(self, *, max_segment_bytes: int = 0, receive_bytes: int = 0) -> socket.socket:
        """Connect; the two sizes keep the kernels from holding much between client and server."""
        client = socket.socket()
        client.settimeout(TIMEOUT_S)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if max_segment_bytes:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, max_segment_bytes)
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.bind((next(SOURCE), 0))
        client.connect(self.serving.address)
        return client

    def rss_bytes(self) -> int:
        """Return the server's memory now."""
        return self._memory("VmRSS")

    def forget_peak(self) -> None:
        """Measure the peak of its memory from now on."""
        Path(f"/proc/{self.serving.process.pid}/clear_refs").write_text("5")

    def peak_bytes(self) -> int:
        """Return the most memory that it had since `forget_peak`."""
        return self._memory("VmHWM")

    def _memory(self, name: str) -> int:
        text = Path(f"/proc/{self.serving.process.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
        assert found, name
        return int(found[1]) * 1024

    def events(self) -> list[Event]:
        """Return all that stands in the stream."""
        with closing(open_client(self.url)) as client:
            return Records(lambda _key: client).events(Setup().keys())

    def others_hurt(self) -> list[str]:
        """Return what happened to those who behave; nothing should."""
        lost = len(self.others.diary.lost_since(0.0))
        uids = {self.others.uid(number) for number in range(OTHERS)}
        told = sum(event.uid in uids and event.type == "offline" for event in self.events())
        broken = [f"{lost} of {OTHERS} others lost their connection"] if lost else []
        return broken + ([f"{told} others told as offline"] if told else [])


def in_words(hurt: Sequence[str]) -> str:
    """Return what `Stage.others_hurt` found as a figure; it may be nothing."""
    return "; ".join(hurt) or f"of {OTHERS} others lost 0, told offline 0"


@contextmanager
def staged(
    *flags: str,
    login_timeout: float = 5.0,
    unsent_timeout: float = 10.0,
    program: Sequence[str] = ("-m", "presence"),
    others_login: Callable[[str], bytes] | None = None,
) -> Iterator[Stage]:
    """Run a server for the length of a ``with`` block, with those who behave logged in.

    Args:
        flags: of `presence serve`.
        login_timeout, unsent_timeout: seconds.
        program: what Python is given to run `presence`.
        others_login: makes the frame of a login of those who behave, see `Swarm`.
    """
    bounds = ("--login-timeout", str(login_timeout), "--unsent-timeout", str(unsent_timeout))
    with embedded_redis() as redis:
        serving = Serving(redis.url, *bounds, "--disconnect-grace", "0", *flags, program=program)
        try:
            with Crowd(
                [serving.address], "other", OTHERS, beat_s=OTHERS_BEAT_S, login=others_login
            ) as others:
                others.bring(range(OTHERS))
                if not others.wait_online(OTHERS, TIMEOUT_S):
                    raise SystemExit("those who behave could not log in")
                yield Stage(serving, redis.url, others, login_timeout, unsent_timeout)
        finally:
            serving.stop()


def login(uid: str, *, idle_timeout: float | None = None) -> bytes:
    """Return a login's frame."""
    return protocol.encode(protocol.login(uid, id=1, idle_timeout=idle_timeout))


def rest(client: socket.socket) -> list[Packet]:
    """Return what the server says until it ends the connection.

    Raises:
        OSError: the connection broke before that.
    """
    decoder = protocol.Decoder(protocol.SERVER_FRAME_LIMIT_BYTES)
    packets = []
    while data := client.recv(READ_BYTES):
        decoder.feed(data)
        while (packet := decoder.next()) is not None:
            packets.append(packet)
    return packets


def ends_with(client: socket.socket, code: Code) -> bool:
    """Whether the server's last word is that code, and it could be read."""
    try:
        packets = rest(client)
    except OSError:
        return False
    return bool(packets) and packets[-1].payload.get("code") == code


def drop(client: socket.socket) -> None:
    """Close with a reset: nothing is left in the kernel of a connection that is over."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    client.close()
