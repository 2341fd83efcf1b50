"""``python -m loadtest.bench``: CPU time a keepalive and memory a connection, this server beside others.

All servers get the same load from the same generator, in turn, several rounds in one run, so that a noisy
machine is equally noisy to all; what counts are the ratios. Needs the ``loadtest`` extra (uvloop).
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

SERVERS = {
    "presence": ["-m", "presence", "serve", "--port", "0"],
    "uvloop": ["-m", "loadtest.bench.peers", "uvloop"],
    "trio": ["-m", "loadtest.bench.peers", "trio"],
}
WARM_UP_S = 2.0
GENERATOR_LIMIT = 0.7  # of a core: beyond, the generator and not the server would be measured


@dataclass
class Figures:
    """One server in one round: µs of CPU a keepalive, bytes of RSS a connection, the generator's report."""

    cpu_us: float
    rss_bytes: float
    generator: dict[str, float]


def cpu_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process, from the scheduler's nanoseconds."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def rss_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class LoadGenerator:
    """The generator's process."""

    def __init__(self, host: str, port: str, *, answered: bool) -> None:
        kind = "answered" if answered else "unanswered"
        command = [sys.executable, "-m", "loadtest.bench.generator", host, port, kind]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(self, line: str) -> dict[str, float]:
        """Give an order and wait for its report."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"the generator failed at: {line}")
        report: dict[str, float] = json.loads(answer)
        return report

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def measure(name: str, arguments: argparse.Namespace) -> Figures:
    """Start a server, load it, measure it, stop it."""
    server = subprocess.Popen([sys.executable, *SERVERS[name]], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        ready = next((line for line in server.stderr if line.startswith("ready ")), "")
        if not ready:
            raise SystemExit(f"{name} did not become ready")
        host, _, port = ready.split()[1].rpartition(":")
        generator = LoadGenerator(host, port, answered=arguments.answered)
        try:
            return load(server.pid, generator, arguments)
        finally:
            generator.close()
    finally:
        server.terminate()
        server.communicate()


def load(pid: int, generator: LoadGenerator, arguments: argparse.Namespace) -> Figures:
    """Log in, warm up, beat; return the figures.

    Memory is the slope from a third of the connections to all: what the first ones find free in a heap
    that start-up left behind would flatter a small server.
    """
    first, last = arguments.connections // 3, arguments.connections
    rss = []
    for connections in (first, last):
        generator.do(f"connections {connections}")
        time.sleep(1.0)
        generator.do(f"beat {arguments.rate * connections / last} {WARM_UP_S}")
        rss.append(rss_bytes(pid))
    before = cpu_seconds(pid)
    report = generator.do(f"beat {arguments.rate} {arguments.seconds}")
    cpu = cpu_seconds(pid) - before
    return Figures(cpu / report["sent"] * 1e6, (rss[1] - rss[0]) / (last - first), report)


def table(results: dict[str, list[Figures]], arguments: argparse.Namespace) -> str:
    """Return the medians, and the ratios to each peer, as Markdown."""
    kind = "answered" if arguments.answered else "unanswered"
    lines = [
        f"{arguments.connections:,} connections, {arguments.rate:,} {kind} keepalives/s, "
        f"{arguments.rounds} rounds of {arguments.seconds:g} s, medians; Python {platform.python_version()}, "
        f"trio {version('trio')}, uvloop {version('uvloop')}, {os.cpu_count()} cores",
        "",
        "| server | µs of CPU a keepalive (all rounds) | this server ÷ it | bytes of RSS a connection "
        "| generator, % of a core |",
        "| --- | --- | --- | --- | --- |",
    ]
    own = [each.cpu_us for each in results["presence"]]
    for name, figures in results.items():
        cpu = [each.cpu_us for each in figures]
        ratio = statistics.median(a / b for a, b in zip(own, cpu, strict=True))
        rounds = ", ".join(f"{value:.1f}" for value in cpu)
        shown = "" if name == "presence" else f"{ratio:.2f}"
        share = max(each.generator["core_share"] for each in figures) * 100
        lines.append(
            f"| {name} | {statistics.median(cpu):.1f} ({rounds}) | {shown} "
            f"| {statistics.median(each.rss_bytes for each in figures):,.0f} | {share:.0f} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Run all rounds; exit 1 if the generator was the bottleneck."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__)
    parser.add_argument("--connections", type=int, default=15_000)
    parser.add_argument("--rate", type=int, default=15_000, help="keepalives a second, over all connections")
    parser.add_argument("--seconds", type=float, default=10.0, help="of measuring, a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--answered", action="store_true", help="keepalives that ask for an answer")
    parser.add_argument("--servers", default=",".join(SERVERS), help="comma-separated; presence comes first")
    arguments = parser.parse_args()
    names = arguments.servers.split(",")
    results: dict[str, list[Figures]] = {name: [] for name in names}
    for number in range(arguments.rounds):
        for name in names:
            print(f"round {number + 1} of {arguments.rounds}: {name} …", end=" ", file=sys.stderr, flush=True)
            figures = measure(name, arguments)
            results[name].append(figures)
            print(f"{figures.cpu_us:.1f} µs, {figures.rss_bytes:.0f} B", file=sys.stderr, flush=True)
    print(table(results, arguments))
    reports = [each.generator for figures in results.values() for each in figures]
    if max(report["core_share"] for report in reports) > GENERATOR_LIMIT:
        print("the generator was the bottleneck: nothing is shown", file=sys.stderr)
        return 1
    if arguments.answered and any(report["answers"] < report["sent"] * 0.99 for report in reports):
        print("keepalives stayed unanswered", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
