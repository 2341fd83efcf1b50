"""``python -m loadtest.operators``: what scrapes, viewers and stuck clients cost the core, µs a keepalive.

One server, whose connections beat at a steady rate all the time. For each kind of looker there are pairs of
stretches, one with it and one without, in turns; what is compared is the processor time of the process that
serves the clients. The ratio is the median of the pairs'. Exits with 1 if a kind costs more than it may.
Needs the ``loadtest`` and ``embedded`` extras, and Linux.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from loadtest import usage
from loadtest.bench.dialects import UNANSWERED
from loadtest.bench.progress import Bar
from loadtest.bench.run import SETTLE_BEATS, SETTLE_RATE, LoadGenerator
from loadtest.bench.servers import Contender, Running, contenders
from loadtest.channel.report import Report
from loadtest.connection import raise_file_limit
from loadtest.operators.lookers import KINDS, SCRAPE, STUCK, VIEWERS, Seen
from loadtest.processes import running_server

MORE_MAX = 0.03
REST_S = 1.5  # between two stretches: lookers come and go
SAMPLES_LEAST = 0.8  # of a viewer, a second: or it has not seen the page live
STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        connections: logged in at once.
        rate: keepalives a second, over all of them.
        seconds: of each stretch.
        pairs: of stretches, for each kind.
        viewers: of the page at once.
    """

    connections: int = 15_000
    rate: float = 15_000.0
    seconds: float = 18.0
    pairs: int = 5
    viewers: int = 50


@dataclass(frozen=True)
class Stretch:
    """What a keepalive cost, µs; and what kept the figure from being one, in words."""

    cpu_us: float
    seen: Seen | None
    complaints: list[str]


