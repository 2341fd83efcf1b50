"""``python -m loadtest.security [CASE…]``: what strangers can do to a port that is open to everybody.

Starts servers for each case. Without a name all cases are played, one after the other; each takes at most
ten minutes on two cores, and a fraction of that with ``--short``, whose figures say little. Prints a table.
The exit status is 0 if every promise was kept, 1 if one was not, and 2 if in a case nothing was injected.
Needs the ``embedded`` extra, and Linux.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from loadtest.connection import raise_file_limit
from loadtest.hostile.stage import staged
from loadtest.nodes.outcome import Outcome, say, table
from loadtest.security import bombs, cycles, emfile, flood, silent

Case = Callable[[bool], Outcome]


def _bombs(short: bool) -> Outcome:
    with staged(login_timeout=bombs.LOGIN_TIMEOUT_S) as stage:
        return bombs.bombs(stage, 1000 if short else 10_000)


def _silent(short: bool) -> Outcome:
    return silent.silent(silent.Sizes(strangers=1000, logins=100.0, pairs=2) if short else silent.Sizes())


def _cycles(short: bool) -> Outcome:
    return cycles.cycles(20_000 if short else 1_000_000, 2200.0, looks=not short)


def _emfile(short: bool) -> Outcome:
    with staged() as stage:
        return emfile.emfile(stage, 300, 2.5 if short else 20.0)


def _flood(short: bool) -> Outcome:
    sizes = flood.Sizes(capacity=100, seconds=4.0) if short else flood.Sizes()
    with staged(*sizes.flags) as stage:
        return flood.flood(stage, sizes)


CASES: dict[str, Case] = {
    "bombs": _bombs,
    "silent": _silent,
    "cycles": _cycles,
    "emfile": _emfile,
    "flood": _flood,
}


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.security", description=__doc__)
    add = parser.add_argument
    add("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all without a name")
    add("--short", action="store_true", help="a little of each, in seconds")
    add("--out", type=Path, help="file to write the table to")
    arguments = parser.parse_args(words)
    if unknown := {*arguments.cases} - {*CASES}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    return arguments


def status(outcomes: list[Outcome]) -> int:
    """Return the exit status: of what was broken, and of what shows nothing."""
    if any(each.broken for each in outcomes):
        return 1
    return 0 if all(each.injected for each in outcomes) else 2


def main(words: list[str] | None = None) -> int:
    """Play, print the table, and say what was broken."""
    arguments = parse(words)
    raise_file_limit()
    outcomes: list[Outcome] = []
    for name in arguments.cases or CASES:
        begun = time.monotonic()
        outcomes.append(CASES[name](arguments.short))
        say(f"{name} took {time.monotonic() - begun:.0f} s")
    text = table(outcomes)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    for each in outcomes:
        if each.failures:
            say("\n  ".join([f"{each.name}:", *each.failures]))
    verdict = status(outcomes)
    print("loadtest.security: " + ("passed", "FAILED", "nothing was injected")[verdict])
    return verdict


if __name__ == "__main__":
    sys.exit(main())
