"""One client that sends packets as fast as it can: how much slower are the answers to others on its worker?

Runs alternate: the flooder is at the server of those who ask, or at another one on the same machine, so that
what it Who is cut off for it comes back at once, whatever he was told.
"""

import select
import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import protocol
from loadtest.clients import Clients
from loadtest.connection import source_addresses
from loadtest.links import plain_login
from loadtest.nodes.outcome import Outcome, say
from loadtest.nodes.serving import Serving, running
from loadtest.security.apart import processes
from loadtest.security.samples import Ratios, Spread
from loadtest.swarm import Swarm
from presence.embedded import embedded_redis
from protocol import Code, Packet

KINDS = {
    "keepalives": protocol.KEEPALIVE,
    "questions": protocol.encode(protocol.keepalive(7)),
    "unknown packets": protocol.encode(Packet(9, 7)),
    "queries": protocol.encode(protocol.query([f"user-{number}" for number in range(50)], id=7)),
}
"""What floods consist of: the frame that is repeated."""
AT_ONCE_BYTES = 16_384
READ_BYTES = 262_144
TAIL_BYTES = 1024  # of what came: a goodbye is the last
TIMEOUT_S = 20.0
LEAD_S = 0.5
P99_MAX_S = 0.25  # no promise names a factor; an answer that takes longer than this is no answer in time
FLAGS = ("--disconnect-grace", "0", "--login-burst", "100000", "--uid-login-rate", "0")


@dataclass(frozen=True)
class Sizes:
    """How much is done: clients who ask, how often each, seconds of a run, pairs of runs for each flood."""

    clients: int = 50
    every_s: float = 0.1
    seconds: float = 6.0
    pairs: int = 5


class Flooded(NamedTuple):
    """What a flooder achieved: packets that left him, and how often he was cut off with 311."""

    packets: int
    cut_off: int
    otherwise: int


