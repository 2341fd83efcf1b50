"""``python -m tests.system.channel SCENARIO``: queries, watches and messages on real servers, and their cost.

Each scenario starts servers and a Redis of its own, prints a table and exits with 1 if a promise was broken.
Needs the ``loadtest`` and ``embedded`` extras, and Linux.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.outcome import print_progress
from loadtest.scenario_report import ScenarioReport
from presence.loadtest.server_address import raise_file_limit
from tests.system.channel import flapping, messages, slow, watch

Scenario = Callable[[Any, int], ScenarioReport]

SCENARIOS: dict[str, tuple[type, Scenario, str]] = {
    "watch": (watch.WatchPlan, watch.watch, "who watches sees every change, while workers and Redis fail"),
    "messages": (
        messages.MessagesPlan,
        messages.messages,
        "each message has one outcome, and how many a second",
    ),
    "slow": (slow.SlowPlan, slow.slow, "what watchers that never read cost the server, and the others"),
    "flapping": (flapping.FlappingPlan, flapping.flapping, "who drops and returns all the time is no event"),
}
"""By name: its plan, each field of which is a flag; how it is played; what it shows."""


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.channel", description=__doc__)
    scenarios = parser.add_subparsers(dest="scenario", required=True, metavar="SCENARIO")
    for name, (plan, _, help_text) in SCENARIOS.items():
        add = scenarios.add_parser(name, help=help_text).add_argument
        for field in dataclasses.fields(plan):
            kind, flag = type(field.default), "--" + field.name.replace("_", "-")
            add(flag, type=kind, default=field.default, help=f"default {field.default:,g}")
        add("--seed", type=int, default=1, help="of what is drawn")
        add("--out", type=Path, help="file to write the figures to, as JSON")
    given = vars(parser.parse_args(words))
    scenario, seed, out = (given.pop(name) for name in ("scenario", "seed", "out"))
    plan, play, _ = SCENARIOS[scenario]
    raise_file_limit()
    started = time.monotonic()
    report = play(plan(**given), seed)
    print(report.table())
    if out:
        out.write_text(report.as_json() + "\n")
    print_progress(f"{scenario} took {time.monotonic() - started:.0f} s")
    if report.broken:
        print_progress("\n  ".join(["broken:", *report.broken]))
    print("tests.system.channel: " + ("FAILED" if report.broken else "passed"))
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
