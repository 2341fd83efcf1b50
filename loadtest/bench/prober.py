"""Round trips while a server is under load, seen by a light process of its own.

``python -m loadtest.bench.prober HOST PORT SETTLE_S SECONDS`` opens some connections beside the load and
prints one JSON object: for each kind of probe the round trips, in ms. A probe is sent when it is due,
whatever became of the last one, and its time counts from when it was due.
"""

import gc
import heapq
import json
import select
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from loadtest.bench.dialects import ANSWERED, PRESENCE, UNANSWERED
from loadtest.bench.generator import log_in, welcome

PROBES_A_SECOND = 20  # of each kind
ALWAYS = "acknowledged, always"  # from connections whose every keepalive asks for an answer
SELDOM = "acknowledged, after plain ones"  # from connections of whose keepalives few do
LOGIN = "login"  # connect, log in, be told ok
KINDS = (ALWAYS, SELDOM, LOGIN)
ALWAYS_CONNECTIONS = 10
SELDOM_CONNECTIONS = 60
PLAIN_EVERY_S = 0.4  # a connection of the second kind asks every 3 s: after some seven plain keepalives
LAST_ANSWERS_S = 2.0


@dataclass(order=True)
class Due:
    """Something to be done at a time."""

    at: float
    number: int
    every_s: float = field(compare=False)
    act: Callable[[float], None] = field(compare=False)


class Prober:
    """Sends probes when they are due and notes when the answers come."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._epoll = select.epoll()
        self._waiting: dict[int, tuple[str, float]] = {}
        self._open: dict[int, socket.socket] = {}
        self._logins = count()
        self._always = self._connect("always", ALWAYS_CONNECTIONS)
        self._seldom = self._connect("seldom", SELDOM_CONNECTIONS)
        self._turn: dict[str, int] = {ALWAYS: 0, SELDOM: 0}
        self.trips_ms: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self.unanswered = 0

    def _connect(self, name: str, number: int) -> list[socket.socket]:
        pool = [log_in(self._address, PRESENCE, f"probe-{name}-{n}") for n in range(number)]
        for sock in pool:
            welcome(sock, PRESENCE)
            sock.setblocking(False)
            self._epoll.register(sock.fileno(), select.EPOLLIN)
            self._open[sock.fileno()] = sock
        return pool

    def run(self, settle_s: float, seconds: float) -> None:
        """Probe for so long; what was due in the first `settle_s` seconds is not counted."""
        begun = time.monotonic()
        end = begun + settle_s + seconds
        each = 1 / PROBES_A_SECOND
        plain = PLAIN_EVERY_S / SELDOM_CONNECTIONS
        todo = [
            Due(begun, 0, each, lambda at: self._ask(ALWAYS, self._always, at)),
            Due(begun + each / 3, 1, each, lambda at: self._ask(SELDOM, self._seldom, at)),
            Due(begun + each * 2 / 3, 2, each, self._log_in),
            Due(begun + 0.002, 3, plain, lambda at: self._beat(round((at - begun) / plain))),
        ]
        counted_from = begun + settle_s
        while todo[0].at < end:
            now = time.monotonic()
            if todo[0].at <= now:
                due = todo[0]
                due.act(due.at)
                heapq.heapreplace(todo, Due(due.at + due.every_s, due.number, due.every_s, due.act))
            else:
                self._read(todo[0].at - now, counted_from)
        last = time.monotonic() + LAST_ANSWERS_S
        while self._waiting and (left := last - time.monotonic()) > 0:
            self._read(left, counted_from)
        self.unanswered += len(self._waiting)

    def close(self) -> None:
        """Close all connections."""
        self._epoll.close()
        for sock in self._open.values():
            sock.close()

    def _ask(self, kind: str, pool: list[socket.socket], due: float) -> None:
        sock = pool[self._turn[kind] % len(pool)]
        self._turn[kind] += 1
        if sock.fileno() in self._waiting:  # for longer than its pool takes for a round
            self.unanswered += 1
        self._waiting[sock.fileno()] = kind, due
        sock.send(PRESENCE.beats[ANSWERED])

    def _beat(self, number: int) -> None:
        self._seldom[number % len(self._seldom)].send(PRESENCE.beats[UNANSWERED])

    def _log_in(self, due: float) -> None:
        sock = log_in(self._address, PRESENCE, f"probe-login-{next(self._logins)}")
        self._open[sock.fileno()] = sock
        self._waiting[sock.fileno()] = LOGIN, due
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _read(self, wait_s: float, counted_from: float) -> None:
        for fd, _ in self._epoll.poll(wait_s):
            now = time.monotonic()
            sock = self._open[fd]
            if not sock.recv(4096):
                raise SystemExit("the server has closed a probe's connection")
            kind, due = self._waiting.pop(fd, ("", 0.0))
            if due >= counted_from:
                self.trips_ms[kind].append((now - due) * 1000)
            if kind == LOGIN:
                del self._open[fd]
                sock.close()


def main() -> None:
    """Probe, and print what came of it."""
    host, port, settle_s, seconds = sys.argv[1:5]
    prober = Prober((host, int(port)))
    gc.freeze()
    prober.run(float(settle_s), float(seconds))
    print(json.dumps({"trips_ms": prober.trips_ms, "unanswered": prober.unanswered}))


if __name__ == "__main__":
    main()
