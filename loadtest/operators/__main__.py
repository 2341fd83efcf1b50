"""``python -m loadtest.operators``: what scrapes, viewers and stuck clients cost the core, µs a keepalive.

One server, whose connections send keepalives at a steady rate all the time. For each kind of looker there
are pairs of stretches, one with it and one without, in turns; what is compared is the processor time of the
process that serves the clients. The ratio is the median of the pairs'. Exits with 1 if a kind costs more than
it may. Needs the ``loadtest`` and ``embedded`` extras, and Linux.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from loadtest import usage
from loadtest.bench.generator import UNANSWERED, LoadGenerator, settle_s
from loadtest.bench.progress import Bar
from loadtest.operators.lookers import KINDS, SCRAPE, STUCK, VIEWERS, Seen
from loadtest.report import ScenarioReport
from loadtest.servers import PresenceServer
from presence.loadtest.connection import raise_file_limit

MAX_EXTRA_COST = 0.03
REST_S = 1.5  # between two stretches: lookers come and go
MIN_SAMPLES_PER_S = 0.8  # of a viewer, a second: or it has not seen the page live
STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class OperatorsPlan:
    """What is measured."""

    connections: int = 15_000  # logged in together
    rate: float = 15_000.0  # keepalives a second, over all of them
    # Of each stretch; and how many pairs of stretches there are for each kind
    seconds: float = 18.0
    pairs: int = 5
    viewers: int = 50  # of the page together


@dataclass(frozen=True)
class Stretch:
    """The CPU of a keepalive in µs, and what makes the figure invalid."""

    cpu_us: float
    seen: Seen | None = None
    complaints: list[str] = field(default_factory=list)


class Course:
    """One server under load, with viewers or without."""

    def __init__(
        self, plan: OperatorsPlan, pid: int, generator: LoadGenerator, operators: tuple[str, int]
    ) -> None:
        self._plan, self._pid, self._generator, self._operators = plan, pid, generator, operators

    def stretch(self, kind: str | None) -> Stretch:
        """Measure one stretch, with a kind of viewer or without."""
        plan, beat = self._plan, self._generator.send_keepalives
        viewers = self._start_viewers(kind) if kind else None
        beat(UNANSWERED, plan.rate, REST_S)
        started_s = usage.cpu_seconds(self._pid)
        report = beat(UNANSWERED, plan.rate, plan.seconds)
        cpu_us = (usage.cpu_seconds(self._pid) - started_s) / report.sent * 1e6
        if not viewers or not kind:
            return Stretch(cpu_us, None, report.complaints(UNANSWERED))
        output, _ = viewers.communicate(timeout=STOP_TIMEOUT_S)
        seen = Seen(**json.loads(output))
        return Stretch(cpu_us, seen, [*report.complaints(UNANSWERED), *self._missed(kind, seen)])

    def _start_viewers(self, kind: str) -> "subprocess.Popen[str]":
        count = self._plan.viewers if kind == VIEWERS else 1
        words = map(str, (*self._operators, kind, count))
        command = [sys.executable, "-m", "loadtest.operators.lookers", *words]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _missed(self, kind: str, seen: Seen) -> Iterator[str]:
        """Yield what viewers should have seen and did not."""
        least = self._plan.seconds * MIN_SAMPLES_PER_S
        if kind == SCRAPE and (seen.failed or seen.answers < least):
            yield f"{seen.answers} scrapes, {seen.failed} failed"
        if kind == VIEWERS and (seen.failed or seen.samples < self._plan.viewers * least):
            yield f"{seen.samples} samples seen by {self._plan.viewers} viewers, {seen.failed} sent away"
        if kind == STUCK and not seen.answers:
            yield "no client was stuck"


def measure(plan: OperatorsPlan, kinds: list[str]) -> dict[str, list[tuple[Stretch, Stretch]]]:
    """Return, by kind, pairs of stretches: without, and with."""
    found: dict[str, list[tuple[Stretch, Stretch]]] = {kind: [] for kind in kinds}
    arrival_s = 2 * settle_s(plan.connections)
    with (
        Bar(arrival_s + 2 * len(kinds) * plan.pairs * (plan.seconds + REST_S)) as bar,
        PresenceServer("--admin", "127.0.0.1:0", forward_errors=True) as served,
    ):
        operators = urlsplit(served.logged("admin HTTP server starting")[-1]["url"])
        with closing(LoadGenerator(served.address, "presence", 0.0, bar)) as generator:
            course = Course(
                plan, served.process.pid, generator, (operators.hostname or "", operators.port or 0)
            )
            bar.begin(f"{plan.connections:,} connections", arrival_s)
            generator.connect(plan.connections)
            generator.settle(UNANSWERED, plan.connections)  # until the server has adapted
            for number in range(plan.pairs):
                for kind in kinds:
                    bar.begin(f"pair {number + 1}: {kind}", 2 * (plan.seconds + REST_S))
                    turns = ((None, kind), (kind, None))[number % 2]
                    stretches = {who: course.stretch(who) for who in turns}
                    found[kind].append((stretches[None], stretches[kind]))
                    costs = "{:.2f} µs without, {:.2f} with".format(
                        *(each.cpu_us for each in found[kind][-1])
                    )
                    bar.print_line(f"pair {number + 1}: {kind}: {costs}")
    return found


def judge(plan: OperatorsPlan, found: dict[str, list[tuple[Stretch, Stretch]]]) -> ScenarioReport:
    """Return, per kind, the median of the pairs' ratios."""
    report = ScenarioReport(
        f"operators: {plan.connections:,} connections, {plan.rate:,.0f} keepalives/s, µs of CPU a keepalive"
    )
    words = {SCRAPE: "a scrape a second", VIEWERS: f"{plan.viewers} viewers", STUCK: "stuck clients"}
    for kind, pairs in found.items():
        what = words[kind]
        ratios = sorted(beside.cpu_us / without.cpu_us for without, beside in pairs)
        ratio = statistics.median(ratios)
        costs = [statistics.median(each.cpu_us for each in side) for side in zip(*pairs, strict=True)]
        spread = ", ".join(f"{each - 1:+.1%}" for each in ratios)
        report.rows[what] = f"{costs[0]:.2f} without, {costs[1]:.2f} with: {ratio - 1:+.1%} ({spread})"
        report.metrics[kind] = {
            "ratios": ratios,
            "cpu_us": [[each.cpu_us for each in pair] for pair in pairs],
            "seen": [vars(beside.seen) if beside.seen else None for _, beside in pairs],
        }
        report.broken += [f"{what}: {ratio - 1:+.1%}"] if ratio > 1 + MAX_EXTRA_COST else []
        report.broken += [
            f"{what}, pair {number}: not valid: {complaint}"
            for number, pair in enumerate(pairs, 1)
            for each in pair
            for complaint in each.complaints
        ]
    return report


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.operators", description=__doc__)
    add = parser.add_argument
    add("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all by default")
    add("--connections", type=int, default=OperatorsPlan.connections, help="logged in at once")
    add("--rate", type=float, default=OperatorsPlan.rate, help="keepalives a second, over all of them")
    add("--seconds", type=float, default=OperatorsPlan.seconds, help="of each stretch")
    add("--pairs", type=int, default=OperatorsPlan.pairs, help="of stretches, for each kind")
    add("--viewers", type=int, default=OperatorsPlan.viewers, help="of the page at once")
    add("--out", type=Path, help="file to write the figures to, as JSON")
    given = parser.parse_args(words)
    if unknown := set(given.kinds) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    return given


def main(words: list[str] | None = None) -> int:
    given = parse(words)
    usage.require_linux()
    raise_file_limit()
    plan = OperatorsPlan(given.connections, given.rate, given.seconds, given.pairs, given.viewers)
    report = judge(plan, measure(plan, given.kinds or list(KINDS)))
    if given.out:
        given.out.write_text(report.as_json())
    print(report.table())
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
