"""``python -m benchmarks.compare``: idle detection by each technique, on one workload, in real time.

The presence wheel, `TimerService`, two heaps and trio's deadlines in a process; `RedisWheel`, `RingTimer`,
`DelayQueue` and `ExpiryTimer` in Redis. All play one schedule, drawn from a seed: users send a touch each
0.4 T, less or more by a tenth, and a tenth of them falls silent. Open loop: once per 50 ms the touches that
are due are made, one by one or, where the API has that, in one call ("batched"). Measured are CPU of the
process and of Redis (less that of a player that touches nothing), scripts and commands, memory, and each
report against the touches: early, false, missed, how late.

Each technique at each size has a process, and if it needs one a Redis, of its own; those that together do
not load two cores run side by side. ``--idle-timeout 3`` makes a run ten times shorter. A technique that
ends with an error, or whose calls Redis refuses, makes the exit status 1. Needs Linux and the ``loadtest``
and ``embedded`` extras.
"""

import argparse
import contextlib
import math
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes

from benchmarks.compare.player import TAIL_SHARE, ComparePlan, CompareRow, draw_schedule, run
from benchmarks.compare.techniques import BATCHED, IN_REDIS, NAMES, NOTHING
from benchmarks.plots import INK, figure, save
from loadtest.arguments import above_0, at_least_0, from_1
from loadtest.outcome import markdown, print_progress
from loadtest.processes import WorkerProcess, exit_on_sigterm
from loadtest.servers import LocalRedis
from loadtest.usage import require_linux

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
PANELS: Final[dict[str, Callable[[CompareRow], float]]] = {
    "µs of CPU a touch,\nprocess and Redis": lambda row: row.process_us + row.redis_us,
    "bytes a user,\nprocess and Redis": lambda row: row.process_bytes + row.redis_bytes,
    "lateness, ms: 99 %": lambda row: row.p99_ms,
    LINEAR: lambda row: 100 * (row.early + row.false + row.missed) / row.plan.users,
}
SIZES: Final = (1_000, 10_000, 100_000)
MAX_PARALLEL_USERS: Final = 40_000  # users of techniques in Redis who are played side by side;
END_TIMEOUT_S: Final = 60.0  # of a process, beyond its time: then it was stopped
LIGHT: Final = 10  # so many users in the process of a technique without Redis weigh as one,
TOGETHER: Final = 6  # and so many whose touches are made together


def without_player_cost(rows: Sequence[CompareRow]) -> list[CompareRow]:
    """Return the rows of techniques, less the cost of the player alone."""
    players = {(row.plan.users, row.plan.batched): row.process_us for row in rows if row.plan.kind == NOTHING}
    found = []
    for row in rows:
        if row.plan.kind != NOTHING and not row.error:
            less = players.get((row.plan.users, row.plan.batched), 0.0)
            found.append(replace(row, process_us=max(0.0, row.process_us - less)))
    return sorted(found, key=lambda row: (row.plan.users, list(NAMES).index(row.plan.kind), row.plan.batched))


def as_markdown(rows: Sequence[CompareRow]) -> str:
    """Return a table per number of users, the errors, and what the columns mean."""
    parts = ["# Idle detection: one workload, all techniques"]
    found = without_player_cost(rows)
    for users in sorted({row.plan.users for row in found}):
        cells = (_cells(row) for row in found if row.plan.users == users)
        parts += [f"## {users:,} users", markdown(HEAD, cells)]
    return "\n\n".join([*parts, *(f"* {each}" for each in invalid(rows)), NOTES]) + "\n"


def invalid(rows: Iterable[CompareRow]) -> list[str]:
    """Return why rows are not valid: a run that ended with an error, or calls that Redis did not take."""
    return [
        f"{name(row)} at {row.plan.users:,}: {row.error or f'Redis refused {row.refused:,} calls'}"
        for row in rows
        if row.error or row.refused
    ]


def name(row: CompareRow) -> str:
    called = NAMES.get(row.plan.kind, row.plan.kind)
    return f"{called}, batched" if row.plan.batched else called