class Course:
    """One server, and what it is put through."""

    def __init__(self, plan: Plan, server: Running, operators: tuple[str, int], bar: Bar) -> None:
        self._plan, self._server, self._operators = plan, server, operators
        own: Contender = contenders(64)["presence"]
        self._generator = LoadGenerator(server, own, 0.0, bar)

    def settle(self) -> None:
        """Log everybody in, and let the server adapt to what they send."""
        self._generator.connect(self._plan.connections)
        seconds = SETTLE_BEATS * self._plan.connections / SETTLE_RATE
        self._generator.beat(UNANSWERED, SETTLE_RATE, seconds)

    def stretch(self, kind: str | None) -> Stretch:
        """Measure one stretch, with somebody who looks or without."""
        lookers = self._lookers(kind) if kind else None
        self._generator.beat(UNANSWERED, self._plan.rate, REST_S)
        begun_s = usage.cpu_seconds(self._server.pid)
        report = self._generator.beat(UNANSWERED, self._plan.rate, self._plan.seconds)
        cpu_us = (usage.cpu_seconds(self._server.pid) - begun_s) / report.sent * 1e6
        complaints = report.complaints(UNANSWERED)
        seen = None
        if lookers and kind:
            said, _ = lookers.communicate(timeout=STOP_TIMEOUT_S)
            seen = Seen(**json.loads(said))
            complaints += self._unseen(kind, seen)
        return Stretch(cpu_us, seen, complaints)

    def _lookers(self, kind: str) -> "subprocess.Popen[str]":
        count = self._plan.viewers if kind == VIEWERS else 1
        command = [sys.executable, "-m", "loadtest.operators.lookers"]
        command += [self._operators[0], str(self._operators[1]), kind, str(count)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _unseen(self, kind: str, seen: Seen) -> Iterator[str]:
        """Give what lookers were to see and did not."""
        if kind == SCRAPE and (seen.failed or seen.answers < self._plan.seconds * SAMPLES_LEAST):
            yield f"{seen.answers} scrapes, {seen.failed} failed"
        least = self._plan.viewers * self._plan.seconds * SAMPLES_LEAST
        if kind == VIEWERS and (seen.failed or seen.samples < least):
            yield f"{seen.samples} samples seen by {self._plan.viewers} viewers, {seen.failed} sent away"
        if kind == STUCK and not seen.answers:
            yield "nobody was stuck"

    def close(self) -> None:
        """End the load."""
        self._generator.close()


def measure(plan: Plan, kinds: list[str]) -> dict[str, list[tuple[Stretch, Stretch]]]:
    """Return, by kind, pairs of stretches: without, and with."""
    found: dict[str, list[tuple[Stretch, Stretch]]] = {kind: [] for kind in kinds}
    settle_s = 2 * SETTLE_BEATS * plan.connections / SETTLE_RATE
    with (
        Bar(settle_s + 2 * len(kinds) * plan.pairs * (plan.seconds + REST_S)) as bar,
        running_server("--admin", "127.0.0.1:0") as served,
    ):
        operators = urlsplit(served.said("operators")[-1]["url"])
        at = operators.hostname or "", operators.port or 0
        course = Course(plan, Running(served.process.pid, *served.address), at, bar)
        try:
            bar.begin(f"{plan.connections:,} connections", settle_s)
            course.settle()
            for number in range(plan.pairs):
                for kind in kinds:
                    bar.begin(f"pair {number + 1}: {kind}", 2 * (plan.seconds + REST_S))
                    stretches = {who: course.stretch(who) for who in ((None, kind), (kind, None))[number % 2]}
                    found[kind].append((stretches[None], stretches[kind]))
                    bar.say(f"pair {number + 1}: {kind}: {_pair(*found[kind][-1])}")
        finally:
            course.close()
    return found


def _pair(without: Stretch, beside: Stretch) -> str:
    words = "; ".join([*without.complaints, *beside.complaints])
    return f"{without.cpu_us:.2f} µs without, {beside.cpu_us:.2f} with" + (f" (! {words})" if words else "")


def judge(plan: Plan, found: dict[str, list[tuple[Stretch, Stretch]]]) -> Report:
    """Compare: of each kind the median of the pairs' ratios."""
    report = Report(
        f"operators: {plan.connections:,} connections, {plan.rate:,.0f} keepalives/s, µs of CPU a keepalive"
    )
    what = {SCRAPE: "a scrape a second", VIEWERS: f"{plan.viewers} viewers", STUCK: "stuck clients"}
    for kind, pairs in found.items():
        ratios = sorted(beside.cpu_us / without.cpu_us for without, beside in pairs)
        ratio = statistics.median(ratios)
        costs = [statistics.median(each.cpu_us for each in side) for side in zip(*pairs, strict=True)]
        spread = ", ".join(f"{each - 1:+.1%}" for each in ratios)
        report.rows[what[kind]] = f"{costs[0]:.2f} without, {costs[1]:.2f} with: {ratio - 1:+.1%} ({spread})"
        report.figures[kind] = {
            "ratios": ratios,
            "cpu_us": [[each.cpu_us for each in pair] for pair in pairs],
            "seen": [vars(pair[1].seen) if pair[1].seen else None for pair in pairs],
        }
        if ratio > 1 + MORE_MAX:
            report.broken.append(f"{what[kind]}: {ratio - 1:+.1%}")
        for number, pair in enumerate(pairs):
            report.broken += [
                f"{what[kind]}, pair {number + 1}: not valid: {words}"
                for each in pair
                for words in each.complaints
            ]
    return report


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.operators", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all by default")
    parser.add_argument("--connections", type=int, default=Plan.connections, help="logged in at once")
    parser.add_argument("--rate", type=float, default=Plan.rate, help="keepalives a second, over all of them")
    parser.add_argument("--seconds", type=float, default=Plan.seconds, help="of each stretch")
    parser.add_argument("--pairs", type=int, default=Plan.pairs, help="of stretches, for each kind")
    parser.add_argument("--viewers", type=int, default=Plan.viewers, help="of the page at once")
    parser.add_argument("--out", type=Path, help="file to write the figures to, as JSON")
    given = parser.parse_args(words)
    if unknown := set(given.kinds) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    return given


def main(words: list[str] | None = None) -> int:
    """Measure, print the table, and say what was broken."""
    given = parse(words)
    usage.require_linux()
    raise_file_limit()
    plan = Plan(given.connections, given.rate, given.seconds, given.pairs, given.viewers)
    begun = time.monotonic()
    report = judge(plan, measure(plan, given.kinds or list(KINDS)))
    if given.out:
        given.out.write_text(report.as_json())
    print(report.table())
    print(f"\n{time.monotonic() - begun:.0f} s", file=sys.stderr)
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
