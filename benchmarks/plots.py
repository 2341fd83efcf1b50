"""The plots, as PNG. On a light ground of their own, so that they can be read on a dark page too."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.contenders import OWN
from benchmarks.results import KeepaliveLoad, Results, median

DOTS_PER_INCH = 100
GROUND = "#fbfbf9"
INK = "#24292f"
OWN_COLOUR = "#0b7285"
PEER_COLOUR = "#adb5bd"


def figure(rows: int, columns: int, width: float, height: float, title: str) -> tuple[Figure, list[Axes]]:
    """Return a figure with a title, and its axes."""
    drawing = Figure(figsize=(width, height), facecolor=GROUND, layout="constrained")
    FigureCanvasAgg(drawing)
    drawing.suptitle(title, color=INK, fontsize=11)
    all_axes = []
    for number in range(rows * columns):
        axes = drawing.add_subplot(rows, columns, number + 1, facecolor=GROUND)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, labelsize=8)
        all_axes.append(axes)
    return drawing, all_axes


def save(drawing: Figure, path: Path) -> None:
    drawing.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None}, pil_kwargs={"optimize": True})


def _bars(axes: Axes, names: Sequence[str], values: Sequence[float], form: str) -> None:
    """Draw one bar per server, the first on top, each with its value."""
    colours = [OWN_COLOUR if name == OWN else PEER_COLOUR for name in names]
    bars = axes.barh(list(names), list(values), color=colours)
    axes.bar_label(bars, labels=[form.format(value) for value in values], padding=3, color=INK, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.18)


def draw_bench(results: Results, folder: Path) -> None:
    """Draw this server beside others: ``cpu.png``."""
    loads = sorted(results.loads(), key=lambda load: (load.kind, load.rate), reverse=True)
    rows = math.ceil(len(loads) / 2)
    connections = f"{loads[0].connections:,} connections" if loads else ""
    title = f"µs of CPU for each keepalive, {connections} (less is better)"
    drawing, all_axes = figure(rows, 2 if len(loads) > 1 else 1, 9, 0.6 + 2.2 * rows, title)
    for axes, load in zip(all_axes, loads, strict=False):
        names = [name for name in results.says if results.cpu_us(name, load)]
        _bars(axes, names, [median(results.cpu_us(name, load).values()) for name in names], "{:.1f}")
        axes.set_title(str(load), color=INK, fontsize=9, loc="left")
    for axes in all_axes[len(loads) :]:
        axes.set_visible(False)
    save(drawing, folder / "cpu.png")


def draw_sizes(results: Results, folder: Path) -> None:
    """Draw cost against size: ``sizes.png``."""
    drawing, panels = figure(1, 3, 9, 3.0, "This server: cost against size")
    rates = [load.rate for load in results.loads()]
    same = sorted(load for load in results.loads() if rates.count(load.rate) > 1)
    rising = sorted(load for load in results.loads() if rates.count(load.rate) == 1)
    sizes = sorted({found.connections for found in results.memory})
    resident = [
        median(found.total_bytes for found in results.memory if found.connections == size) for size in sizes
    ]

    def cpu_us(load: KeepaliveLoad) -> float:
        return median(results.cpu_us(OWN, load).values())

    lines = {
        "µs of CPU a keepalive,\nthe same rate at each size": [cpu_us(load) for load in same],
        "% of a core,\na beat of each every 4.5 s": [cpu_us(load) * load.rate / 1e4 for load in rising],
        "RSS of the process, MB": [value / 1e6 for value in resident],
    }
    for axes, (title, values) in zip(panels, lines.items(), strict=True):
        axes.plot(sizes, values, "o-", color=OWN_COLOUR)
        axes.set_title(title, color=INK, fontsize=9, loc="left")
        axes.set_ylim(0, 1.2 * axes.get_ylim()[1])
        axes.set_xlim(left=0)
        axes.set_xticks(sizes, [f"{size / 1000:g}k" for size in sizes])
        axes.set_xlabel("connections", color=INK, fontsize=8)
    save(drawing, folder / "sizes.png")
