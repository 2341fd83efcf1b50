"""An open-loop load of keepalives: so many connections, so many packets a second, whatever the server does.

Runs as a process of its own, ``python -m loadtest.bench.generator HOST PORT answered|unanswered``, and
takes lines on standard input: ``connections N`` logs in until there are so many, ``beat RATE SECONDS``
sends keepalives. Each is answered with one JSON object: packets sent, answers read, its own share of a
core, how late it was.
"""

import json
import os
import select
import socket
import sys
import time

import protocol

SLICE_S = 0.001  # packets are sent evenly, in slices of a millisecond
LOGINS_A_TURN = 100


class Generator:
    """Connections that are logged in, and beats over them in turn."""

    def __init__(self, address: tuple[str, int], *, answered: bool) -> None:
        self._address = address
        self._frame = protocol.encode(protocol.keepalive(7)) if answered else protocol.KEEPALIVE
        self._answered = answered
        self._answers = 0
        self._epoll = select.epoll()
        self._sockets: list[socket.socket] = []

    def connect(self, connections: int) -> dict[str, float]:
        """Log in until there are so many connections."""
        for start in range(len(self._sockets), connections, LOGINS_A_TURN):
            self._log_in(range(start, min(start + LOGINS_A_TURN, connections)))
        return {"connections": len(self._sockets)}

    def _log_in(self, numbers: range) -> None:
        new = []
        for number in numbers:
            sock = socket.create_connection(self._address)
            sock.sendall(protocol.encode(protocol.login(f"user-{number}", id=1)))
            new.append(sock)
        for sock in new:
            answer = protocol.decode(sock.recv(4096)[4:])
            if answer.kind != protocol.Kind.OK:
                raise SystemExit(f"login refused: {answer}")
            sock.setblocking(False)
            if self._answered:
                self._epoll.register(sock.fileno(), select.EPOLLIN)
        self._sockets += new

    def beat(self, rate: float, seconds: float) -> dict[str, float]:
        """Send `rate` packets a second for some seconds, evenly over all connections."""
        write, frame = os.write, self._frame
        fds = [sock.fileno() for sock in self._sockets]
        sent = 0
        total = round(rate * seconds)
        late_max = 0.0
        cpu = time.process_time()
        begun = time.monotonic()
        while sent < total:
            now = time.monotonic()
            due = min(total, int((now - begun) * rate) + 1)
            if due - sent > rate * 0.05:
                late_max = max(late_max, (due - sent) / rate)
            for number in range(sent, due):
                write(fds[number % len(fds)], frame)
            sent = due
            self._read_answers()
            time.sleep(max(0.0, SLICE_S - (time.monotonic() - now)))
        elapsed = time.monotonic() - begun
        time.sleep(0.1)
        self._read_answers()
        return {
            "sent": sent,
            "answers": self._answers,
            "rate": sent / elapsed,
            "core_share": (time.process_time() - cpu) / elapsed,
            "late_max_s": late_max,
        }

    def _read_answers(self) -> None:
        if self._answered:
            while events := self._epoll.poll(0, 1024):
                for fd, _ in events:
                    self._answers += len(os.read(fd, 4096)) // 6


def main() -> None:
    """Obey lines until standard input ends."""
    host, port, kind = sys.argv[1:4]
    generator = Generator((host, int(port)), answered=kind == "answered")
    for line in sys.stdin:
        match line.split():
            case ["connections", number]:
                report = generator.connect(int(number))
            case ["beat", rate, seconds]:
                report = generator.beat(float(rate), float(seconds))
            case _:
                raise SystemExit(f"not understood: {line}")
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
