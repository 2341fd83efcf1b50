"""``python -m benchmarks.keepalives``: this server and others under the same loads, one after the other.

Three rounds with 15,000 connections: 15,000 and 3,300 keepalives per second, first unanswered, then
answered. Servers: `presence`; `floor` (floor.c: `epoll_wait`, `recv`, an answer where one is due; a
yardstick, no server); `uvloop`, `asyncio`, `trio` (loop_servers.py: login and wheel touch only);
`mosquitto` and `nats` from PATH, where a PINGREQ or PING is an answered keepalive. What is not installed is
skipped and named.

- CPU is user and kernel time of all threads of the server, without its Redis. On a noisy machine trust the
  ratios, which are taken within a round. Servers that wait for events wake for nearly every packet, because
  each is sent when it is due. ``--burst-ms 1`` sends packets together each millisecond, which flatters such
  servers.
- Memory is the slope of RSS and of PSS (without the pages of files) from a third of the connections to all.
- Round trips, for this server and uvloop, are measured after the CPU under the same load, 20 times per
  second each, on connections that always ask, on some that seldom do, and for new logins.
- A figure is not valid, and the exit status 1, if the generator used more than 70 % of a core, was late by
  more than 0.1 s, or missed more than 1 % of the answers; or if more than 1 % of the probes had no answer.

``--sizes`` measures cost against size instead: 1,000 to 19,000 connections at 3,300 keepalives per second
and at one per connection each 4.5 s, and the wheel with up to 1,000,000 keys. Writes tables (Markdown), all
figures (JSON) and plots (PNG) to ``bench-results/``; ``--pictures`` also to ``benchmarks/pictures/``.
Needs Linux and the ``loadtest`` and ``embedded`` extras; gcc for the floor.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks import plots, wheel
from benchmarks.contenders import OWN, Contender, Running, contenders, running
from benchmarks.load_generator import CONNECTS_PER_S, UNANSWERED, LoadGenerator, settle_s
from benchmarks.prober import probing
from benchmarks.progress import Bar
from benchmarks.results import Cpu, KeepaliveLoad, MemorySlope, Results, Trips
from loadtest import usage
from loadtest.arguments import above_0, at_least_0, from_1
from loadtest.processes import exit_on_sigterm
from presence.loadtest.server_address import raise_file_limit

REST_S = 1.0  # after logins, until what they left behind is done
PROBE_SETTLE_S = 3.5  # until the probes' own connections have sent what they usually send
PROBE_MARGIN_S = 1.5  # for the prober's start and end, within the load
PICTURES = Path(__file__).with_name("pictures")
DESCRIPTORS_SPARE = 200  # beside one for each connection, in server and generator

# Two rates for each size. One is the same for all: whatever rises then is due to size alone. The other is the
# same for each connection, a beat each 4.5 s: it tells what a machine with so many users spends; with few of
# them, keepalives are far apart, so fewer are read at one wake and each costs more.
SIZES = (1_000, 5_000, 10_000, 19_000)
SIZES_RATE = 3_300.0
SIZES_RATE_EACH = 0.22
WHEEL_S = {10_000: 1.5, 100_000: 2.5, 1_000_000: 15.0}  # a round; a guess, for the progress bar only


@dataclass(frozen=True)
class BenchPlan:
    """What each server goes through in a round."""

    connections: int  # logged in together
    rates: tuple[float, ...]  # keepalives a second, over all connections
    # Before measuring, at each new rate; and of measuring, for each load
    warm_up_s: float
    seconds: float
    probe_s: float  # seconds of round trips after that, for each load; 0 for none
    burst_ms: float  # see `benchmarks.load_generator`

    def planned_s(self, contender: Contender) -> float:
        """Return roughly how long a round with this server takes."""
        once = self.connections / CONNECTS_PER_S + 2 * REST_S + settle_s(self.connections // 3)
        each = self.warm_up_s + self.seconds
        if contender.probed and self.probe_s:
            each += PROBE_SETTLE_S + self.probe_s + PROBE_MARGIN_S
        return once + len(contender.kinds) * (settle_s(self.connections) + len(self.rates) * each)


def measure_server(contender: Contender, number: int, plan: BenchPlan, results: Results, bar: Bar) -> None:
    """Measure one server from start to end; unanswered keepalives come before answered ones."""
    name = f"round {number}: {contender.name}"
    bar.begin(name, plan.planned_s(contender))
    results_text = []
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
                load = KeepaliveLoad(kind, rate, plan.connections)
                found = _measure(generator, contender, number, plan, server, load)
                results.cpu.append(found)
                results_text.append(f"{found.cpu_us:.1f} µs {'!' * bool(found.complaints)}({load})")
                if contender.probed and plan.probe_s:
                    results.trips += _probe(generator, contender, number, plan, server, load)
    bar.print_line(f"{name}: {', '.join(results_text)}; {memory.rss_bytes:.0f} B of RSS a connection")


def _log_in(
    generator: LoadGenerator, contender: Contender, number: int, plan: BenchPlan, server: Running
) -> MemorySlope:
    """Log all clients in; return the memory of a connection.

    That is the slope from a third of the connections to all: the first ones may use memory that start-up left
    free, which would flatter a small server.
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
    return MemorySlope(contender.name, number, last, rss, pss, every.rss)


