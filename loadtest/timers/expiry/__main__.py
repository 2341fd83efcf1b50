"""How late the timer by key expiry is: ``python -m loadtest.timers.expiry``.

Each scenario has a private Redis with its defaults, one process that listens, and events that come due evenly
over a while. Told apart are what Redis did by itself, with nobody else looking for what is due (``no scan``),
and the timer as it is. What is late is late by the clock of Redis, at the moment at which the event is handed
out. Exits with 1 if an event came early, twice or never.
"""

import argparse
import sys
from pathlib import Path

from loadtest.bench.progress import Bar
from loadtest.bench.report import rows
from loadtest.bench.results import percentile
from loadtest.timers.expiry.scenarios import Plan, scenarios
from loadtest.timers.expiry.watch import Outcome, measure


def table(outcomes: dict[str, Outcome]) -> str:
    """Return the report."""
    head = [
        "",
        "p50, ms",
        "p99, ms",
        "max, ms",
        "early",
        "twice",
        "never",
        "told",
        "by scan",
        "Redis, µs/event",
    ]
    body = [
        [
            name,
            *(
                f"{percentile(each.late_ms, share):,.0f}" if each.late_ms else ""
                for share in (0.5, 0.99, 1.0)
            ),
            *(f"{count:,}" for count in (each.early, each.twice, each.never, each.told, each.found)),
            f"{each.redis_us:.0f}",
        ]
        for name, each in outcomes.items()
    ]
    cuts = [
        [
            name,
            f"{len(each.cut_late_ms):,}",
            *(f"{percentile(each.cut_late_ms, share) / 1000:.2f}" for share in (0.5, 0.99, 1.0)),
            f"{each.found_after_s or 0:.2f}",
        ]
        for name, each in outcomes.items()
        if each.cut_late_ms
    ]
    parts = [rows(head, body)]
    if cuts:
        late = ["due meanwhile", "p50, s", "p99, s", "max, s", "the last came, s after the end"]
        parts.append(rows(["", *late], cuts))
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run the scenarios; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.timers.expiry", description=__doc__)
    parser.add_argument("--events", type=int, default=10_000, help="of each scenario")
    parser.add_argument("--first", type=float, default=2.0, help="seconds until the first one is due")
    parser.add_argument("--span", type=float, default=20.0, help="seconds over which they come due")
    parser.add_argument("--cut", type=float, default=10.0, help="seconds for which something is cut off")
    parser.add_argument("--others", type=int, default=100_000, help="volatile keys of others")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds after the last one is due")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--out", type=Path, help="a file for the tables")
    options = parser.parse_args(arguments)
    plan = Plan(options.events, options.first, options.span, options.cut, options.patience)
    chosen = [each for each in scenarios(options.others) if options.only in each.name]
    outcomes: dict[str, Outcome] = {}
    planned_s = plan.first_s + plan.span_s
    with Bar(planned_s * len(chosen)) as bar:
        for scenario in chosen:
            bar.begin(scenario.name, planned_s)
            outcomes[scenario.name] = measure(scenario, plan, bar)
            bar.say(f"{scenario.name}: {plan.events - outcomes[scenario.name].never} came")
    text = table(outcomes)
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text, "utf-8")
    wrong = [
        name
        for name, each in outcomes.items()
        # Redis alone promises no time, so patience may end before it has told all.
        if each.early or each.twice or (each.never and not name.endswith("no scan"))
    ]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
