"""``python -m loadtest.bench``: this server and others under the same loads, one after the other.

Writes tables (Markdown), all figures (JSON) and plots (PNG). Needs Linux and the ``loadtest`` and
``embedded`` extras; gcc for the floor; mosquitto and nats-server if they are to be measured too.
"""

import argparse
import contextlib
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest import usage
from loadtest.bench import plots, report, sizes
from loadtest.bench.progress import Bar
from loadtest.bench.results import Results
from loadtest.bench.run import Plan, go_through
from loadtest.bench.servers import OWN, Contender, contenders

PICTURES = Path(__file__).with_name("pictures")
DESCRIPTORS_SPARE = 200  # beside one for each connection, in server and generator


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def arguments_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__)
    parser.add_argument("--connections", type=int, default=15_000)
    parser.add_argument("--rates", type=_numbers, default=(15_000.0, 3_300.0), help="keepalives/s, over all")
    parser.add_argument("--seconds", type=float, default=8.0, help="of measuring, a load and round (8)")
    parser.add_argument("--warm-up", type=float, default=2.0, help="seconds before that, at each rate (2)")
    parser.add_argument(
        "--probe-seconds", type=float, default=5.0, help="of round trips, likewise; 0: none (5)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--servers", default="", help="comma-separated; presence is always among them (all)")
    parser.add_argument(
        "--maxevents", type=int, default=512, help="events that the C floor takes at once (512)"
    )
    parser.add_argument(
        "--burst-ms", type=float, default=0.0, help="send keepalives together, once in so long (0)"
    )
    parser.add_argument("--sizes", action="store_true", help="measure cost against size instead")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder (bench-results)")
    parser.add_argument("--pictures", action="store_true", help=f"write the plots into {PICTURES.name}/ too")
    return parser


def chosen(names: str, maxevents: int) -> tuple[list[Contender], dict[str, str]]:
    """Return the servers to measure, and which of those that were asked for cannot be, and why."""
    every = contenders(maxevents)
    wanted = [OWN, *(name for name in names.split(",") if name != OWN)] if names else list(every)
    if unknown := [name for name in wanted if name not in every]:
        raise SystemExit(f"no such server: {', '.join(unknown)}; there are {', '.join(every)}")
    skipped = {name: why for name in wanted if (why := every[name].missing())}
    return [every[name] for name in every if name in wanted and name not in skipped], skipped


def pace(arguments: argparse.Namespace) -> Plan:
    """Return what each server goes through, as the command line says."""
    return Plan(
        connections=arguments.connections,
        rates=arguments.rates,
        warm_up_s=arguments.warm_up,
        seconds=arguments.seconds,
        probe_s=arguments.probe_seconds,
        burst_ms=arguments.burst_ms,
    )


def beside_others(arguments: argparse.Namespace, results: Results) -> None:
    """Measure all servers, several rounds; every other round in reverse order."""
    servers, results.skipped = chosen(arguments.servers, arguments.maxevents)
    results.says = {each.name: each.says for each in servers}
    for name, why in results.skipped.items():
        print(f"{name} is skipped: {why}", file=sys.stderr)
    plan = pace(arguments)
    with Bar(arguments.rounds * sum(plan.planned_s(each) for each in servers)) as bar:
        for number in range(1, arguments.rounds + 1):
            for each in servers if number % 2 else reversed(servers):
                go_through(each, number, plan, results, bar)


def against_size(arguments: argparse.Namespace, results: Results) -> None:
    """Measure this server at all sizes."""
    own = contenders(arguments.maxevents)[OWN]
    results.says = {OWN: own.says}
    sizes.measure(own, pace(arguments), arguments.rounds, results)


def claim_descriptors(connections: int) -> None:
    """Raise the limit on open files to what the system allows; child processes inherit it.

    Raises:
        SystemExit: it is too low for so many connections.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS refuses some values that it reports
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < connections + DESCRIPTORS_SPARE:
        raise SystemExit(f"{connections:,} connections need more than the {soft:,} files that may be open")


def main(line: Sequence[str] | None = None) -> int:
    """Measure, write, print; exit 1 if a figure is not valid."""
    usage.require_linux()
    arguments = arguments_parser().parse_args(line)
    name = "sizes" if arguments.sizes else "bench"
    path: Path = arguments.out / f"{name}.json"
    claim_descriptors(max(sizes.CONNECTIONS) if arguments.sizes else arguments.connections)
    shown = ("connections", "rates", "seconds", "rounds", "burst_ms")
    left_out = ("connections", "rates") if arguments.sizes else ()
    settings = {key: value for key in shown if key not in left_out for value in [getattr(arguments, key)]}
    results = Results(usage.machine(), settings)
    (against_size if arguments.sizes else beside_others)(arguments, results)
    path.parent.mkdir(parents=True, exist_ok=True)
    results.write(path)
    table = report.sizes_table(results) if arguments.sizes else report.bench_table(results)
    path.with_suffix(".md").write_text(table)
    draw = plots.draw_sizes if arguments.sizes else plots.draw_bench
    for folder in [arguments.out, *([PICTURES] if arguments.pictures else [])]:
        folder.mkdir(parents=True, exist_ok=True)
        draw(results, folder)
    print(table)
    for complaint in results.complaints():
        print(f"not valid: {complaint}", file=sys.stderr)
    return 1 if results.complaints() else 0


if __name__ == "__main__":
    sys.exit(main())
