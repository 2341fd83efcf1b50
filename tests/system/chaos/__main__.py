"""``python -m tests.system.chaos``: everything goes wrong at once, and every event is judged.

Starts nodes on a Redis of their own, with proxies on all paths, and clients who come, go, move and fall
silent. What is done to all of them is drawn from a seed, in storms of faults; after each storm all must come
to rest. With `--plan` one fault comes after another, each by itself, and what is promised of it is measured.
The exit status is 1 if a promise was broken, or if a kind of fault did not take place. With
`--guard` the servers lack one of their guards, or the judge gets false reports, and the exit status
is 1 if that was not found. Needs the `loadtest` and `embedded` extras, and Linux.
"""

import argparse
import dataclasses
import logging
import signal
import sys
import time
from pathlib import Path

from loadtest.outcome import print_progress
from loadtest.servers import Setup
from loadtest.unguarded import GUARDS
from presence.loadtest.server_address import raise_file_limit
from tests.system.chaos.libraries import LANGUAGES, missing_programs
from tests.system.chaos.misreports import MISREPORTS, TOO_LATE
from tests.system.chaos.plan import PLANS, STORM_FAULTS, STORM_S, rounds_in, times_each
from tests.system.chaos.report import ChaosResult, Options
from tests.system.chaos.run import play

STORM = Setup(idle_timeout=5.0, lease=2.0, tick=0.5, shards=2)  # so that much happens
NODES = 3
CLIENTS = 1000
LIBRARY_CLIENTS = 12  # of each language
ENDED = 128 + signal.SIGTERM
SWITCH_S = 0.001  # the threads of clients, proxies and readers take turns often


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.system.chaos", description=__doc__)
    add = parser.add_argument
    plans = "; ".join(f"{name}: {plan.description}" for name, plan in PLANS.items())
    known = {kind.name.lower(): kind for kind in STORM_FAULTS}
    add("--seed", type=int, default=int(time.time()), help="what is done and when is drawn from it")
    add("--minutes", type=float, default=30.0, help="how long, roughly")
    add("--workers", type=int, default=0, help="nodes, each a server of its own; 3, or those of the plan")
    add("--clients", type=int, default=0, help="1,000, or those of the plan")
    add("--plan", nargs="+", default=(), choices=PLANS, help=f"single faults instead of storms: {plans}")
    add("--longest", type=float, default=0.0, help="seconds that a fault of a plan may last at most")
    add(
        "--guard",
        choices=(*GUARDS, MISREPORTS),
        default="",
        help="switch a guard off, or misreport, and stop when that is found",
    )
    add("--kinds", nargs="+", choices=known, default=[*known], metavar="KIND", help=f"of {', '.join(known)}")
    add("--times", type=int, default=0, help="how often each kind; without it 10 in 30 minutes")
    add("--storm", type=float, default=STORM_S, help="seconds of each storm")
    add("--idle-timeout", type=float, help="the servers' T, seconds: 5, or 30 in a plan")
    add("--lease", type=float, help="the servers' lease: 2, or 10 in a plan")
    add("--tick", type=float, help="the servers' tick: 0.5, or 1 in a plan")
    add("--grace", type=float, default=1.5, help="the servers' grace after a lost connection, seconds")
    add("--shards", type=int, default=0, help="the servers' shards: 2, or 1 in a plan, 16 on a cluster")
    add("--library-clients", type=int, default=LIBRARY_CLIENTS, help="in each language (12); 0: none")
    add("--without", nargs="+", default=(), choices=LANGUAGES, help="languages to leave out")
    add(
        "--versions",
        nargs="+",
        default=(),
        metavar="PYTHON",
        help="of other versions, that nodes have in turn",
    )
    add("--out", type=Path, help="file to write the report to")
    arguments = parser.parse_args(words)
    arguments.kinds = [known[name] for name in arguments.kinds]
    arguments.languages = [name for name in LANGUAGES if name not in arguments.without]
    if arguments.plan or arguments.guard or arguments.versions or not arguments.library_clients:
        arguments.languages = []  # these need a user's story, or an older protocol
    if missing := missing_programs(arguments.languages):
        parser.error(f"not on PATH: {', '.join(missing)}; --without leaves a language out")
    return arguments


def options_of(arguments: argparse.Namespace, name: str = "") -> Options:
    """Return the options of a run of storms, or of the plan with that name."""
    plan = PLANS[name] if name else None
    usual = plan.setup if plan else STORM
    given = {each: getattr(arguments, each) for each in ("idle_timeout", "lease", "tick", "grace", "shards")}
    options = Options(
        seed=arguments.seed,
        rounds=1,
        times=arguments.times or times_each(arguments.minutes),
        storm_s=arguments.storm,
        nodes=arguments.workers or (plan.nodes if plan else NODES),
        clients=arguments.clients or (plan.clients if plan else CLIENTS),
        kinds=plan.kinds if plan else [] if arguments.guard == MISREPORTS else arguments.kinds,
        setup=dataclasses.replace(usual, **{name: value for name, value in given.items() if value}),
        guard=arguments.guard,
        plan=plan,
        longest_s=arguments.longest,
        pythons=(*arguments.versions, sys.executable),
        languages=arguments.languages,
        library_clients=arguments.library_clients,
    )
    rounds = rounds_in(arguments.minutes, options.calm_s, arguments.storm)
    return dataclasses.replace(options, rounds=rounds)


def main(words: list[str] | None = None) -> int:
    arguments = parse(words)
    raise_file_limit()
    sys.setswitchinterval(SWITCH_S)
    logging.getLogger("presence.subscriber").setLevel(logging.ERROR)  # it loses Redis all the time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ENDED))  # and all processes with it
    runs = [options_of(arguments, name) for name in arguments.plan or [""]]
    texts, failed, late = [], [], []
    for options in runs:
        result = play(options)
        texts.append(result.table())
        print(texts[-1], flush=True)
        if options.plan and options.guard == MISREPORTS:
            late += [each for row in result.measured for each in row.broken]
        else:
            failed += _missed(result) if options.guard else result.failures()
    if arguments.plan and arguments.guard == MISREPORTS:
        failed = [f"not found: {each}" for each in TOO_LATE if not any(each in broken for broken in late)]
    if arguments.out:
        arguments.out.write_text("\n\n".join(texts) + "\n")
    for failure in failed:
        print_progress(failure)
    print(f"tests.system.chaos: {'FAILED' if failed else 'passed'}, seed {arguments.seed}")
    return 1 if failed else 0


def _missed(result: ChaosResult) -> list[str]:
    """Return a failure if no promise was broken although a guard was off."""
    for story in result.stories():
        print_progress(story)
    guard = result.options.guard
    if result.unfound:
        return result.unfound
    if result.found_s is None:
        return [f"{guard} is not missed"]
    print(f"tests.system.chaos: {guard} is missed after {result.found_s:.0f} s")
    return []


if __name__ == "__main__":
    sys.exit(main())