def flooding(address: tuple[str, int], kind: str, begin: float, seconds: float) -> Flooded:
    """Send as much as the connection takes, and read all answers; log in anew when it ends."""
    frame = KINDS[kind]
    piece = frame * max(1, AT_ONCE_BYTES // len(frame))
    sent = cut_off = otherwise = 0
    time.sleep(max(0.0, begin - time.monotonic()))
    while time.monotonic() < begin + seconds:
        with socket.create_connection(address, TIMEOUT_S) as sock:
            flood = _Flood(sock, piece)
            if flood.run(begin + seconds):
                cut_off += flood.is_told
                otherwise += not flood.is_told
        sent += flood.sent
    return Flooded(sent // len(frame), cut_off, otherwise)


class _Flood:
    """One connection's flood.

    Attributes:
        sent: bytes that left.
        is_told: whether the server has said that this is too much.
    """

    def __init__(self, sock: socket.socket, piece: bytes) -> None:
        self._sock = sock
        self._piece = self._left = piece
        self._tail = b""
        self.sent = 0
        self.is_told = False
        sock.sendall(plain_login("flooder"))
        sock.setblocking(False)

    def run(self, until: float) -> bool:
        """Flood for so long; return whether the server ended it before."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN | select.POLLOUT)
        while time.monotonic() < until:
            for _, events in poll.poll(50):
                try:
                    if events & ~select.POLLOUT and not self._hear():
                        return True
                    if events & select.POLLOUT and not self.is_told:
                        self._say()
                except BlockingIOError:
                    continue
                except ConnectionError:
                    return True
        return False

    def _hear(self) -> bool:
        data = self._sock.recv(READ_BYTES)
        # Nothing is decoded: thousands of answers would keep the flooder from flooding.
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        self.is_told = self.is_told or Code.RATE_LIMITED.reason.encode() in self._tail
        return bool(data)

    def _say(self) -> None:
        size = self._sock.send(self._left)
        self.sent += size
        self._left = self._left[size:] or self._piece


def asking(address: tuple[str, int], sizes: Sizes, name: str, begin: float) -> list[float]:
    """Let clients ask, each at its own moments; return the seconds from sending to the answer."""
    swarm = Swarm(address, Clients(name, sizes.clients), asking=1, sources=source_addresses(address[0], 4))
    poll = select.epoll()
    poll.register(swarm.fileno(), select.EPOLLIN)
    swarm.bring(range(sizes.clients), time.monotonic())
    swarm.beat(sizes.every_s, time.monotonic())
    counted = 0
    while (now := time.monotonic()) < begin + sizes.seconds:
        if now < begin:
            counted = len(swarm.counts.answer_s)
        due = swarm.step(now)
        poll.poll(min(0.05, max(0.0, due - time.monotonic())))
    times = list(swarm.counts.answer_s[counted:])
    if lost := swarm.counts.lost.total():
        raise SystemExit(f"{lost} of those who ask lost their connection")
    swarm.close()
    return times


@dataclass
class Found:
    """What was seen of one kind of flood: times of answers, beside the flooder and with him elsewhere."""

    beside: list[list[float]] = field(default_factory=list)
    elsewhere: list[list[float]] = field(default_factory=list)
    floods: list[Flooded] = field(default_factory=list)

    def ratios(self) -> Ratios:
        """Return how many times as long the median answer takes, by pairs."""
        pairs = zip(self.beside, self.elsewhere, strict=True)
        return Ratios.of(Spread.of(one).p50 / Spread.of(other).p50 for one, other in pairs)


@contextmanager
def _servers() -> Iterator[tuple[list[Serving], ProcessPoolExecutor]]:
    with embedded_redis() as one, embedded_redis() as other, processes(2) as pool:
        starts = [lambda url=redis.url: Serving(url, *FLAGS) for redis in (one, other)]
        with running(starts) as servers:
            yield servers, pool


def flooders(sizes: Sizes) -> Outcome:
    """Play all kinds."""
    found = {kind: Found() for kind in KINDS}
    with _servers() as (servers, pool):
        here, there = (server.address for server in servers)
        for kind, seen in found.items():
            for pair in range(sizes.pairs):
                for is_here in (True, False) if pair % 2 else (False, True):
                    begin = time.monotonic() + LEAD_S
                    name = f"asks-{kind[:3]}{pair}{is_here}"
                    times = pool.submit(asking, here, sizes, name, begin)
                    flood = pool.submit(flooding, here if is_here else there, kind, begin, sizes.seconds)
                    (seen.beside if is_here else seen.elsewhere).append(times.result())
                    seen.floods += [flood.result()] if is_here else []
            say(_row(kind, seen, sizes))
    return judge(found, sizes)


def _row(kind: str, seen: Found, sizes: Sizes) -> str:
    beside, elsewhere = (Spread.of([*chain(*runs)]) for runs in (seen.beside, seen.elsewhere))
    rate = sum(flood.packets for flood in seen.floods) / (sizes.seconds * len(seen.floods))
    cut_off = sum(flood.cut_off for flood in seen.floods) / (sizes.seconds * len(seen.floods))
    return (
        f"{kind}, {rate:,.0f} a second, cut off {cut_off:.1f} times a second: answers {beside.ms()}, "
        f"flooder elsewhere {elsewhere.ms()}, median by pairs {seen.ratios()}"
    )


def judge(found: Mapping[str, Found], sizes: Sizes) -> Outcome:
    """Nobody is to wait long, and whoever floods is cut off and told why."""
    broken = []
    for kind, seen in found.items():
        p99 = Spread.of([*chain(*seen.beside)]).p99
        if not p99 <= P99_MAX_S:
            broken.append(
                f"{kind}: p99 of others' answers {p99 * 1000:.0f} ms, {P99_MAX_S * 1000:.0f} allowed"
            )
        if otherwise := sum(flood.otherwise for flood in seen.floods):
            broken.append(f"{kind}: {otherwise} flooders were cut off without a word")
    told = "; ".join(_row(kind, seen, sizes) for kind, seen in found.items())
    packets = sum(flood.packets for seen in found.values() for flood in seen.floods)
    return Outcome("flooders", f"{packets:,} packets of one client" if packets else "", told, broken)
