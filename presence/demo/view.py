"""The summary of the demo: a table on a terminal, lines elsewhere.

Tests: `tests/demo/test_devices.py`.
"""

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from presence.common.text import printable
from presence.demo.devices import ACTIONS, DemoRun

HEADINGS = ("event", "number", "seconds after the last packet", "beyond what was due")
COLUMNS = "{:<22}  {:>6}  {:<29}  {}"
DIFFERENCES_SHOWN = 20


def show_summary(run: DemoRun, console: Console) -> None:
    """Print what the clients did, the events with minimum, median and maximum, and where they differ."""
    alive = run.clients - run.acting * len(ACTIONS)
    print_line(
        console,
        f"{alive} clients stayed alive; {run.acting} each fell silent, logged out, or closed the connection, "
        "some of these only for a moment",
    )
    rows = [
        (name, str(count), *(_spread(run.measured_s[name + more]) for more in ("", ", beyond what was due")))
        for name, count in sorted(run.events.items())
    ]
    if console.is_terminal:
        table = Table(*HEADINGS)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    else:
        for row in (HEADINGS, *rows):
            print_line(console, COLUMNS.format(*row))
    for difference in run.differences[:DIFFERENCES_SHOWN]:
        print_line(console, f"differs: {difference}")
    if len(run.differences) > DIFFERENCES_SHOWN:
        print_line(console, f"… and {len(run.differences) - DIFFERENCES_SHOWN} more")
    if run.differences:
        print_line(console, "events differ from the clients", "bold red")
    else:
        print_line(console, "events match the clients", "bold green")


def print_line(console: Console, line: str, style: str = "") -> None:
    """Print a line as it is, whatever the width."""
    console.print(printable(line), style=style, markup=False, highlight=False, soft_wrap=True)


def _spread(times: Sequence[float]) -> str:
    return f"{min(times):.2f} / {statistics.median(times):.2f} / {max(times):.2f}" if times else ""
