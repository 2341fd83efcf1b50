"""``python -m loadtest.bench``: this server and others under the same loads, one after the other.

Writes tables (Markdown), all figures (JSON) and plots (PNG). Needs Linux and the ``loadtest`` and
``embedded`` extras; gcc for the floor; mosquitto and nats-server if they are to be measured too.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from loadtest import usage
from loadtest.bench import plots, wheel
from loadtest.bench.generator import UNANSWERED
from loadtest.bench.progress import Bar
from loadtest.bench.report import Results
from loadtest.bench.run import Plan, go_through
from loadtest.bench.servers import OWN, Contender, contenders
from loadtest.connection import raise_file_limit

PICTURES = Path(__file__).with_name("pictures")
DESCRIPTORS_SPARE = 200  # beside one for each connection, in server and generator

# Two rates for each size. One is the same for all: whatever rises then is due to size alone. The other is the
# same for each connection, a beat each 4.5 s: it tells what a machine with so many users spends; with few of
# them, keepalives are far apart, so fewer are read at one wake and each costs more.
SIZES = (1_000, 5_000, 10_000, 19_000)
SIZES_RATE = 3_300.0
SIZES_RATE_EACH = 0.22
WHEEL_S = {10_000: 1.5, 100_000: 2.5, 1_000_000: 15.0}  # a round; a guess, for the progress bar only


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__)
    add = parser.add_argument
    add("--connections", type=int, default=15_000)
    add("--rates", type=_numbers, default=(15_000.0, 3_300.0), help="keepalives/s, over all")
    add("--seconds", type=float, default=8.0, help="of measuring, a load and round (8)")
    add("--warm-up", type=float, default=2.0, help="seconds before that, at each rate (2)")
    add("--probe-seconds", type=float, default=5.0, help="of round trips, likewise; 0: none (5)")
    add("--rounds", type=int, default=3)
    add("--servers", default="", help="comma-separated; presence is always among them (all)")
    add("--maxevents", type=int, default=512, help="events that the C floor takes at once (512)")
    add("--burst-ms", type=float, default=0.0, help="send keepalives together, once in so long (0)")
    add("--sizes", action="store_true", help="measure cost against size instead")
    add("--out", type=Path, default=Path("bench-results"), help="folder (bench-results)")
    add("--pictures", action="store_true", help=f"write the plots into {PICTURES.name}/ too")
    return parser.parse_args(words)


def chosen(names: str, maxevents: int) -> tuple[list[Contender], dict[str, str]]:
    """Return the servers to measure, and which of those that were asked for cannot be, and why."""
    every = contenders(maxevents)
    wanted = [OWN, *(name for name in names.split(",") if name != OWN)] if names else list(every)
    if unknown := [name for name in wanted if name not in every]:
        raise SystemExit(f"no such server: {', '.join(unknown)}; there are {', '.join(every)}")
    skipped = {name: why for name in wanted if (why := every[name].missing())}
    return [every[name] for name in every if name in wanted and name not in skipped], skipped


def beside_others(given: argparse.Namespace, plan: Plan, results: Results) -> None:
    """Measure all servers, several rounds; every other round in reverse order."""
    servers, results.skipped = chosen(given.servers, given.maxevents)
    results.says = {each.name: each.says for each in servers}
    for name, why in results.skipped.items():
        print(f"{name} is skipped: {why}", file=sys.stderr)
    with Bar(given.rounds * sum(plan.planned_s(each) for each in servers)) as bar:
        for number in range(1, given.rounds + 1):
            for each in servers if number % 2 else reversed(servers):
                go_through(each, number, plan, results, bar)


def against_size(given: argparse.Namespace, plan: Plan, results: Results) -> None:
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
                go_through(own, number, each, results, bar)
        for keys, seconds in WHEEL_S.items():
            bar.begin(f"wheel with {keys:,} keys", seconds * given.rounds)
            results.wheel.append(wheel.measure(keys, given.rounds))


def main(words: Sequence[str] | None = None) -> int:
    """Measure, write, print; exit 1 if a figure is not valid."""
    usage.require_linux()
    given = parse(words)
    connections = max(SIZES) if given.sizes else given.connections
    if 0 <= (limit := raise_file_limit()) < connections + DESCRIPTORS_SPARE:
        raise SystemExit(f"{connections:,} connections need more than the {limit:,} files that may be open")
    plan = Plan(
        *(given.connections, given.rates, given.warm_up, given.seconds, given.probe_seconds, given.burst_ms)
    )
    shown = [*([] if given.sizes else ["connections", "rates"]), "seconds", "rounds", "burst_ms"]
    results = Results(usage.machine(), {name: getattr(given, name) for name in shown})
    (against_size if given.sizes else beside_others)(given, plan, results)
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
    sys.exit(main())
