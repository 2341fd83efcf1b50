"""``python -m loadtest.compare``: idle detection by each technique, on one workload, in real time.

Each technique at each size has a process, and if it needs one a Redis, of its own; those that together do not
load two cores are played side by side. Needs Linux and the ``loadtest`` and ``embedded`` extras.
"""

import argparse
import contextlib
import multiprocessing
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from loadtest.compare import report
from loadtest.compare.player import Plan, Row, draw, run
from loadtest.compare.techniques import BATCHED, IN_REDIS, NAMES, NOTHING
from loadtest.outcome import say
from loadtest.servers import RedisServer
from loadtest.usage import require_linux

SIZES: Final = (1_000, 10_000, 100_000)
ABREAST: Final = 40_000  # users of techniques in Redis who are played side by side;
LIGHT: Final = 10  # so many users in the process of a technique without Redis weigh as one,
TOGETHER: Final = 6  # and so many whose touches are made together


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.compare", description=__doc__)
    add = parser.add_argument
    add("--users", type=int, nargs="+", default=SIZES, help="N, each in turn (1000 10000 100000)")
    add("--kinds", nargs="+", choices=NAMES, default=list(NAMES), metavar="KIND", help=", ".join(NAMES))
    add("--idle-timeout", type=float, default=30.0, metavar="S", help="T (30); all else scales with it")
    add("--seconds", type=float, default=0.0, help="length of a run (2 T)")
    add("--seed", type=int, default=1, help="draws who beats when, and who falls silent (1)")
    add("--single", action="store_true", help="leave out the runs in which touches are made together")
    add("--out", type=Path, metavar="FILE", help="the tables, as Markdown")
    add("--plot", type=Path, metavar="PNG", help="cost and error against N")
    return parser.parse_args(words)


def plans(given: argparse.Namespace) -> list[Plan]:
    """Return all runs: one by one, then those in which touches are made together."""
    seconds = given.seconds or 2 * given.idle_timeout
    return [
        Plan(kind, users, batched, given.idle_timeout, seconds, seed=given.seed)
        for users in given.users
        for batched in ((False,) if given.single else (False, True))
        for kind in [NOTHING, *given.kinds]
        if not batched or kind in (NOTHING, *BATCHED)
    ]


def rounds(plans: Iterable[Plan]) -> list[list[Plan]]:
    """Return plans in rounds, of which each does not overload two cores; the order is kept otherwise."""
    found: list[list[Plan]] = []
    for plan in plans:
        fits = (each for each in found if sum(map(_weight, [*each, plan])) <= ABREAST)
        if place := next(fits, None):
            place.append(plan)
        else:
            found.append([plan])
    return found


def _weight(plan: Plan) -> int:
    if plan.kind not in IN_REDIS:
        return plan.users // LIGHT
    return plan.users // TOGETHER if plan.batched else plan.users


def play(plan: Plan) -> Row:
    """Play a plan in a process of its own. One that ends with an error has a row that says so."""
    with (
        RedisServer() if plan.kind in IN_REDIS else contextlib.nullcontext() as redis,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        try:
            return pool.submit(run, plan, redis.url if redis else "").result()
        except Exception as error:  # whatever ends a technique is to be told
            return Row(plan, error=str(error) or type(error).__name__)


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, write; exit 1 if a technique ended with an error."""
    require_linux()
    given = parse(words)
    wanted = plans(given)
    draw(wanted[0])  # a run that is too short is refused at once
    rows: list[Row] = []
    every = rounds(wanted)
    for number, some in enumerate(every, 1):
        names = "; ".join(report.name(Row(plan)) for plan in some)
        say(f"{number} of {len(every)}, {some[0].users:,} users, {some[0].seconds:g} s: {names}")
        with ThreadPoolExecutor(len(some)) as pool:
            rows += pool.map(play, some)
    text = report.as_markdown(rows)
    print(text)
    if given.out:
        given.out.write_text(text)
    if given.plot:
        report.plot(rows, given.plot)
    return 1 if any(row.error for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
