"""One technique in a process of its own: ``python -m loadtest.compare.child KIND FOLDER``.

The folder holds the schedule, and takes the ledger. It says ``ready``, and is told on standard input at which
monotonic time second 0 is; a line of JSON on standard output is the report.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import trio

from loadtest.compare import breaking, workload
from loadtest.compare.ledger import Ledger
from loadtest.compare.meter import Meter
from loadtest.compare.opening import opened
from loadtest.compare.play import Player, Report


async def _play(given: argparse.Namespace) -> Report:
    schedule = workload.read(given.folder)
    print("ready", flush=True)
    begin = float(sys.stdin.readline())
    ledger = Ledger(given.folder, schedule.plan.users)
    meter = Meter(given.redis)
    async with opened(given.kind, schedule.plan.idle_timeout_s, given.redis) as technique:
        player = Player(schedule, technique, ledger, meter, batched=given.batched, resumed=given.resumed)
        report = await player.run(begin)
    meter.close()
    ledger.close()
    return report


async def _break(given: argparse.Namespace) -> breaking.Breaking:
    plan = workload.read_plan(given.folder)
    async with opened(given.kind, plan.idle_timeout_s, given.redis) as technique:
        return await breaking.broken(technique, plan, given.seconds, batched=given.batched)


def main() -> None:
    """Play, and print what was measured."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.compare.child", description=__doc__)
    parser.add_argument("kind")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--redis", default="", metavar="URL")
    parser.add_argument("--batched", action="store_true", help="touches that are due together in one call")
    parser.add_argument("--resumed", action="store_true", help="after a kill: what was due before is lost")
    parser.add_argument("--breaking", action="store_true", help="raise the rate until it cannot keep up")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each rate, with --breaking (2)")
    given = parser.parse_args()
    report = asdict(trio.run(_break, given)) if given.breaking else asdict(trio.run(_play, given))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
