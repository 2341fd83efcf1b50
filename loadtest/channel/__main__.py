"""``python -m loadtest.channel SCENARIO``: queries, watches and messages on real servers, and what they cost.

Each scenario starts servers and a Redis of its own, prints a table and exits with 1 if a promise was broken.
Needs the ``loadtest`` and ``embedded`` extras, and Linux.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

from loadtest.channel import flapping, messages, slow, watch
from loadtest.channel.report import Report
from loadtest.connection import raise_file_limit
from loadtest.outcome import say

Scenario = Callable[[Any, int], Report]

SCENARIOS: dict[str, tuple[type, Scenario, str]] = {
    "watch": (watch.Plan, watch.watch, "who watches sees every change, while workers and Redis fail"),
    "messages": (messages.Plan, messages.messages, "each message has one outcome, and how many a second"),
    "slow": (slow.Plan, slow.slow, "what watchers that never read cost the server, and the others"),
    "flapping": (flapping.Plan, flapping.flapping, "who drops and returns all the time is no event"),
}
"""By name: its plan, each field of which is a flag; how it is played; what it shows."""


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.channel", description=__doc__)
    scenarios = parser.add_subparsers(dest="scenario", required=True, metavar="SCENARIO")
    for name, (plan, _, help_text) in SCENARIOS.items():
        scenario = scenarios.add_parser(name, help=help_text)
        _add_fields(scenario, plan)
        scenario.add_argument("--seed", type=int, default=1, help="of what is drawn")
        scenario.add_argument("--out", type=Path, help="file to write the figures to, as JSON")
    return parser.parse_args(words)


def _add_fields(parser: argparse.ArgumentParser, plan: type) -> None:
    hints = get_type_hints(plan)
    for field in dataclasses.fields(plan):
        parser.add_argument(
            "--" + field.name.replace("_", "-"),
            type=hints[field.name],
            default=field.default,
            help=f"default {field.default:,g}",
        )


def _plan(kind: type, given: argparse.Namespace) -> Any:
    return kind(**{field.name: getattr(given, field.name) for field in dataclasses.fields(kind)})


def play(given: argparse.Namespace) -> Report:
    """Play what the options say."""
    kind, scenario, _ = SCENARIOS[given.scenario]
    return scenario(_plan(kind, given), given.seed)


def main(words: list[str] | None = None) -> int:
    """Play, print the table, and say what was broken."""
    given = parse(words)
    raise_file_limit()
    begun = time.monotonic()
    report = play(given)
    print(report.table())
    if given.out:
        given.out.write_text(report.as_json() + "\n")
    say(f"{given.scenario} took {time.monotonic() - begun:.0f} s")
    if report.broken:
        say("\n  ".join(["broken:", *report.broken]))
    print("loadtest.channel: " + ("FAILED" if report.broken else "passed"))
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
