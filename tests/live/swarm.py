"""Many real clients in one thread, who know exactly when they sent what.

Open loop: a beat is sent when it is due, whatever the server does. The clients' own send times are the
truth that the server's events are compared with.
"""

import heapq
import random
import select
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import protocol
from protocol import Kind, Packet


@dataclass(eq=False)
class Client:
    """One connection and what it has seen.

    Attributes:
        sent_at: Unix seconds, taken right before the last complete frame was sent.
        asks: whether its beats ask for an answer.
        silent_from: monotonic time from which on it sends nothing more; None: it beats for ever.
        received: packets of the server, in order.
        closed: whether the server closed the connection.
        round_trips: seconds from each acknowledged keepalive to its answer.
    """

    uid: str
    sock: socket.socket
    asks: bool = False
    sent_at: float = 0.0
    silent_from: float | None = None
    received: list[Packet] = field(default_factory=list)
    closed: bool = False
    round_trips: list[float] = field(default_factory=list)
    waiting: dict[int, float] = field(default_factory=dict)
    decoder: protocol.Decoder = field(
        default_factory=lambda: protocol.Decoder(protocol.SERVER_FRAME_LIMIT_BYTES)
    )

    def send(self, frame: bytes) -> None:
        """Send a whole frame."""
        self.sent_at = time.time()
        try:
            self.sock.sendall(frame)
        except OSError:
            self.closed = True


class Swarm:
    """Clients that log in and beat.

    Args:
        address: the server's.
        beat_s: seconds between two beats of a client, give or take a tenth.
    """

    def __init__(self, address: tuple[str, int], *, beat_s: float, seed: int | None = None) -> None:
        self.address = address
        self.clients: list[Client] = []
        self.beats_sent = 0
        self._beat_s = beat_s
        self._random = random.Random(seed)
        self._epoll = select.epoll()
        self._by_fd: dict[int, Client] = {}
        self._due: list[tuple[float, int, Client]] = []
        self._sequence = 0

    def __enter__(self) -> "Swarm":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for client in self.clients:
            client.sock.close()
        self._epoll.close()

    def log_in(self, uids: Iterable[str], *, beating: bool = True, asks: bool = False) -> list[Client]:
        """Connect and log in one client for each uid; its first beat comes within a beat's time."""
        new = []
        for uid in uids:
            sock = socket.create_connection(self.address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client = Client(uid, sock, asks)
            client.send(protocol.encode(protocol.login(uid, id=1)))
            self._epoll.register(sock.fileno(), select.EPOLLIN)
            self._by_fd[sock.fileno()] = client
            self.clients.append(client)
            new.append(client)
            if beating:
                self._schedule(client, self._random.uniform(0, self._beat_s))
        return new

    def _schedule(self, client: Client, delay_s: float) -> None:
        self._sequence += 1
        heapq.heappush(self._due, (time.monotonic() + delay_s, self._sequence, client))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let the clients live for a while, or until a condition holds (checked after each wake-up)."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end and not until():
            self._send_due(now)
            next_due = self._due[0][0] if self._due else end
            wait = max(0.0, min(next_due, end) - time.monotonic())
            for fd, _ in self._epoll.poll(min(wait, 0.25)):
                self._receive(self._by_fd[fd])

    def _send_due(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            client = heapq.heappop(self._due)[2]
            if client.closed or (client.silent_from is not None and now >= client.silent_from):
                continue
            self.beats_sent += 1
            if client.asks:
                number = self.beats_sent + 1
                client.waiting[number] = time.monotonic()
                client.send(protocol.encode(protocol.keepalive(number)))
            else:
                client.send(protocol.KEEPALIVE)
            self._schedule(client, self._beat_s * self._random.uniform(0.9, 1.1))

    def _receive(self, client: Client) -> None:
        try:
            data = client.sock.recv(65536)
        except OSError:
            data = b""
        if not data:
            client.closed = True
            self._epoll.unregister(client.sock.fileno())
            return
        client.decoder.feed(data)
        while (packet := client.decoder.next()) is not None:
            client.received.append(packet)
            if packet.kind == Kind.OK and packet.id in client.waiting:
                assert packet.id is not None
                client.round_trips.append(time.monotonic() - client.waiting.pop(packet.id))

    def logged_in(self) -> bool:
        """Whether every client's login was answered with ok."""
        return all(client.received and client.received[0].kind == Kind.OK for client in self.clients)


def percentiles(values: list[float]) -> str:
    """Return min, median, 99th percentile and maximum of seconds, as text."""
    ranked = sorted(values)
    p50, p99 = ranked[len(ranked) // 2], ranked[min(len(ranked) - 1, len(ranked) * 99 // 100)]
    return f"min {ranked[0]:.3f} p50 {p50:.3f} p99 {p99:.3f} max {ranked[-1]:.3f} s"