def _cells(row: CompareRow) -> list[str]:
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
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def plot(rows: Sequence[CompareRow], path: Path) -> None:
    """Draw a panel per measure, a line per technique, for single touches."""
    title = "Idle detection against the number of users (less is better; dashed: in Redis)"
    drawing, panels = figure(1, len(PANELS), 11, 3.4, title)
    single = [row for row in without_player_cost(rows) if not row.plan.batched]
    for axes, (what, value) in zip(panels, PANELS.items(), strict=True):
        _panel(axes, single, value, is_linear=what == LINEAR)
        axes.set_title(what, color=INK, fontsize=9, loc="left")
    handles, labels = panels[0].get_legend_handles_labels()
    drawing.legend(handles, labels, fontsize=8, frameon=False, loc="outside right center")
    save(drawing, path)


def _panel(
    axes: Axes, rows: Sequence[CompareRow], value: Callable[[CompareRow], float], *, is_linear: bool
) -> None:
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


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    add = parser.add_argument
    add("--users", type=from_1, nargs="+", default=SIZES, help="N, each in turn (1000 10000 100000)")
    add("--kinds", nargs="+", choices=NAMES, default=list(NAMES), metavar="KIND", help=", ".join(NAMES))
    add("--idle-timeout", type=above_0, default=30.0, metavar="S", help="T (30); all else scales with it")
    add("--seconds", type=at_least_0, default=0.0, help="length of a run (2 T)")
    add("--seed", type=int, default=1, help="draws who beats when, and who falls silent (1)")
    add("--single", action="store_true", help="leave out the runs in which touches are made together")
    add("--out", type=Path, metavar="FILE", help="the tables, as Markdown")
    add("--plot", type=Path, metavar="PNG", help="cost and error against N")
    given = parser.parse_args(words)
    try:
        draw_schedule(plans(given)[0])
    except ValueError as error:
        parser.error(str(error))
    return given


def plans(given: argparse.Namespace) -> list[ComparePlan]:
    """Return all runs: one by one, then those in which touches are made together."""
    seconds = given.seconds or 2 * given.idle_timeout
    return [
        ComparePlan(kind, users, batched, given.idle_timeout, seconds, seed=given.seed)
        for users in given.users
        for batched in ((False,) if given.single else (False, True))
        for kind in [NOTHING, *given.kinds]
        if not batched or kind in (NOTHING, *BATCHED)
    ]


def rounds(plans: Iterable[ComparePlan]) -> list[list[ComparePlan]]:
    """Return plans in rounds, of which each does not overload two cores; the order is kept otherwise."""
    found: list[list[ComparePlan]] = []
    for plan in plans:
        fits = (each for each in found if sum(map(_weight, [*each, plan])) <= MAX_PARALLEL_USERS)
        if place := next(fits, None):
            place.append(plan)
        else:
            found.append([plan])
    return found


def _weight(plan: ComparePlan) -> int:
    if plan.kind not in IN_REDIS:
        return plan.users // LIGHT
    return plan.users // TOGETHER if plan.batched else plan.users


def play(plan: ComparePlan) -> CompareRow:
    """Play a plan in a process of its own. One that ends with an error has a row that says so."""
    with (
        LocalRedis() if plan.kind in IN_REDIS else contextlib.nullcontext() as redis,
        WorkerProcess() as process,
    ):
        within_s = plan.seconds + TAIL_SHARE * plan.idle_timeout_s + END_TIMEOUT_S
        try:
            return process.submit(run, plan, redis.url if redis else "").result(within_s)
        except Exception as error:  # whatever ends a technique is reported
            return CompareRow(plan, error=str(error) or type(error).__name__)


def main(words: Sequence[str] | None = None) -> int:
    require_linux()
    given = parse(words)
    wanted = plans(given)
    rows: list[CompareRow] = []
    every = rounds(wanted)
    for number, some in enumerate(every, 1):
        names = "; ".join(name(CompareRow(plan)) for plan in some)
        print_progress(f"{number} of {len(every)}, {some[0].users:,} users, {some[0].seconds:g} s: {names}")
        with ThreadPoolExecutor(len(some)) as pool:
            try:
                rows += pool.map(play, some)
            except BaseException:  # an interrupt: the pool would wait for the end of all
                for process in multiprocessing.active_children():
                    process.kill()
                raise
    text = as_markdown(rows)
    print(text)
    if given.out:
        given.out.write_text(text)
    if given.plot:
        plot(rows, given.plot)
    return 1 if invalid(rows) else 0


if __name__ == "__main__":
    exit_on_sigterm()
    raise SystemExit(main())
