"""``python -m loadtest.hostile [CASE…]``: clients that do what they should not, on a real server.

Starts a server for each case, and beside it 50 clients who behave: they must keep their connections, and
nothing is told of them. Without a name all cases are played, one after the other. Prints a table. The exit
status is 1 if a promise was broken or if nothing was injected. Needs the ``embedded`` extra, and Linux.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from loadtest.connection import raise_file_limit
from loadtest.hostile.mistakes import mistakes
from loadtest.hostile.races import races
from loadtest.hostile.stage import Stage, staged
from loadtest.hostile.strangers import bombs, names, refusals, slow_logins
from loadtest.hostile.unread import unread
from loadtest.nodes.outcome import Outcome, say, table

Case = Callable[[int, argparse.Namespace], Outcome]


def on_stage(case: Callable[[Stage, int], Outcome]) -> Case:
    """Let a case be played on a server of its own."""

    def play(count: int, given: argparse.Namespace) -> Outcome:
        with staged(login_timeout=given.login_timeout, unsent_timeout=given.unsent_timeout) as stage:
            return case(stage, count)

    return play


CASES: dict[str, tuple[int, Case]] = {
    "bombs": (10_000, on_stage(bombs)),
    "refusals": (10_000, on_stage(refusals)),
    "names": (1_000, on_stage(names)),
    "slow-logins": (2_000, on_stage(slow_logins)),
    "unread": (200, on_stage(unread)),
    "mistakes": (100_000, lambda count, _: mistakes(count)),
    "races": (500, lambda count, given: races(count, given.seconds)),
}
"""How many clients take part in a case, and how it is played."""


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.hostile", description=__doc__)
    add = parser.add_argument
    add("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all without a name")
    add("--count", type=int, default=0, help="of clients or tries; without it as many as each case has")
    add("--login-timeout", type=float, default=5.0, help="the server's, seconds")
    add("--unsent-timeout", type=float, default=10.0, help="the server's, seconds")
    add("--seconds", type=float, default=20.0, help="for which beats race with the end of their time")
    add("--out", type=Path, help="file to write the table to")
    arguments = parser.parse_args(words)
    if unknown := {*arguments.cases} - {*CASES}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    return arguments


def main(words: list[str] | None = None) -> int:
    """Play, print the table, and say what was broken."""
    arguments = parse(words)
    raise_file_limit()
    outcomes: list[Outcome] = []
    for name in arguments.cases or CASES:
        count, case = CASES[name]
        begun = time.monotonic()
        outcomes.append(case(arguments.count or count, arguments))
        say(f"{name} took {time.monotonic() - begun:.0f} s")
    text = table(outcomes)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    failed = [each for each in outcomes if each.failures]
    for each in failed:
        say("\n  ".join([f"{each.name}:", *each.failures]))
    print("loadtest.hostile: " + (f"FAILED: {len(failed)} of {len(outcomes)}" if failed else "passed"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
