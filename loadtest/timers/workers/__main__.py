"""``python -m loadtest.timers.workers``: do workers that share a timer in Redis lose or double events?

Each trial has a Redis of its own. One process schedules; several take what is due, note it in a file, and
settle it. In the trial with kills a random one of them is killed with SIGKILL each second, and another
started. In the end the notes must name every event, none before its time by Redis' clock, and none twice, but
for those whose worker was killed while it held them. The exit status is 1 if that is not so. Needs the
``embedded`` extra.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from loadtest.bench.report import rows
from loadtest.timers.workers.play import Outcome, Plan, play
from loadtest.timers.workers.verdict import percentiles
from loadtest.timers.workers.worker import Work

HEAD: Final = (
    "trial",
    "events",
    "lost",
    "early",
    "again (unexplained)",
    "kills",
    "late, ms: p50 / p99 / max",
    "... with those that waited for a lease",
    "scheduled/s",
    "handled in, s (events/s)",
    "Redis, µs an event: add / hand out and settle",
    "longest call, ms",
)


def plans(options: argparse.Namespace) -> list[Plan]:
    """Return the trials."""
    events, workers = options.events, options.workers
    return [
        Plan("spread", events, options.span, workers),
        Plan("spread, with kills", events, options.span, workers, options.kill_every, options.handling),
        Plan("all at once", events, 0, workers),
        Plan("all at one time, few", options.slot_events, 0, workers),
    ]


def row(outcome: Outcome) -> list[str]:
    """Return a line of the table."""
    verdict, plan = outcome.verdict, outcome.plan
    first, every = percentiles(verdict.unhindered_ms), percentiles(verdict.all_ms)
    return [
        plan.name,
        f"{plan.events:,}",
        str(verdict.missing),
        str(verdict.early),
        f"{verdict.again:,} ({verdict.unexplained})",
        str(outcome.kills),
        " / ".join(f"{value:,.0f}" for value in first.values()),
        " / ".join(f"{value:,.0f}" for value in every.values()),
        f"{outcome.scheduled_per_s:,.0f}",
        f"{outcome.took_s:.2f} ({plan.events / outcome.took_s:,.0f})",
        f"{outcome.schedule_us:.1f} / {outcome.handle_us:.1f}",
        f"{outcome.longest_ms:.1f}",
    ]


def main(arguments: list[str] | None = None) -> int:
    """Play the trials, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.timers.workers", description=__doc__)
    parser.add_argument("--kind", choices=("ring", "queue"), default="queue")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--span", type=float, default=20.0, help="seconds over which events are spread")
    parser.add_argument("--kill-every", type=float, default=1.0, help="seconds")
    parser.add_argument("--handling", type=float, default=0.02, help="of a batch, with kills, seconds")
    parser.add_argument("--lease", type=float, default=3.0, help="seconds")
    parser.add_argument("--limit", type=int, default=200, help="events that a worker takes at once")
    parser.add_argument("--slots", type=int, default=60, help="of a ring")
    parser.add_argument("--tick", type=float, default=0.1, help="of a ring, seconds")
    parser.add_argument("--slot-events", type=int, default=10_000, help="events of the trial with one slot")
    parser.add_argument("--out", type=Path, help="file for the table, in Markdown")
    options = parser.parse_args(arguments)
    work = Work("", options.kind, options.lease, options.slots, options.tick, options.limit)
    outcomes = []
    for plan in plans(options):
        print(f"{options.kind}: {plan.name}: {plan.events:,} events", file=sys.stderr, flush=True)
        outcomes.append(play(plan, work))
        print("  " + ", ".join(row(outcomes[-1])[1:]), file=sys.stderr, flush=True)
    ring = f", {options.slots} slots of {options.tick:g} s" if options.kind == "ring" else ""
    shape = f"{options.workers} workers, lease {options.lease:g} s, {options.limit} events at once"
    title = f"{options.kind}{ring}; {shape}"
    table = f"{title}\n\n{rows(HEAD, map(row, outcomes))}\n"
    print(table)
    if options.out:
        options.out.write_text(table)
    return 0 if all(outcome.verdict.is_good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
