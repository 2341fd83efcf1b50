"""``python -m benchmarks.websocket``: WebSocket beside TCP on one worker, and what each costs.

First clients over TCP log in, then as many over WebSocket (``presence.v1``, or ``--json``), so all are
connected at the end. Memory is the slope of RSS from a third of the clients to all. Then keepalives, first
unanswered, then answered, over one of the two at a time, in turns; and logins over both, one after the other.
`alone` is TCP before any WebSocket client came. On a noisy machine trust the ratios. Exits with 1 if a figure
is not valid, as for `benchmarks.keepalives`. Needs Linux.

Tests: `tests/system/benchmarks/test_websocket.py`.
"""

import argparse
import statistics
import sys
import time
from contextlib import ExitStack, closing

from benchmarks.contenders import HOST, SERVE, Contender, running
from benchmarks.load_generator import ANSWERED, UNANSWERED, LoadGenerator
from benchmarks.progress import Bar
from loadtest import usage
from loadtest.arguments import above_0, from_1
from loadtest.outcome import markdown
from loadtest.processes import exit_on_sigterm
from loadtest.servers import free_port
from presence.loadtest.server_address import raise_file_limit

REST_S = 1.0  # after logins, until what they left behind is done
WARM_UP_S = 1.0
SETTLE_RATE = 6_000.0  # slow enough that each keepalive is read alone: others keep a connection in its class
LOGIN_RATE = 200.0
TCP, WEBSOCKET, ALONE = "TCP", "WebSocket", "TCP, alone"
HEAD = "over | B a connection | µs a keepalive | answered | login p50 ms | p99"


class Measurement:
    """One server, and what was found.

    Args:
        pid: of the server.
        given: the options.
    """

    def __init__(self, pid: int, given: argparse.Namespace) -> None:
        self._pid = pid
        self._given = given
        self.memory: dict[str, float] = {}  # bytes a connection
        self.cost_us: dict[
            tuple[str, str], list[float]
        ] = {}  # by what it went over, and the kind of keepalive
        self.logins_s: dict[str, list[float]] = {}
        self.complaints: list[str] = []

    def connect(self, name: str, generator: LoadGenerator) -> None:
        """Log all clients in, and measure their memory."""
        few, every = self._given.connections // 3, self._given.connections
        found = []
        for connections in (few, every):
            generator.connect(connections)
            time.sleep(REST_S)
            generator.settle(UNANSWERED, connections, SETTLE_RATE)
            found.append(usage.memory(self._pid).rss)
        self.memory[name] = (found[1] - found[0]) / (every - few)

    def send_keepalives(self, name: str, kind: str, generator: LoadGenerator) -> None:
        """Measure what a keepalive costs."""
        generator.send_keepalives(kind, self._given.rate, WARM_UP_S)
        cpu = usage.cpu_seconds(self._pid)
        report = generator.send_keepalives(kind, self._given.rate, self._given.seconds)
        cost = (usage.cpu_seconds(self._pid) - cpu) / report.sent * 1e6
        self.cost_us.setdefault((name, kind), []).append(cost)
        self.complaints += [f"{name}: {each}" for each in report.complaints(kind)]

    def time_logins(self, name: str, generator: LoadGenerator) -> None:
        self.logins_s.setdefault(name, []).extend(generator.time_logins(self._given.logins, LOGIN_RATE))

    def row(self, name: str) -> list[str]:
        """Return a line of the table."""
        costs = [self.cost_us.get((name, kind), []) for kind in (UNANSWERED, ANSWERED)]
        ms = sorted(1000 * each for each in self.logins_s.get(name, []))
        return [
            name,
            f"{self.memory[name]:,.0f}" if name in self.memory else "",
            *(f"{statistics.median(each):.1f}" if each else "" for each in costs),
            *((f"{statistics.median(ms):.2f}", f"{ms[int(0.99 * len(ms))]:.2f}") if ms else ("", "")),
        ]


def measure(given: argparse.Namespace, bar: Bar) -> Measurement:
    port = free_port()
    command = [sys.executable, "-m", *SERVE, "--ws-port", str(port), "--login-rate", "20000"]
    command += ["--idle-timeout", "3600"]  # some are silent while others are measured
    with ExitStack() as cleanup:
        server = cleanup.enter_context(running(Contender("presence", "", "presence", (), lambda *_: command)))
        address, dialect = (server.host, server.port), "json" if given.json else "websocket"
        tcp, websocket = (
            cleanup.enter_context(closing(LoadGenerator(where, speaks, 0.0, bar, prefix=speaks)))
            for where, speaks in ((address, "presence"), ((HOST, port), dialect))
        )
        found = Measurement(server.pid, given)
        found.connect(TCP, tcp)
        for kind in (UNANSWERED, ANSWERED):
            if kind == ANSWERED:  # `connect` has settled the others
                tcp.settle(kind, given.connections, SETTLE_RATE)
            for _ in range(given.rounds):
                found.send_keepalives(ALONE, kind, tcp)
        found.time_logins(ALONE, tcp)
        found.connect(WEBSOCKET, websocket)
        both = {TCP: tcp, WEBSOCKET: websocket}
        for kind in (UNANSWERED, ANSWERED):
            for generator in both.values() if kind == ANSWERED else [tcp]:
                generator.settle(kind, given.connections, SETTLE_RATE)
            for _ in range(given.rounds):
                for name, generator in both.items():
                    found.send_keepalives(name, kind, generator)
        for name, generator in both.items():
            found.time_logins(name, generator)
    return found


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.websocket", description=__doc__)
    add = parser.add_argument
    add("--connections", type=from_1, default=9_000, help="over TCP, and as many over WebSocket (9,000)")
    add("--rate", type=above_0, default=3_300.0, help="keepalives per second (3,300)")
    add("--seconds", type=above_0, default=4.0, help="of measuring, each load and round (4)")
    add("--rounds", type=from_1, default=3)
    add("--logins", type=from_1, default=1_000)
    add("--json", action="store_true", help="presence.v1.json")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    usage.require_linux()
    given = parse(words)
    raise_file_limit()
    with Bar(60.0) as bar:
        found = measure(given, bar)
    print(markdown(HEAD, [found.row(name) for name in (ALONE, TCP, WEBSOCKET)]))
    for complaint in found.complaints:
        print(f"not valid: {complaint}", file=sys.stderr)
    return 1 if found.complaints else 0


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
