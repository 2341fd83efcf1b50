"""``python -m loadtest.timers.service``: the timer service beside a heap and trio's own deadlines.

Each trial is a process of its own, one after the other: so many timers over so many seconds in real time; as
many over an hour by a clock that jumps (cost only); and all but a few cancelled. Prints tables. The exit
status is 1 if a timer was early, or did not fire, or ours was later than a tick and `--slack` at its 99th
percentile. Takes some twelve minutes and, for a million tasks of trio, 5 GB. Linux.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from loadtest.timers.service.kinds import KINDS
from loadtest.timers.service.report import broken, tables
from loadtest.timers.service.trial import Outcome

OURS = "TimerService"
TASKS = "trio tasks"


def run_trial(kind: str, count: int, span_s: float, mode: str, arguments: argparse.Namespace) -> Outcome:
    """Play a trial in a process of its own; whatever goes wrong is its outcome."""
    print(f"{mode}: {kind}, {count:,} timers over {span_s:g} s", file=sys.stderr, flush=True)
    lead_s = max(arguments.lead, count * (60e-6 if kind == TASKS else 4e-6))
    command = [sys.executable, "-m", "loadtest.timers.service.trial", kind, str(count), str(span_s), mode]
    command += ["--lead", str(lead_s), "--memory", str(arguments.memory)]
    outcome = Outcome(kind, count, span_s, mode)
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=lead_s + span_s + arguments.patience
        )
    except subprocess.TimeoutExpired as late:
        outcome.error = f"not done after {late.timeout:.0f} s"
        return outcome
    if run.returncode or not run.stdout:
        outcome.error = (run.stderr.strip().splitlines() or [f"ended with {run.returncode}"])[-1]
        return outcome
    return Outcome(**json.loads(run.stdout))


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.timers.service", description=__doc__)
    add = parser.add_argument
    add("--few", type=int, default=10_000)
    add("--few-span", type=float, default=5.0, help="seconds")
    add("--many", type=int, default=1_000_000)
    add("--many-span", type=float, default=60.0, help="seconds")
    add("--hour", type=float, default=3600.0, help="seconds by the clock that jumps")
    add("--tasks-max", type=int, default=1_000_000, help="a trial of more tasks of trio is left out")
    add("--lead", type=float, default=2.0, help="seconds for adding; more if there are many")
    add("--memory", type=float, default=8.0, help="GiB that a trial may take")
    add("--patience", type=float, default=180.0, help="seconds beyond those planned")
    add("--slack", type=float, default=10.0, help="ms beside a tick of 10 ms that ours may be late (p99)")
    add("--out", type=Path, help="a file for the tables")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Play all trials, print the tables and what was broken."""
    arguments = parse(words)
    few, many, seconds = arguments.few, arguments.many, arguments.many_span
    tenth = max(1, many // 10)
    plan = [(kind, few, arguments.few_span, "real") for kind in KINDS]
    plan += [(kind, many, seconds, "real") for kind in KINDS]
    plan += [(TASKS, tenth, seconds, "real")]
    for mode, span_s in (("cancel", seconds), ("mock", arguments.hour)):
        plan += [(kind, many if kind != TASKS else tenth, span_s, mode) for kind in KINDS]
    plan = [each for each in plan if each[0] != TASKS or each[1] <= arguments.tasks_max]
    outcomes = [run_trial(*each, arguments) for each in plan]
    text = tables(outcomes)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    faults = broken([each for each in outcomes if each.kind == OURS], arguments.slack)
    print("loadtest.timers.service: " + ("passed" if not faults else "FAILED: " + "; ".join(faults)))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
