"""The plots, as PNG. On a light ground of their own, so that they can be read on a dark page too."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtest.bench.prober import KINDS
from loadtest.bench.report import trips_of
from loadtest.bench.results import Results, median, percentile
from loadtest.bench.servers import OWN

DOTS_PER_INCH = 100
GROUND = "#fbfbf9"
INK = "#24292f"
OWN_COLOUR = "#0b7285"
PEER_COLOUR = "#adb5bd"
P50, P99 = 0.5, 0.99


def draw_bench(results: Results, folder: Path) -> None:
    """Draw this server beside others: ``cpu.png``, ``memory.png``; ``latency.png`` of the probes."""
    _cpu(results, folder / "cpu.png")
    _memory(results, folder / "memory.png")
    if results.trips:
        _latency(results, folder / "latency.png")


def draw_sizes(results: Results, folder: Path) -> None:
    """Draw cost against size: ``sizes.png``, and ``wheel.png`` if the wheel was measured."""
    _sizes(results, folder / "sizes.png")
    if results.wheel:
        _wheel(results, folder / "wheel.png")


def _figure(rows: int, columns: int, width: float, height: float, title: str) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), facecolor=GROUND, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, color=INK, fontsize=11)
    all_axes = []
    for number in range(rows * columns):
        axes = figure.add_subplot(rows, columns, number + 1, facecolor=GROUND)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, labelsize=8)
        all_axes.append(axes)
    return figure, all_axes


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None}, pil_kwargs={"optimize": True})


def _bars(axes: Axes, names: Sequence[str], values: Sequence[float], form: str) -> None:
    """Draw one bar a server, the first on top, each with its value."""
    colours = [OWN_COLOUR if name == OWN else PEER_COLOUR for name in names]
    bars = axes.barh(list(names), list(values), color=colours)
    axes.bar_label(bars, labels=[form.format(value) for value in values], padding=3, color=INK, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.18)


def _cpu(results: Results, path: Path) -> None:
    loads = sorted(results.loads(), key=lambda load: (load.kind, load.rate), reverse=True)
    rows = math.ceil(len(loads) / 2)
    connections = f"{loads[0].connections:,} connections" if loads else ""
    title = f"µs of CPU for each keepalive, {connections} (less is better)"
    figure, all_axes = _figure(rows, 2 if len(loads) > 1 else 1, 9, 0.6 + 2.2 * rows, title)
    for axes, load in zip(all_axes, loads, strict=False):
        names = [name for name in results.says if results.cpu_us(name, load)]
        _bars(axes, names, [median(results.cpu_us(name, load)) for name in names], "{:.1f}")
        axes.set_title(str(load), color=INK, fontsize=9, loc="left")
    for axes in all_axes[len(loads) :]:
        axes.set_visible(False)
    _save(figure, path)


def _memory(results: Results, path: Path) -> None:
    found = {
        name: median(each.rss_bytes for each in results.memory if each.server == name)
        for name in results.says
        if name != "floor"  # it keeps nothing for a connection
    }
    figure, (axes,) = _figure(1, 1, 9, 2.6, "Bytes of RSS for each connection, logarithmic (less is better)")
    axes.set_xscale("log")
    _bars(axes, list(found), [max(value, 1.0) for value in found.values()], "{:,.0f}")
    axes.set_xlim(left=100)
    _save(figure, path)


def _latency(results: Results, path: Path) -> None:
    loads = results.loads()
    servers = [name for name in results.says if any(each.server == name for each in results.trips)]
    figure, all_axes = _figure(
        1, len(KINDS), 9, 3.2, "Round trips under load, ms: median (bar) and p99 (line)"
    )
    for axes, probe in zip(all_axes, KINDS, strict=True):
        for place, server in enumerate(servers):
            trips = [trips_of(results, server, load, probe) for load in loads]
            middle = [percentile(each, P50) for each in trips]
            upper = [percentile(each, P99) - half for each, half in zip(trips, middle, strict=True)]
            height = 0.8 / len(servers)
            at = [number + place * height for number in range(len(loads))]
            colour = OWN_COLOUR if server == OWN else PEER_COLOUR
            axes.barh(at, middle, height, color=colour, label=server)
            axes.errorbar(middle, at, xerr=[[0.0] * len(at), upper], fmt="none", ecolor=INK, elinewidth=1)
        axes.set_yticks([number + 0.4 - 0.4 / len(servers) for number in range(len(loads))])
        axes.set_yticklabels([str(load) for load in loads] if axes is all_axes[0] else [])
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.set_title(probe, color=INK, fontsize=9, loc="left")
    all_axes[-1].legend(fontsize=8, frameon=False, loc="lower right")
    widest = max(axes.get_xlim()[1] for axes in all_axes)
    for axes in all_axes:
        axes.set_xlim(right=widest)
    _save(figure, path)


def _sizes(results: Results, path: Path) -> None:
    figure, (each, all_of_them, memory) = _figure(1, 3, 9, 3.0, "This server: cost against size")
    rates = [load.rate for load in results.loads()]
    same = sorted(load for load in results.loads() if rates.count(load.rate) > 1)
    rising = sorted(load for load in results.loads() if rates.count(load.rate) == 1)
    each.plot(
        [load.connections for load in same],
        [median(results.cpu_us(OWN, load)) for load in same],
        "o-",
        color=OWN_COLOUR,
    )
    each.set_title("µs of CPU a keepalive,\nthe same rate at each size", color=INK, fontsize=9, loc="left")
    all_of_them.plot(
        [load.connections for load in rising],
        [median(results.cpu_us(OWN, load)) * load.rate / 1e4 for load in rising],
        "o-",
        color=OWN_COLOUR,
    )
    all_of_them.set_title("% of a core,\na beat of each every 4.5 s", color=INK, fontsize=9, loc="left")
    counts = sorted({found.connections for found in results.memory})
    resident = [
        median(found.total_bytes for found in results.memory if found.connections == count)
        for count in counts
    ]
    memory.plot(counts, [value / 1e6 for value in resident], "o-", color=OWN_COLOUR)
    memory.set_title("RSS of the process, MB", color=INK, fontsize=9, loc="left")
    for axes in (each, all_of_them, memory):
        axes.set_ylim(0, 1.2 * axes.get_ylim()[1])
        axes.set_xlim(left=0)
        axes.set_xticks(counts, [f"{count / 1000:g}k" for count in counts])
        axes.set_xlabel("connections", color=INK, fontsize=8)
    _save(figure, path)


def _wheel(results: Results, path: Path) -> None:
    figure, (touch, tick) = _figure(1, 2, 9, 3.2, "The timing wheel: cost against the number of keys")
    keys = [each.keys for each in results.wheel]
    touch.plot(
        keys, [each.touch_ns for each in results.wheel], "o-", color=OWN_COLOUR, label="wheel, ns a touch"
    )
    touch.plot(
        keys, [each.heap_ns for each in results.wheel], "o-", color=PEER_COLOUR, label="heap, ns a touch"
    )
    tick.plot(
        keys,
        [each.idle_tick_us for each in results.wheel],
        "o-",
        color=OWN_COLOUR,
        label="wheel, µs a tick at which nobody is due",
    )
    tick.plot(
        *(keys, [each.scan_us for each in results.wheel], "o-"),
        color=PEER_COLOUR,
        label="a look at every deadline, µs",
    )
    tick.set_yscale("log")
    touch.set_ylim(bottom=0)
    for axes in (touch, tick):
        axes.set_xscale("log")
        axes.set_xlabel("keys", color=INK, fontsize=8)
        axes.legend(fontsize=8, frameon=False)
    _save(figure, path)
