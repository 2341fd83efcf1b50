"""One server after the other under the same loads: start, log in, settle, beat, measure, stop."""

import json
import select
import subprocess
import sys
import time
from dataclasses import dataclass

from loadtest import usage
from loadtest.bench.generator import Report
from loadtest.bench.progress import Bar
from loadtest.bench.results import Cpu, Load, Memory, Results, Trips
from loadtest.bench.servers import Contender, Running, running

REST_S = 1.0  # after logins, until what they left behind is done
SETTLE_BEATS = 13  # of each connection, until a server that adapts to what clients send has adapted
SETTLE_RATE = 15_000.0
CONNECTS_A_SECOND = 4_000.0  # a guess, for the progress bar only
ORDER_TIMEOUT_S = 120.0  # beyond what an order was to take
PROBE_SETTLE_S = 3.5  # until the probes' own connections have sent what they usually send
PROBE_MARGIN_S = 1.5  # for the prober's start and end, within the load


@dataclass(frozen=True)
class Plan:
    """What each server goes through in a round.

    Attributes:
        connections: logged in at once.
        rates: keepalives a second, over all connections.
        warm_up_s: seconds before that, at each new rate.
        seconds: of measuring, for each load.
        probe_s: seconds of round trips after that, for each load; 0 for none.
        burst_ms: see `loadtest.bench.generator`.
    """

    connections: int
    rates: tuple[float, ...]
    warm_up_s: float
    seconds: float
    probe_s: float
    burst_ms: float

    def settle_s(self, connections: int) -> float:
        """Return how long it takes until everybody has sent what settles a server."""
        return SETTLE_BEATS * connections / SETTLE_RATE

    def planned_s(self, contender: Contender) -> float:
        """Return about how long a round with this server takes."""
        first = self.connections // 3
        once = self.connections / CONNECTS_A_SECOND + 2 * REST_S + self.settle_s(first)
        each = self.warm_up_s + self.seconds
        if contender.probed and self.probe_s:
            each += PROBE_SETTLE_S + self.probe_s + PROBE_MARGIN_S
        kinds = len(contender.kinds)
        return once + kinds * (self.settle_s(self.connections) + len(self.rates) * each)


class LoadGenerator:
    """The generator's process."""

    def __init__(self, server: Running, contender: Contender, burst_ms: float, bar: Bar) -> None:
        command = [sys.executable, "-m", "loadtest.bench.generator", server.host, str(server.port)]
        command += [contender.dialect, str(burst_ms)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._bar = bar

    def connect(self, connections: int) -> None:
        """Log in until there are so many connections."""
        self._do(f"connections {connections}", connections / CONNECTS_A_SECOND)

    def beat(self, kind: str, rate: float, seconds: float) -> Report:
        """Send keepalives for so long."""
        return Report(**json.loads(self._do(f"beat {kind} {rate} {seconds}", seconds)))

    def _do(self, order: str, planned_s: float) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        deadline = time.monotonic() + planned_s + ORDER_TIMEOUT_S
        while not select.select([self._process.stdout], [], [], 0.2)[0]:
            self._bar.tick()
            if time.monotonic() > deadline:
                raise SystemExit(f"the generator did not finish: {order}")
        if not (answer := self._process.stdout.readline()):
            raise SystemExit(f"the generator failed at: {order}")
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


class Session:
    """One server in one round."""

    def __init__(
        self, contender: Contender, number: int, plan: Plan, server: Running, results: Results, bar: Bar
    ) -> None:
        self._contender, self._number, self._plan = contender, number, plan
        self._server, self._results, self._bar = server, results, bar
        self._generator = LoadGenerator(server, contender, plan.burst_ms, bar)

    def close(self) -> None:
        """End the load."""
        self._generator.close()

    def log_in(self) -> None:
        """Log everybody in; note what a connection costs in memory.

        That is the slope from a third of the connections to all: what the first ones find free in a heap that
        start-up left behind would flatter a small server.
        """
        first, last = self._plan.connections // 3, self._plan.connections
        found = []
        for connections in (first, last):
            self._generator.connect(connections)
            time.sleep(REST_S)
            self.settle(self._contender.kinds[0], connections)
            found.append(usage.memory(self._server.pid))
        few, all_of_them = found
        rss, pss = all_of_them.rss - few.rss, all_of_them.anonymous - few.anonymous
        added = last - first
        self._results.memory.append(
            Memory(self._contender.name, self._number, last, rss / added, pss / added, all_of_them.rss)
        )

    def settle(self, kind: str, connections: int) -> None:
        """Let everybody send some keepalives of a kind."""
        self._generator.beat(kind, SETTLE_RATE, self._plan.settle_s(connections))

    def measure(self, kind: str, rate: float) -> Cpu:
        """Beat at a rate; note what a keepalive costs."""
        load = Load(kind, rate, self._plan.connections)
        self._generator.beat(kind, rate, self._plan.warm_up_s)
        pid = self._server.pid
        cpu, wakes = usage.cpu_seconds(pid), usage.wakes(pid)
        report = self._generator.beat(kind, rate, self._plan.seconds)
        cpu, wakes = usage.cpu_seconds(pid) - cpu, usage.wakes(pid) - wakes
        found = Cpu(
            *(self._contender.name, self._number, load),
            cpu_us=cpu / report.sent * 1e6,
            per_wake=report.sent / max(wakes, 1),
            generator_share=report.core_share,
            complaints=report.complaints(kind),
        )
        self._results.cpu.append(found)
        return found

    def probe(self, kind: str, rate: float) -> None:
        """Beat at a rate, and note the round trips of others meanwhile.

        Apart from `measure`: twenty logins a second cost more than many keepalives.
        """
        load = Load(kind, rate, self._plan.connections)
        seconds = PROBE_SETTLE_S + self._plan.probe_s
        command = [sys.executable, "-m", "loadtest.bench.prober", self._server.host, str(self._server.port)]
        command += [str(PROBE_SETTLE_S), str(self._plan.probe_s)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as prober:
            self._generator.beat(kind, rate, seconds + PROBE_MARGIN_S)
            output, _ = prober.communicate(timeout=ORDER_TIMEOUT_S)
        if prober.returncode:
            raise SystemExit(f"the prober failed at {self._contender.name}, {load}")
        report = json.loads(output)
        for probe, trips in report["trips_ms"].items():
            rounded = [round(trip, 3) for trip in trips]
            self._results.trips.append(Trips(self._contender.name, self._number, load, probe, rounded))
        if report["unanswered"]:
            self._bar.say(f"{self._contender.name}, {load}: {report['unanswered']} probes stayed unanswered")


def go_through(contender: Contender, number: int, plan: Plan, results: Results, bar: Bar) -> None:
    """Measure one server, from its start to its end; unanswered keepalives come before answered ones."""
    bar.begin(f"round {number}: {contender.name}", plan.planned_s(contender))
    with running(contender) as server:
        session = Session(contender, number, plan, server, results, bar)
        try:
            session.log_in()
            said = []
            for kind in contender.kinds:
                if kind != contender.kinds[0]:
                    session.settle(kind, plan.connections)
                for rate in plan.rates:
                    found = session.measure(kind, rate)
                    said.append(f"{found.cpu_us:.1f} µs {'!' * bool(found.complaints)}({found.load})")
                    if contender.probed and plan.probe_s:
                        session.probe(kind, rate)
        finally:
            session.close()
    memory = results.memory[-1]
    bar.say(
        f"round {number}: {contender.name}: {', '.join(said)}; {memory.rss_bytes:.0f} B of RSS a connection"
    )
