"""An open-loop load of keepalives: so many connections, so many packets a second, whatever the server does.

Runs as a process of its own, ``python -m loadtest.bench.generator HOST PORT DIALECT BURST_MS``, and takes
lines on standard input: ``connections N`` logs in until there are so many, ``beat KIND RATE SECONDS`` sends
keepalives over all of them in turn. Each is answered with one JSON object.

Each packet is sent when it is due, as devices that know nothing of each other would do: a server that waits
for events is then woken for nearly every one. With BURST_MS above 0 packets are sent together once in so
many milliseconds, which spares such a server wakes.
"""

import gc
import json
import os
import select
import socket
import sys
import time
from dataclasses import asdict, dataclass

from loadtest.bench.dialects import ANSWERED, DIALECTS, Dialect

SLEEP_LEAST_S = 2e-5  # with the kernel's own slack of 50 µs the generator wakes some 10,000 times a second
LOGINS_A_TURN = 100
LOGIN_TIMEOUT_S = 20.0
LAST_ANSWERS_S = 1.0  # time for the answers to the last beats, at most
LATE_S = 0.1  # a generator that stood still for longer has sent a burst and not its load
CORE_LIMIT = 0.7  # of a core: beyond, the generator and not the server would be measured
MISSED_LIMIT = 0.01  # of the packets, or of their answers


@dataclass(frozen=True)
class Report:
    """What one order to beat came to.

    Attributes:
        wanted: packets a second, as ordered.
        sent: packets.
        answers: packets that were answered; 0 when none asked for it.
        rate: packets a second, as sent.
        core_share: the generator's own processor time, of a core.
        late_max_s: how much later than due a packet was sent, at most.
    """

    wanted: float
    sent: int
    answers: int
    rate: float
    core_share: float
    late_max_s: float

    def complaints(self, kind: str) -> list[str]:
        """Return why this measured something else than the server; nothing if it did not."""
        found = []
        if self.core_share > CORE_LIMIT:
            found.append(f"the generator used {self.core_share:.0%} of a core")
        if self.late_max_s > LATE_S or self.rate < self.wanted * (1 - MISSED_LIMIT):
            found.append(f"the generator was late, by up to {self.late_max_s * 1000:.0f} ms")
        if kind == ANSWERED and self.answers < self.sent * (1 - MISSED_LIMIT):
            found.append(f"{self.sent - self.answers:,} keepalives stayed unanswered")
        return found


class Generator:
    """Connections that are logged in, and beats over them in turn.

    Args:
        address: where the server listens.
        dialect: what it speaks.
        burst_s: how long packets are held back, to be sent together.
    """

    def __init__(self, address: tuple[str, int], dialect: Dialect, burst_s: float = 0.0) -> None:
        self._address = address
        self._dialect = dialect
        self._pause_s = max(burst_s, SLEEP_LEAST_S)
        self._next = 0  # whose turn it is
        self._answers = 0
        self._epoll = select.epoll()
        self._sockets: list[socket.socket] = []

    def connect(self, connections: int) -> dict[str, float]:
        """Log in until there are so many connections."""
        for start in range(len(self._sockets), connections, LOGINS_A_TURN):
            self._log_in(range(start, min(start + LOGINS_A_TURN, connections)))
        return {"connections": len(self._sockets)}

    def _log_in(self, numbers: range) -> None:
        new = [log_in(self._address, self._dialect, f"user-{number}") for number in numbers]
        for sock in new:
            welcome(sock, self._dialect)
            sock.setblocking(False)
            self._epoll.register(sock.fileno(), select.EPOLLIN)
        self._sockets += new

    def beat(self, kind: str, rate: float, seconds: float) -> Report:
        """Send `rate` packets a second for some seconds, evenly over all connections."""
        write, frame = os.write, self._dialect.beats[kind]
        fds = [sock.fileno() for sock in self._sockets]
        first, asks = self._next, kind == ANSWERED
        self._answers = 0
        sent, total = 0, round(rate * seconds)
        late_max = 0.0
        cpu, begun = time.process_time(), time.monotonic()
        while sent < total:
            now = time.monotonic()
            due = min(total, int((now - begun) * rate) + 1)
            late_max = max(late_max, now - begun - sent / rate)
            for number in range(first + sent, first + due):
                write(fds[number % len(fds)], frame)
            sent = due
            if asks:
                self._read_answers()
            time.sleep(max(0.0, self._pause_s - (time.monotonic() - now)))
        elapsed, cpu = time.monotonic() - begun, time.process_time() - cpu
        last = time.monotonic() + LAST_ANSWERS_S
        while asks and self._answers < sent and time.monotonic() < last:
            time.sleep(0.01)
            self._read_answers()
        self._next = (first + sent) % len(fds)
        return Report(rate, sent, self._answers if asks else 0, sent / elapsed, cpu / elapsed, late_max)

    def close(self) -> None:
        """Close all connections."""
        self._epoll.close()
        for sock in self._sockets:
            sock.close()

    def _read_answers(self) -> None:
        answer = self._dialect.answer
        while events := self._epoll.poll(0, 1024):
            for fd, _ in events:
                data = os.read(fd, 4096)
                if not data:
                    raise SystemExit("the server has closed a connection")
                self._answers += data.count(answer)


def log_in(address: tuple[str, int], dialect: Dialect, uid: str) -> socket.socket:
    """Connect and send the login; `welcome` waits for its answer."""
    sock = socket.create_connection(address, timeout=LOGIN_TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(dialect.login(uid))
    return sock


def welcome(sock: socket.socket, dialect: Dialect) -> None:
    """Read until the login is answered.

    Raises:
        ConnectionRefusedError: it was refused, or the connection was closed.
    """
    data = b""
    while not dialect.welcome(data):
        more = sock.recv(4096)
        if not more:
            raise ConnectionRefusedError("closed before the login was answered")
        data += more


def main() -> None:
    """Obey lines until standard input ends."""
    host, port, dialect, burst_ms = sys.argv[1:5]
    generator = Generator((host, int(port)), DIALECTS[dialect], float(burst_ms) / 1000)
    for line in sys.stdin:
        match line.split():
            case ["connections", number]:
                report = generator.connect(int(number))
                gc.collect()
                gc.freeze()  # a collection would look at all of them, in the middle of a second's load
            case ["beat", kind, rate, seconds]:
                report = asdict(generator.beat(kind, float(rate), float(seconds)))
            case _:
                raise SystemExit(f"not understood: {line}")
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
