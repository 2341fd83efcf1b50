"""``python -m loadtest.chaos``: everything goes wrong at once, and every event is judged.

Starts nodes on a Redis of their own, with proxies on all paths, and clients who come, go, move and fall
silent. What is done to all of them is drawn from a seed, in storms of faults; after each storm all must come
to rest. The exit status is 1 if a promise was broken, or if a kind of fault did not take place. With
`--guard` the servers lack one of their guards, and the exit status is 1 if nothing was broken. Needs the
`loadtest` and `embedded` extras, and Linux.
"""

import argparse
import dataclasses
import logging
import signal
import sys
import time
from pathlib import Path

from loadtest.chaos.options import Options
from loadtest.chaos.plan import STORM_S, Kind, rounds_in, times_each
from loadtest.chaos.report import failures, stories, table
from loadtest.chaos.run import play
from loadtest.chaos.unguarded import GUARDS
from loadtest.connection import raise_file_limit
from loadtest.nodes.outcome import say
from loadtest.nodes.serving import Setup as Serve

ENDED = 128 + signal.SIGTERM
SWITCH_S = 0.001  # the threads of clients, proxies and readers take turns often


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.chaos", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=int(time.time()), help="what is done and when is drawn from it")
    add("--minutes", type=float, default=30.0, help="how long, roughly")
    add("--workers", type=int, default=3, help="nodes, each a server of its own")
    add("--clients", type=int, default=1000)
    add(
        "--guard",
        choices=GUARDS,
        default="",
        help="switch a guard of the servers off, and stop when that is found",
    )
    add(
        "--kinds",
        nargs="+",
        metavar="KIND",
        help=f"of faults: {', '.join(kind.name.lower() for kind in Kind)}",
    )
    add("--times", type=int, default=0, help="how often each kind; without it 10 in 30 minutes")
    add("--storm", type=float, default=STORM_S, help="seconds of each storm")
    add("--idle-timeout", type=float, default=5.0, help="the servers' T, seconds")
    add("--lease", type=float, default=2.0, help="the servers' lease, seconds")
    add("--tick", type=float, default=0.5, help="the servers' tick, seconds")
    add("--grace", type=float, default=1.5, help="the servers' grace after a lost connection, seconds")
    add("--shards", type=int, default=2, help="the servers' shards")
    add("--out", type=Path, help="file to write the report to")
    arguments = parser.parse_args(words)
    known = {kind.name.lower(): kind for kind in Kind}
    if unknown := {*(arguments.kinds or ())} - {*known}:
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    arguments.kinds = [known[name] for name in arguments.kinds or known]
    return arguments


def options_of(arguments: argparse.Namespace) -> Options:
    """Return what a run is made of."""
    serve = Serve(arguments.idle_timeout, arguments.lease, arguments.tick, arguments.shards)
    options = Options(
        seed=arguments.seed,
        rounds=1,
        times=arguments.times or times_each(arguments.minutes),
        storm_s=arguments.storm,
        nodes=arguments.workers,
        clients=arguments.clients,
        kinds=arguments.kinds,
        serve=serve,
        grace=arguments.grace,
        guard=arguments.guard,
    )
    rounds = rounds_in(arguments.minutes, options.calm_s, arguments.storm)
    return dataclasses.replace(options, rounds=rounds)


def main(words: list[str] | None = None) -> int:
    """Play, print what came of it, and say what was broken."""
    arguments = parse(words)
    raise_file_limit()
    sys.setswitchinterval(SWITCH_S)
    logging.getLogger("presence.subscriber").setLevel(logging.ERROR)  # it loses Redis all the time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ENDED))  # and all processes with it
    options = options_of(arguments)
    result = play(options)
    text = table(options, result)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    if options.guard:
        is_found = bool(result.findings)
        for story in stories(result):
            say(story)
        print(
            "loadtest.chaos: "
            + (
                f"{options.guard} is missed after {result.found_s:.0f} s"
                if is_found
                else f"FAILED: {options.guard} is not missed"
            )
        )
        return 0 if is_found else 1
    failed = failures(options, result)
    for failure in failed:
        say(failure)
    print("loadtest.chaos: " + (f"FAILED, seed {options.seed}" if failed else f"passed, seed {options.seed}"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