def _measure(
    generator: LoadGenerator,
    contender: Contender,
    number: int,
    plan: BenchPlan,
    server: Running,
    load: KeepaliveLoad,
) -> Cpu:
    """Send keepalives at a rate; return the cost of one."""
    generator.send_keepalives(load.kind, load.rate, plan.warm_up_s)
    cpu, wakes = usage.cpu_seconds(server.pid), usage.count_wakes(server.pid)
    report = generator.send_keepalives(load.kind, load.rate, plan.seconds)
    cpu, wakes = usage.cpu_seconds(server.pid) - cpu, usage.count_wakes(server.pid) - wakes
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
    plan: BenchPlan,
    server: Running,
    load: KeepaliveLoad,
) -> list[Trips]:
    """Send keepalives at a rate; return the round trips of probes meanwhile.

    Apart from `_measure`: twenty logins per second cost more than many keepalives.
    """
    with probing(server.host, server.port, PROBE_SETTLE_S, plan.probe_s) as probed:
        generator.send_keepalives(load.kind, load.rate, PROBE_SETTLE_S + plan.probe_s + PROBE_MARGIN_S)
    found = [
        Trips(contender.name, number, load, probe, [round(trip, 3) for trip in trips])
        for probe, trips in probed.trips_ms.items()
    ]
    found[0].complaints.extend(probed.complaints())
    return found


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(above_0, text.split(",")))


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.keepalives",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--connections", type=from_1, default=15_000)
    add("--rates", type=_numbers, default=(15_000.0, 3_300.0), help="keepalives/s, over all")
    add("--seconds", type=above_0, default=8.0, help="of measuring, a load and round (8)")
    add("--warm-up", type=at_least_0, default=2.0, help="seconds before that, at each rate (2)")
    add("--probe-seconds", type=at_least_0, default=5.0, help="of round trips, likewise; 0: none (5)")
    add("--rounds", type=from_1, default=3)
    add("--servers", default="", help="comma-separated; presence is always among them (all)")
    add("--maxevents", type=from_1, default=512, help="events that the C floor takes at once (512)")
    add("--burst-ms", type=at_least_0, default=0.0, help="send keepalives together, once in so long (0)")
    add("--sizes", action="store_true", help="measure cost against size instead")
    add("--out", type=Path, default=Path("bench-results"), help="folder (bench-results)")
    add("--pictures", action="store_true", help=f"write the plots into {PICTURES.name}/ too")
    return parser.parse_args(words)


def select_servers(names: str, maxevents: int) -> tuple[list[Contender], dict[str, str]]:
    """Return the servers to measure, and those that cannot be measured here with the reason."""
    every = contenders(maxevents)
    wanted = [OWN, *(name for name in names.split(",") if name != OWN)] if names else list(every)
    if unknown := [name for name in wanted if name not in every]:
        raise SystemExit(f"no such server: {', '.join(unknown)}; there are {', '.join(every)}")
    skipped = {name: why for name in wanted if (why := every[name].missing())}
    return [every[name] for name in every if name in wanted and name not in skipped], skipped


def compare_servers(given: argparse.Namespace, plan: BenchPlan, results: Results) -> None:
    """Measure all servers, several rounds; every other round in reverse order."""
    servers, results.skipped = select_servers(given.servers, given.maxevents)
    results.says = {each.name: each.says for each in servers}
    for name, why in results.skipped.items():
        print(f"{name} is skipped: {why}", file=sys.stderr)
    with Bar(given.rounds * sum(plan.planned_s(each) for each in servers)) as bar:
        for number in range(1, given.rounds + 1):
            for each in servers if number % 2 else reversed(servers):
                measure_server(each, number, plan, results, bar)


def measure_sizes(given: argparse.Namespace, plan: BenchPlan, results: Results) -> None:
    """Measure this server at all sizes, several rounds, and the wheel."""
    own = replace(contenders(given.maxevents)[OWN], kinds=(UNANSWERED,), probed=False)
    results.says = {OWN: own.says}
    plans = [
        replace(plan, connections=size, rates=(SIZES_RATE, round(SIZES_RATE_EACH * size, 1)), probe_s=0.0)
        for size in SIZES
    ]
    with Bar(given.rounds * (sum(each.planned_s(own) for each in plans) + sum(WHEEL_S.values()))) as bar:
        for number in range(1, given.rounds + 1):
            for each in plans:
                measure_server(own, number, each, results, bar)
        for keys, seconds in WHEEL_S.items():
            bar.begin(f"wheel with {keys:,} keys", seconds * given.rounds)
            results.wheel.append(wheel.measure(keys, given.rounds))


def main(words: Sequence[str] | None = None) -> int:
    usage.require_linux()
    given = parse(words)
    connections = max(SIZES) if given.sizes else given.connections
    if 0 <= (limit := raise_file_limit()) < connections + DESCRIPTORS_SPARE:
        raise SystemExit(f"{connections:,} connections need more than the {limit:,} files that may be open")
    plan = BenchPlan(
        *(given.connections, given.rates, given.warm_up, given.seconds, given.probe_seconds, given.burst_ms)
    )
    shown = [*([] if given.sizes else ["connections", "rates"]), "seconds", "rounds", "burst_ms"]
    results = Results(usage.machine_facts(), {name: getattr(given, name) for name in shown})
    (measure_sizes if given.sizes else compare_servers)(given, plan, results)
    report = results.sizes_report() if given.sizes else results.bench_report()
    draw = plots.draw_sizes if given.sizes else plots.draw_bench
    for folder in [given.out, *([PICTURES] if given.pictures else [])]:
        folder.mkdir(parents=True, exist_ok=True)
        draw(results, folder)
    path = given.out / ("sizes" if given.sizes else "bench")
    path.with_suffix(".json").write_text(json.dumps(asdict(results), indent=1, ensure_ascii=False) + "\n")
    path.with_suffix(".md").write_text(report)
    print(report)
    for complaint in results.complaints():
        print(f"not valid: {complaint}", file=sys.stderr)
    return 1 if results.complaints() else 0


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
