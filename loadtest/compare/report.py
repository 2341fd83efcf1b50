"""Rows as a Markdown table, and as a plot: cost and error against the number of users."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes

from loadtest.bench.plots import INK, figure, save
from loadtest.compare.player import Row
from loadtest.compare.techniques import IN_REDIS, NAMES, NOTHING
from loadtest.outcome import markdown

HEAD: Final = (
    *("", "touches/s", "process µs", "Redis µs", "scripts", "commands", "process B", "Redis B"),
    *("p50 ms", "p99 ms", "max ms", "early", "false", "missed", "touches late by at most, ms"),
)
NOTES: Final = """\
µs are processor time of all threads, tellings and all looks for what is due included, divided by the
touches; the process' is less what a player costs that touches nothing (touches are made together once in
50 ms). Memory of a user is without the name; Redis' is its `used_memory`, the process' what it shares
with none, just before the first telling. Lateness is from T after the last touch to the moment at which
the process has the telling. Early: less than T. False: of a user who beats. Missed: not told by the end."""
# In the process blue and green, the heaps grey; in Redis the warm colours, dashed.
COLOURS: Final = [
    "#0b7285",
    "#4dabf7",
    "#868e96",
    "#ced4da",
    "#51cf66",
    "#e8590c",
    "#f08c00",
    "#c2255c",
    "#9c36b5",
]
LEAST: Final = 0.1  # what is less is drawn there: an axis that is logarithmic has no zero
LINEAR: Final = "told falsely or not at all,\n% of all users"
PANELS: Final[dict[str, Callable[[Row], float]]] = {
    "µs of CPU a touch,\nprocess and Redis": lambda row: row.process_us + row.redis_us,
    "bytes a user,\nprocess and Redis": lambda row: row.process_bytes + row.redis_bytes,
    "lateness, ms: 99 %": lambda row: row.p99_ms,
    LINEAR: lambda row: 100 * (row.early + row.false + row.missed) / row.plan.users,
}


def own(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of techniques, less what the player costs that has none."""
    players = {(row.plan.users, row.plan.batched): row.process_us for row in rows if row.plan.kind == NOTHING}
    found = []
    for row in rows:
        if row.plan.kind != NOTHING and not row.error:
            less = players.get((row.plan.users, row.plan.batched), 0.0)
            found.append(replace(row, process_us=max(0.0, row.process_us - less)))
    return sorted(found, key=lambda row: (row.plan.users, list(NAMES).index(row.plan.kind), row.plan.batched))


def as_markdown(rows: Sequence[Row]) -> str:
    """Return a table for each number of users, what ended with an error, and what the columns mean."""
    parts = ["# Idle detection: one workload, all techniques"]
    found = own(rows)
    for users in sorted({row.plan.users for row in found}):
        cells = (_cells(row) for row in found if row.plan.users == users)
        parts += [f"## {users:,} users", markdown(HEAD, cells)]
    errors = [f"* {name(row)} at {row.plan.users:,}: {row.error}" for row in rows if row.error]
    return "\n\n".join([*parts, *errors, NOTES]) + "\n"


def name(row: Row) -> str:
    """Return what a technique is called, and whether its touches came together."""
    called = NAMES.get(row.plan.kind, row.plan.kind)
    return f"{called}, batched" if row.plan.batched else called


def _cells(row: Row) -> list[str]:
    return [
        *(name(row), f"{row.touches / row.seconds:,.0f}", _number(row.process_us), _number(row.redis_us)),
        *(
            f"{row.scripts:.2f}",
            f"{row.commands:.1f}",
            f"{row.process_bytes:,.0f}",
            f"{row.redis_bytes:,.0f}",
        ),
        *(_number(value) for value in (row.p50_ms, row.p99_ms, row.max_ms)),
        *(f"{count:,}" for count in (row.early, row.false, row.missed)),
        _number(row.lag_max_ms),
    ]


def _number(value: float) -> str:
    """Return two digits, or all before the point."""
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw a panel for each figure, a line for each technique, touches one by one."""
    title = "Idle detection against the number of users (less is better; dashed: in Redis)"
    drawing, panels = figure(1, len(PANELS), 11, 3.4, title)
    single = [row for row in own(rows) if not row.plan.batched]
    for axes, (what, value) in zip(panels, PANELS.items(), strict=True):
        _panel(axes, single, value, is_linear=what == LINEAR)
        axes.set_title(what, color=INK, fontsize=9, loc="left")
    handles, labels = panels[0].get_legend_handles_labels()
    drawing.legend(handles, labels, fontsize=8, frameon=False, loc="outside right center")
    save(drawing, path)


def _panel(axes: Axes, rows: Sequence[Row], value: Callable[[Row], float], *, is_linear: bool) -> None:
    least = 0.0 if is_linear else LEAST
    for (kind, called), colour in zip(NAMES.items(), COLOURS, strict=True):
        if some := [row for row in rows if row.plan.kind == kind]:
            line = "o--" if kind in IN_REDIS else "o-"
            sizes, values = [row.plan.users for row in some], [max(least, value(row)) for row in some]
            label = called.replace("`", "")
            axes.plot(sizes, values, line, color=colour, label=label, markersize=4, linewidth=1.4)
    axes.set_xscale("log")
    if not is_linear:
        axes.set_yscale("log")
    ticks = sorted({row.plan.users for row in rows})
    axes.set_xticks(ticks, [f"{users / 1000:g}k" for users in ticks])
    axes.minorticks_off()
    axes.set_xlabel("users", color=INK, fontsize=8)
