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
from loadtest.security import (
    bombs,
    cycles,
    emfile,
    flood,
    flood_forged,
    flooders,
    rotation,
    silent,
    silent_tls,
    timing,
    tls,
    tls_reload,
    tokens,
    watchers,
)
from loadtest.security.credentials import Frames
from loadtest.security.guarded import UNBOUNDED, guarded, secured

Case = Callable[[bool], Outcome]

TOKENS = 1000  # that are sent again and again


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


def _flood_tokens(short: bool) -> Outcome:
    sizes = flood.Sizes(capacity=100, seconds=4.0) if short else flood.Sizes()
    with guarded(*sizes.flags, *UNBOUNDED, "--uid-login-rate", "0") as on:
        frames = Frames([on.issuers[0].login(f"user-{number}") for number in range(TOKENS)])
        return flood.flood(on.stage, sizes, frames, name="flood-tokens")


def _flood_forged(short: bool) -> Outcome:
    quick = flood_forged.Sizes(honest=50.0, forged=(0.0, 300.0), seconds=4.0)
    with guarded("--uid-login-rate", "0") as on:
        return flood_forged.flood_forged(on, quick if short else flood_forged.Sizes())


def _flooders(short: bool) -> Outcome:
    return flooders.flooders(flooders.Sizes(seconds=1.5, pairs=1) if short else flooders.Sizes())


def _watchers(short: bool) -> Outcome:
    with staged() as stage:
        return watchers.watchers(stage, 1000 if short else 9_900)


def _tokens(short: bool) -> Outcome:
    return tokens.tokens(*((3000, 200) if short else (100_000, 5000)))


def _rotation(short: bool) -> Outcome:
    return rotation.rotation(100 if short else 1000)


def _timing(short: bool) -> Outcome:
    with guarded(*UNBOUNDED) as on:
        return timing.timing(on, 400 if short else 10_000)


def _tls(short: bool) -> Outcome:
    return tls.tls(tls.Sizes(connections=200, seconds=3.0, rounds=1) if short else tls.Sizes())


def _silent_tls(short: bool) -> Outcome:
    with secured() as on:
        return silent_tls.silent_tls(on, 100 if short else 1000)


def _tls_reload(short: bool) -> Outcome:
    with secured() as on:
        return tls_reload.tls_reload(on, 60 if short else 1000)


CASES: dict[str, Case] = {
    "bombs": _bombs,
    "silent": _silent,
    "cycles": _cycles,
    "emfile": _emfile,
    "flood": _flood,
    "flood-tokens": _flood_tokens,
    "flood-forged": _flood_forged,
    "flooders": _flooders,
    "watchers": _watchers,
    "tokens": _tokens,
    "rotation": _rotation,
    "timing": _timing,
    "tls": _tls,
    "silent-tls": _silent_tls,
    "tls-reload": _tls_reload,
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
