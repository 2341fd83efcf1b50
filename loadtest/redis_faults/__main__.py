"""``python -m loadtest.redis_faults [CASE…]``: what is told when Redis fails, in all the ways it can.

Starts three nodes on a real Redis, or on a Redis Cluster of real processes, does that to it while users come,
go, move and fall silent, and holds every event against what they truly did. Without a name all cases are
played, some side by side. Prints a table. The exit status is 1 if a promise was broken, or if a fault did not
take place. Needs the ``loadtest`` and ``embedded`` extras, and Linux.
"""

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple

from loadtest.connection import raise_file_limit
from loadtest.nodes.outage import frozen, killed
from loadtest.nodes.outcome import Outcome, say, table
from loadtest.nodes.serving import Setup
from loadtest.nodes.trial import Fault, attempt
from loadtest.redis_faults.between import crashed, failed_over, replies_lost, slow
from loadtest.redis_faults.clustered import (
    SHARDS,
    moved_at_once,
    moved_by_key,
    primaries_replaced,
    primary_killed,
    primary_stopped,
)
from loadtest.redis_faults.plain import out_of_memory, restarted_empty, scripts_flushed

STORY_S: Final = 20.0  # a fault that is shorter strikes as it begins


class Case(NamedTuple):
    """A fault: in words, made how, at work for how many seconds, on how many shards."""

    title: str
    make: Callable[[], AbstractContextManager[Fault]]
    seconds: float
    shards: int = 1


CASES: dict[str, Case] = {
    "killed": Case("Redis killed, and back with its data", killed, 60.0),
    "stopped": Case("Redis stopped (SIGSTOP)", frozen, 20.0),
    "slow": Case("Redis slow: 200 ms a call", slow, 20.0),
    "empty": Case("Redis killed, and back empty", restarted_empty, 3.0),
    "lost": Case("reply lost after the call was carried out", replies_lost, 20.0),
    "flush": Case("SCRIPT FLUSH in a loop", scripts_flushed, 20.0),
    "memory": Case("out of memory", out_of_memory, 20.0),
    "failover": Case("failover, the old one goes on as a replica", failed_over, 20.0),
    "crash": Case("failover, the old one was killed", crashed, 20.0),
    "primary": Case(
        "cluster of 3 + 3: a primary killed, its replica takes over", primary_killed, 20.0, SHARDS
    ),
    "handover": Case("cluster of 3 + 3: primaries hand over, one by one", primaries_replaced, 20.0, SHARDS),
    "down": Case("cluster of 3: a primary stopped", primary_stopped, 20.0, SHARDS),
    "keys": Case("cluster: slots move key by key", moved_by_key, 20.0, SHARDS),
    "slots": Case("cluster: slots move at once", moved_at_once, 20.0, SHARDS),
}


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.redis_faults", description=__doc__)
    add = parser.add_argument
    add("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all without a name")
    add("--idle-timeout", type=float, default=30.0, help="the servers' T, seconds")
    add("--lease", type=float, default=10.0, help="the servers' lease, seconds")
    add("--tick", type=float, default=1.0, help="the servers' tick, seconds")
    add("--users", type=int, default=700, help="of each case")
    add("--seconds", type=float, default=0.0, help="for which each fault is at work; without it its own")
    add("--jobs", type=int, default=3, help="cases played at a time")
    add("--out", type=Path, help="file to write the table to")
    arguments = parser.parse_args(words)
    if unknown := {*arguments.cases} - {*CASES}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    return arguments


def play(name: str, given: argparse.Namespace) -> Outcome:
    """Play one case."""
    case, begun = CASES[name], time.monotonic()
    setup = Setup(given.idle_timeout, given.lease, given.tick, case.shards)
    seconds = given.seconds or case.seconds
    title = f"{case.title}, {seconds:g} s"
    story_s = max(seconds, given.seconds or STORY_S)
    outcome = attempt(title, case.make, setup, users=given.users, seconds=seconds, story_s=story_s)
    say(f"{name} took {time.monotonic() - begun:.0f} s")
    return outcome


def main(words: list[str] | None = None) -> int:
    """Play, print the table, and say what was broken."""
    arguments = parse(words)
    raise_file_limit()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        outcomes = list(pool.map(lambda name: play(name, arguments), arguments.cases or CASES))
    text = table(outcomes)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    failed = [each for each in outcomes if each.failures]
    for each in failed:
        say("\n  ".join([f"{each.name}:", *each.failures]))
    print("loadtest.redis_faults: " + (f"FAILED: {len(failed)} of {len(outcomes)}" if failed else "passed"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
