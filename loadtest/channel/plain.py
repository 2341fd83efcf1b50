"""``plain``: what a connection that only beats costs, in this tree and in an older one, in pairs.

The parts of `loadtest.bench` measure both, with this tree's generator. Which of the two is first changes from
pair to pair, for a machine that becomes slower or faster meanwhile does so for both.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.bench import run
from loadtest.bench.dialects import ANSWERED, UNANSWERED
from loadtest.bench.progress import Bar
from loadtest.bench.results import Results
from loadtest.bench.servers import Contender
from loadtest.channel.report import Report

NOW, BEFORE = "now", "before"
HERE = Path(__file__).parents[2]
MORE_MAX = 0.03
ROUNDED = 1  # digits of µs and bytes in the table


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        against: the older tree.
        connections: logged in at once.
        rate: keepalives a second, over all of them.
        seconds: of measuring each kind of keepalive.
        pairs: how many.
    """

    against: Path
    connections: int = 10_000
    rate: float = 3300.0
    seconds: float = 12.0
    pairs: int = 5


@dataclass(frozen=True)
class Side:
    """What one tree cost in one pair.

    Attributes:
        rss_bytes, pss_bytes: of a further connection.
        cpu_us: of a keepalive that wants no answer, and of one that does, µs.
        complaints: why these are not valid.
    """

    rss_bytes: float
    pss_bytes: float
    cpu_us: float
    asking_cpu_us: float
    complaints: list[str]


Pair = dict[str, Side]
MEASURES = {
    "bytes of RSS a connection": "rss_bytes",
    "bytes of PSS a connection": "pss_bytes",
    "µs of CPU a keepalive": "cpu_us",
    "µs of CPU a keepalive that asks": "asking_cpu_us",
}


def contender(name: str, tree: Path) -> Contender:
    """Return the server of a tree.

    Raises:
        SystemExit: Python finds another one there.
    """
    python = ["env", "-C", str(tree), f"PYTHONPATH={tree}", sys.executable]
    look = "import presence, protocol; print(presence.__file__); print(protocol.__file__)"
    found = subprocess.run([*python, "-c", look], capture_output=True, text=True, check=True).stdout
    if any(not Path(line).is_relative_to(tree.resolve()) for line in found.split()):
        raise SystemExit(f"{tree} is no tree of its own: {found}")
    command: Callable[[Path, int], list[str]] = lambda _folder, _port: [  # noqa: E731 - a field's value
        *python,
        *("-m", "presence", "serve", "--no-admin", "--port", "0", "--log-format", "json"),
    ]
    return Contender(name, str(tree), "presence", (UNANSWERED, ANSWERED), command)


def measure(plan: Plan) -> list[Pair]:
    """Measure all pairs."""
    sides = [contender(NOW, HERE), contender(BEFORE, plan.against.resolve())]
    course = run.Plan(plan.connections, (plan.rate,), 1.0, plan.seconds, 0.0, 0.0)
    planned_s = plan.pairs * sum(course.planned_s(side) for side in sides)
    pairs: list[Pair] = []
    with Bar(planned_s) as bar:
        for number in range(plan.pairs):
            results = Results({}, {})
            for side in sides if number % 2 else sides[::-1]:
                run.go_through(side, number + 1, course, results, bar)
            pairs.append({side.name: _side(results, side.name) for side in sides})
    return pairs


def _side(results: Results, name: str) -> Side:
    memory = next(each for each in results.memory if each.server == name)
    cpu = {each.load.kind: each for each in results.cpu if each.server == name}
    complaints = [words for each in cpu.values() for words in each.complaints]
    costs = cpu[UNANSWERED].cpu_us, cpu[ANSWERED].cpu_us
    return Side(memory.rss_bytes, memory.pss_bytes, *costs, complaints)


def read_pairs(paths: Iterable[Path]) -> list[Pair]:
    """Return the pairs of runs before, from their files."""
    return [
        {name: Side(**side) for name, side in pair.items()}
        for path in paths
        for pair in json.loads(path.read_text())["pairs"]
    ]


def judge(plan: Plan, pairs: list[Pair]) -> Report:
    """Compare: of each measure the median of the pairs' ratios."""
    report = Report(
        f"plain: {plan.connections:,} connections, {plan.rate:,.0f} keepalives/s, "
        f"median of {len(pairs)} pairs"
    )
    ratios: dict[str, list[float]] = {}
    for words, name in MEASURES.items():
        now, before = ([getattr(pair[side], name) for pair in pairs] for side in (NOW, BEFORE))
        ratios[name] = [new / old for new, old in zip(now, before, strict=True)]
        ratio = statistics.median(ratios[name])
        report.rows[words] = (
            f"{statistics.median(before):.{ROUNDED}f} before, {statistics.median(now):.{ROUNDED}f} now: "
            f"{ratio - 1:+.1%} ({', '.join(f'{each - 1:+.1%}' for each in sorted(ratios[name]))})"
        )
        if ratio > 1 + MORE_MAX:
            report.broken.append(f"{words}: {ratio - 1:+.1%}")
    for number, pair in enumerate(pairs):
        for name, side in pair.items():
            report.broken += [f"pair {number + 1}, {name}: not valid: {words}" for words in side.complaints]
    report.figures = {
        "pairs": [{name: asdict(side) for name, side in pair.items()} for pair in pairs],
        "ratios": ratios,
    }
    return report
