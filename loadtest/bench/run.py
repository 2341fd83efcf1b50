"""One server after the other under the same loads: start, log in, settle, beat, measure, stop."""

import json
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass

from loadtest import usage
from loadtest.bench.generator import CONNECTS_A_SECOND, ORDER_TIMEOUT_S, LoadGenerator, settle_s
from loadtest.bench.progress import Bar
from loadtest.bench.report import Cpu, Load, Memory, Results, Trips
from loadtest.bench.servers import Contender, Running, running

REST_S = 1.0  # after logins, until what they left behind is done
PROBE_SETTLE_S = 3.5  # until the probes' own connections have sent what they usually send
PROBE_MARGIN_S = 1.5  # for the prober's start and end, within the load


@dataclass(frozen=True)
class Plan:
    """What each server goes through in a round."""

    connections: int  # logged in at once
    rates: tuple[float, ...]  # keepalives a second, over all connections
    # Before measuring, at each new rate; and of measuring, for each load
    warm_up_s: float
    seconds: float
    probe_s: float  # seconds of round trips after that, for each load; 0 for none
    burst_ms: float  # see `loadtest.bench.generator`

    def planned_s(self, contender: Contender) -> float:
        """Return about how long a round with this server takes."""
        once = self.connections / CONNECTS_A_SECOND + 2 * REST_S + settle_s(self.connections // 3)
        each = self.warm_up_s + self.seconds
        if contender.probed and self.probe_s:
            each += PROBE_SETTLE_S + self.probe_s + PROBE_MARGIN_S
        return once + len(contender.kinds) * (settle_s(self.connections) + len(self.rates) * each)


def go_through(contender: Contender, number: int, plan: Plan, results: Results, bar: Bar) -> None:
    """Measure one server, from its start to its end; unanswered keepalives come before answered ones."""
    name = f"round {number}: {contender.name}"
    bar.begin(name, plan.planned_s(contender))
    said = []
    with (
        running(contender) as server,
        closing(
            LoadGenerator((server.host, server.port), contender.dialect, plan.burst_ms, bar)
        ) as generator,
    ):
        memory = _log_in(generator, contender, number, plan, server)
        results.memory.append(memory)
        for kind in contender.kinds:
            if kind != contender.kinds[0]:
                generator.settle(kind, plan.connections)
            for rate in plan.rates:
                load = Load(kind, rate, plan.connections)
                found = _measure(generator, contender, number, plan, server, load)
                results.cpu.append(found)
                said.append(f"{found.cpu_us:.1f} µs {'!' * bool(found.complaints)}({load})")
                if contender.probed and plan.probe_s:
                    results.trips += _probe(generator, contender, number, plan, server, load, bar)
    bar.say(f"{name}: {', '.join(said)}; {memory.rss_bytes:.0f} B of RSS a connection")


def _log_in(
    generator: LoadGenerator, contender: Contender, number: int, plan: Plan, server: Running
) -> Memory:
    """Log everybody in; return what a connection costs in memory.

    That is the slope from a third of the connections to all: what the first ones find free in a heap that
    start-up left behind would flatter a small server.
    """
    first, last = plan.connections // 3, plan.connections
    found = []
    for connections in (first, last):
        generator.connect(connections)
        time.sleep(REST_S)
        generator.settle(contender.kinds[0], connections)
        found.append(usage.memory(server.pid))
    few, every = found
    rss, pss = ((b - a) / (last - first) for a, b in ((few.rss, every.rss), (few.anonymous, every.anonymous)))
    return Memory(contender.name, number, last, rss, pss, every.rss)


def _measure(
    generator: LoadGenerator, contender: Contender, number: int, plan: Plan, server: Running, load: Load
) -> Cpu:
    """Beat at a rate; return what a keepalive costs."""
    generator.beat(load.kind, load.rate, plan.warm_up_s)
    cpu, wakes = usage.cpu_seconds(server.pid), usage.wakes(server.pid)
    report = generator.beat(load.kind, load.rate, plan.seconds)
    cpu, wakes = usage.cpu_seconds(server.pid) - cpu, usage.wakes(server.pid) - wakes
    return Cpu(
        *(contender.name, number, load),
        cpu_us=cpu / report.sent * 1e6,
        per_wake=report.sent / max(wakes, 1),
        generator_share=report.core_share,
        complaints=report.complaints(load.kind),
    )


def _probe(
    generator: LoadGenerator,
    contender: Contender,
    number: int,
    plan: Plan,
    server: Running,
    load: Load,
    bar: Bar,
) -> list[Trips]:
    """Beat at a rate; return the round trips of others meanwhile.

    Apart from `_measure`: twenty logins a second cost more than many keepalives.
    """
    command = [sys.executable, "-m", "loadtest.bench.prober", server.host, str(server.port)]
    command += [str(PROBE_SETTLE_S), str(plan.probe_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as prober:
        generator.beat(load.kind, load.rate, PROBE_SETTLE_S + plan.probe_s + PROBE_MARGIN_S)
        output, _ = prober.communicate(timeout=ORDER_TIMEOUT_S)
    if prober.returncode:
        raise SystemExit(f"the prober failed at {contender.name}, {load}")
    report = json.loads(output)
    if report["unanswered"]:
        bar.say(f"{contender.name}, {load}: {report['unanswered']} probes stayed unanswered")
    return [
        Trips(contender.name, number, load, probe, [round(trip, 3) for trip in trips])
        for probe, trips in report["trips_ms"].items()
    ]
