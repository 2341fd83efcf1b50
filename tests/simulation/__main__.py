"""`python -m tests.simulation`: seeds of the simulation of the node protocol; see `--help`."""

import argparse
import os
import sys
import time
from collections import Counter
from itertools import count, islice

from tests.simulation.draw import draw_plan, has_rooms
from tests.simulation.guards import GUARDS
from tests.simulation.runs import run_many, run_plan, run_seed
from tests.simulation.shrink import describe, shrink

SHOWN = 3  # violations of a seed
KNOWN_SEEDS = 20  # what finds a guard off moves a little with each change of the protocol
PACKAGE = "tests.simulation"
SEEDS_PER_LINE = 500  # seeds, where no terminal shows progress


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--rooms", action="store_true", help="only seeds whose users are in rooms")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="print its story")
    parser.add_argument("--shrink", action="store_true", help="make it smaller while it fails, and show that")
    parser.add_argument("--guard", choices=[guard.name for guard in GUARDS], default="", help="switched off")
    parser.add_argument("--guards", action="store_true", help="each guard off: the seeds until that is found")
    parser.add_argument("--known", action="store_true", help="begin with the seeds that found it before")
    return parser.parse_args()


def _seeds(first: int, number: int, *, with_rooms: bool) -> list[int]:
    return [*islice((seed for seed in count(first) if has_rooms(seed) or not with_rooms), number)]


def _run_one(options: argparse.Namespace) -> int:
    plan = draw_plan(options.seed)
    if options.shrink:
        plan = shrink(plan, guard=options.guard, report=lambda line: print(line, file=sys.stderr))
        print("\n".join(describe(plan)))
    outcome = run_plan(plan, guard=options.guard, log=print if options.trace else None)
    for line in outcome.violations:
        print(line)
    return bool(outcome.violations)


def _run_many(options: argparse.Namespace) -> int:
    started = time.perf_counter()
    faults: Counter[str] = Counter()
    done = bad = 0
    virtual_s = 0.0
    for outcome in run_many(_seeds(options.first, options.seeds, with_rooms=options.rooms), options.jobs):
        done += 1
        faults += outcome.faults
        virtual_s += outcome.virtual_s
        if outcome.violations:
            bad += 1
            print(f"seed {outcome.seed}: {len(outcome.violations)} violations")
            for line in outcome.violations[:SHOWN]:
                print(f"    {line}")
        if sys.stderr.isatty():
            print(f"\r{done} seeds, {bad} bad", end="", file=sys.stderr, flush=True)
        elif done % SEEDS_PER_LINE == 0:
            print(f"{done} seeds, {bad} with violations, {time.perf_counter() - started:.0f} s", flush=True)
    took_s = time.perf_counter() - started
    speed = f"{done / took_s:.1f} seeds/s, {virtual_s / 3600:.1f} h simulated"
    print(f"{done} seeds, {bad} with violations; {speed}")
    print("faults:", ", ".join(f"{kind.lower()} {times}" for kind, times in faults.most_common()))
    return bool(bad)


def _run_guards(options: argparse.Namespace) -> int:
    missed = 0
    for guard in [each for each in GUARDS if options.guard in {"", each.name}]:
        if options.known and guard.covered_by:
            continue
        first, seeds = (guard.seed, KNOWN_SEEDS) if options.known else (options.first, options.seeds)
        for tried, seed in enumerate(_seeds(first, seeds, with_rooms=guard.is_of_rooms or options.rooms), 1):
            outcome = run_seed(seed, guard.name)
            if outcome.violations and (options.known or not run_seed(seed).violations):
                print(
                    f"{guard.name}: found after {tried} seeds, by {seed}: {outcome.violations[0]}", flush=True
                )
                break
        else:
            known = f"covered by {guard.covered_by}, " if guard.covered_by else ""
            print(f"{guard.name}: {known}NOT found in {seeds} seeds", flush=True)
            missed += not guard.covered_by
    return bool(missed)


def main() -> int:
    options = _parse()
    if options.seed is not None:
        return _run_one(options)
    return _run_guards(options) if options.guards else _run_many(options)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of texts have one order then, and seeds replay exactly
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", PACKAGE, *sys.argv[1:]])
    sys.exit(main())
