"""``python -m loadtest.compare``: idle detection by each technique, on one workload, in real time.

Each technique at each size has a process, and if it needs one a Redis, of its own. All play one schedule,
drawn from a seed: users beat each 0.4 T, a tenth of them falls silent (part `play`). Part `lose` kills the
process, or Redis, meanwhile; `break` raises the rate until a technique cannot keep up. Needs Linux and the
``loadtest`` and ``embedded`` extras.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from loadtest.bench import measures
from loadtest.compare import plot, report, results, trials
from loadtest.compare.technique import IN_REDIS, NAMES, NOTHING
from loadtest.compare.trials import FAULTS, PROCESS, Trial
from loadtest.compare.workload import Plan, Schedule, draw
from loadtest.nodes.outcome import say

SIZES: Final = (1_000, 10_000, 100_000)
BATCHED: Final = ("wheel", *IN_REDIS)  # those whose API takes many touches at once
LOSS_USERS: Final = 1_000
LOSS_SHARE: Final = 0.3  # of them falls silent
LOSS_TIMES: Final = 19 / 6  # of T: 95 s of 30
BREAK_S: Final = 2.0  # of each rate


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.compare", description=__doc__)
    add = parser.add_argument
    add("--users", type=int, nargs="+", default=SIZES, help="N, each in turn (1000 10000 100000)")
    add("--kinds", nargs="+", choices=NAMES, default=list(NAMES), metavar="KIND", help=", ".join(NAMES))
    add("--idle-timeout", type=float, default=30.0, metavar="S", help="T (30); all else scales with it")
    add("--seconds", type=float, default=0.0, help="length of a run (2 T)")
    add("--seed", type=int, default=1, help="draws who beats when, and who falls silent (1)")
    add(
        "--parts",
        nargs="*",
        choices=PARTS,
        default=list(PARTS),
        help="what is done; none with --add: tables only",
    )
    add("--break-seconds", type=float, default=BREAK_S, metavar="S", help="of each rate (2); at least 1")
    add("--single", action="store_true", help="leave out the runs in which touches are made together")
    add("--faults", nargs="+", choices=FAULTS, default=FAULTS, metavar="FAULT", help="; ".join(FAULTS))
    add("--add", type=Path, metavar="JSON", help="add to the rows of a run before")
    add("--out", type=Path, metavar="FILE", help="Markdown; the rows go beside it, as .json")
    add("--plot", type=Path, metavar="PNG", help="cost and error against N")
    return parser.parse_args(words)


def _play(given: argparse.Namespace, found: results.Results) -> None:
    """Play all kinds at all sizes."""
    for users in given.users:
        seconds = given.seconds or 2 * given.idle_timeout
        schedule = draw(Plan(users, given.idle_timeout, seconds, seed=given.seed))
        kinds = [NOTHING, *given.kinds]
        wanted = [Trial(kind, users) for kind in kinds]
        if not given.single:
            wanted += [Trial(kind, users, batched=True) for kind in kinds if kind in (NOTHING, *BATCHED)]
        for some in trials.rounds(
            trial
            for trial in wanted
            if trial.kind != NOTHING or not found.played(NOTHING, users, batched=trial.batched)
        ):
            say(f"{users:,} users, {seconds:g} s: {', '.join(map(_name, some))}")
            _abreast(some, schedule, found)


def _abreast(some: Sequence[Trial], schedule: Schedule, found: results.Results) -> None:
    with ThreadPoolExecutor(len(some)) as pool:
        for row in pool.map(partial(trials.play, schedule=schedule), some):
            found.add(row)


def _lose(given: argparse.Namespace, found: results.Results) -> None:
    """Kill processes and servers under some users; all at a time, since they do little."""
    users = min(LOSS_USERS, *given.users)
    plan = Plan(users, given.idle_timeout, LOSS_TIMES * given.idle_timeout, LOSS_SHARE, given.seed)
    schedule = draw(plan)
    all_of_them = [
        Trial(kind, users, fault=fault)
        for fault in given.faults
        for kind in given.kinds
        if fault == PROCESS or kind in IN_REDIS
    ]
    for some in trials.rounds(all_of_them, abreast=10 * users):
        say(f"{plan.seconds:g} s: {', '.join(map(_name, some))}")
        _abreast(some, schedule, found)


def _break(given: argparse.Namespace, found: results.Results) -> None:
    """Find the rate at which each breaks, at the largest size."""
    users = max(given.users)
    plan = Plan(users, given.idle_timeout, 2 * given.idle_timeout, seed=given.seed)
    for kind in given.kinds:
        for batched in (False, True) if kind in BATCHED and not given.single else (False,):
            trial = Trial(kind, users, batched)
            row = trials.find_breaking(trial, plan, given.break_seconds)
            say(f"{_name(trial)} at {users:,} users: {row['breaking']}")
            found.add(row)


PARTS: Final[dict[str, Callable[[argparse.Namespace, results.Results], None]]] = {
    "play": _play,
    "lose": _lose,
    "break": _break,
}


def _name(trial: Trial) -> str:
    return trial.kind + (" batched" if trial.batched else "") + (f" ({trial.fault})" if trial.fault else "")


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, write; exit 1 if a technique ended with an error."""
    measures.require_linux()
    given = parse(words)
    found = results.read(given.add) if given.add else results.Results(measures.machine())
    for part in given.parts:
        begun = time.monotonic()
        PARTS[part](given, found)
        say(f"{part} took {time.monotonic() - begun:.0f} s")
    text = report.whole(found)
    print(text)
    if given.out:
        given.out.write_text(text)
        found.write(given.out.with_suffix(".json"))
    if given.plot:
        plot.draw(found, given.plot)
    return 1 if found.errors() else 0


if __name__ == "__main__":
    sys.exit(main())
