"""``python -m tests.system.security [CASE…]``: what strangers and hostile clients can do to an open port.

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

from loadtest.outcome import CaseOutcome, print_progress, table
from presence.loadtest.server_address import raise_file_limit
from tests.system.security.floods import cycles, flood_forged, flood_logins, flooders, watchers
from tests.system.security.malformed import bombs, mistakes, names, refusals
from tests.system.security.silence import races, silent
from tests.system.security.tls import tls

Case = Callable[[], CaseOutcome]
CASES: dict[str, tuple[Case, Case]] = {
    "bombs": (lambda: bombs(10_000), lambda: bombs(400)),
    "refusals": (lambda: refusals(10_000), lambda: refusals(200)),
    "names": (lambda: names(1000), lambda: names(130)),
    "mistakes": (lambda: mistakes(100_000), lambda: mistakes(200)),
    "silent": (lambda: silent(10_000, 1000, 2500.0, 300.0), lambda: silent(1000, 100, 2500.0, 100.0)),
    "races": (lambda: races(500, 20.0), lambda: races(200, 2.0)),
    "flood": (lambda: flood_logins(400, 20.0), lambda: flood_logins(100, 3.0)),
    "flood-tokens": (
        lambda: flood_logins(400, 20.0, tokens=True),
        lambda: flood_logins(100, 3.0, tokens=True),
    ),
    "flood-forged": (
        lambda: flood_forged(100.0, (0.0, 500.0, 2000.0), 20.0),
        lambda: flood_forged(50.0, (0.0, 300.0), 4.0),
    ),
    "flooders": (lambda: flooders(30.0), lambda: flooders(1.5)),
    "watchers": (lambda: watchers(9900), lambda: watchers(40, 4)),
    "cycles": (lambda: cycles(1_000_000, 2200.0), lambda: cycles(20_000, 2200.0, looks=False)),
    "tls": (lambda: tls(2000, 20.0), lambda: tls(200, 3.0)),
}
"""Of each case how it is played, and how a little of it is."""


def status(outcomes: list[CaseOutcome]) -> int:
    """Return the exit status: 1 if a promise was broken, 2 if a case injected nothing."""
    if any(each.broken for each in outcomes):
        return 1
    return 0 if all(each.injected for each in outcomes) else 2


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.security", description=__doc__)
    add = parser.add_argument
    add("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all without a name")
    add("--short", action="store_true", help="a little of each, in seconds")
    add("--out", type=Path, help="file to write the table to")
    given = parser.parse_args(words)
    if unknown := {*given.cases} - {*CASES}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    raise_file_limit()
    outcomes: list[CaseOutcome] = []
    for name in given.cases or CASES:
        started = time.monotonic()
        outcomes.append(CASES[name][given.short]())
        print_progress(f"{name} took {time.monotonic() - started:.0f} s")
    text = table(outcomes)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    for each in outcomes:
        if each.failures:
            print_progress("\n  ".join([f"{each.name}:", *each.failures]))
    verdict = status(outcomes)
    print("tests.system.security: " + ("passed", "FAILED", "nothing was injected")[verdict])
    return verdict


if __name__ == "__main__":
    sys.exit(main())
