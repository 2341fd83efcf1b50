"""``python -m loadtest.followups``: users go offline, some come back in time, and all is killed meanwhile.

Starts a real server with several workers on a real Redis (append-only file), runners with handlers, and
clients over TCP; kills a worker or a runner each second, all of the server once, and Redis once; then holds
each follow-up against the stream of events and against what the clients did. Prints a table. The exit status
is 1 if a promise was broken. Needs the ``loadtest`` and ``embedded`` extras, and Linux.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from loadtest.connection import raise_file_limit
from loadtest.followups.play import Outcome, Plan, play
from loadtest.outcome import say


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.followups", description=__doc__)
    add = parser.add_argument
    add("--users", type=int, default=10_000, help="who go offline")
    add("--back", type=int, default=4000, help="how many of them come back in time")
    add("--after", type=float, default=25.0, help="of the rule, seconds")
    add("--workers", type=int, default=3, help="of the server")
    add("--runners", type=int, default=2, help="processes of presence followups run")
    add("--kill-every", type=float, default=1.0, help="seconds between two kills; 0: nobody is killed")
    add("--spare", action="store_true", help="the server as a whole and Redis are not killed")
    add("--seed", type=int, default=1, help="of who is killed")
    add("--out", type=Path, help="file to write the table to")
    return parser.parse_args(words)


def table(plan: Plan, outcome: Outcome) -> str:
    """Return what came of a run in Markdown."""
    late = sorted(outcome.verdict.late_ms) or [0]
    p99, by_id = late[int((len(late) - 1) * 0.99)], len({*outcome.handled})
    rows = {
        "users who go, and are back in time": f"{plan.users:,}, {plan.back:,}",
        "kill -9": outcome.kills,
        "follow-ups in the stream": f"{len(outcome.told):,}",
        "handled, by id, and again": f"{by_id:,}, {len(outcome.handled) - by_id}",
        "ms after due: p50 / p99 / max": f"{statistics.median(late):.0f} / {p99} / {late[-1]}",
        "promises": "; ".join(outcome.broken) or "kept",
    }
    return "\n".join(
        ["| follow-ups | |", "| --- | --- |", *(f"| {name} | {it} |" for name, it in rows.items())]
    )


def main(words: list[str] | None = None) -> int:
    """Play, print the table, and say what was broken."""
    given = parse(words)
    raise_file_limit()
    plan = Plan(
        users=given.users,
        back=given.back,
        after_s=given.after,
        workers=given.workers,
        runners=given.runners,
        kill_every_s=given.kill_every,
        kills_all=not given.spare,
    )
    with tempfile.TemporaryDirectory(prefix="followups-") as folder:
        outcome = play(plan, Path(folder), given.seed)
    text = table(plan, outcome)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    for each in outcome.broken:
        say(f"  {each}")
    print("loadtest.followups: " + ("FAILED" if outcome.broken else "passed"))
    return 1 if outcome.broken else 0


if __name__ == "__main__":
    sys.exit(main())
