"""``python -m loadtest.nodes [SCENARIO…]``: what happens when nodes die, stop, are cut off, or Redis forgets.

Starts real servers on a real Redis, does that to them, and holds every event against what the users truly
did. Without a name all scenarios are played, one after the other; the cases of one side by side. Prints a
table. The exit status is 1 if a promise was broken or if nothing was injected. Needs the ``loadtest`` and
``embedded`` extras, and Linux.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from loadtest.connection import raise_file_limit
from loadtest.nodes.kill import kill
from loadtest.nodes.loss import losses
from loadtest.nodes.outage import SECONDS as OUTAGE_S
from loadtest.nodes.outage import outages
from loadtest.nodes.outcome import Outcome, say, table
from loadtest.nodes.rolling import restarts
from loadtest.nodes.serving import Setup
from loadtest.nodes.stall import SECONDS as STALLS_S
from loadtest.nodes.stall import stalls
from loadtest.nodes.sweeper import sweeper

Scenario = Callable[[Setup, argparse.Namespace], list[Outcome]]

SCENARIOS: dict[str, Scenario] = {
    "kill": lambda setup, given: [kill(setup, users=given.users or 2000, away_s=given.away)],
    "sweeper": lambda setup, given: [sweeper(setup, users=given.users or 15_000, away_s=given.away)],
    "stall": lambda setup, given: stalls(setup, users=given.users or 200, seconds=given.stalls),
    "outage": lambda setup, given: outages(setup, users=given.users or 600, seconds=given.outage),
    "loss": lambda setup, given: losses(setup, users=given.users or 1000),
    "rolling": lambda setup, given: restarts(setup, users=given.users or 5000),
}


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.nodes", description=__doc__)
    add = parser.add_argument
    add("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; all without a name")
    add("--idle-timeout", type=float, default=30.0, help="the servers' T, seconds")
    add("--lease", type=float, default=10.0, help="the servers' lease, seconds")
    add("--tick", type=float, default=1.0, help="the servers' tick, seconds")
    add("--shards", type=int, default=1, help="the servers' shards")
    add(
        "--users",
        type=int,
        default=0,
        help="of each case; without it as many as each scenario has for itself",
    )
    add("--away", type=float, default=10.0, help="seconds in which half of a killed worker's users come back")
    add("--stalls", type=float, nargs="+", default=STALLS_S, help="seconds for which servers are stopped")
    add("--outage", type=float, default=OUTAGE_S, help="seconds for which Redis is away")
    add("--out", type=Path, help="file to write the table to")
    arguments = parser.parse_args(words)
    if unknown := {*arguments.scenarios} - {*SCENARIOS}:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    return arguments


def main(words: list[str] | None = None) -> int:
    """Play, print the table, and say what was broken."""
    arguments = parse(words)
    raise_file_limit()
    setup = Setup(arguments.idle_timeout, arguments.lease, arguments.tick, arguments.shards)
    outcomes: list[Outcome] = []
    for name in arguments.scenarios or SCENARIOS:
        begun = time.monotonic()
        outcomes += SCENARIOS[name](setup, arguments)
        say(f"{name} took {time.monotonic() - begun:.0f} s")
    text = table(outcomes)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    failed = [each for each in outcomes if each.failures]
    for each in failed:
        say("\n  ".join([f"{each.name}:", *each.failures]))
    print("loadtest.nodes: " + (f"FAILED: {len(failed)} of {len(outcomes)}" if failed else "passed"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
