"""The plot: cost and error against the number of users, on a light ground of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtest.bench.plots import DOTS_PER_INCH, GROUND, INK, OWN_COLOUR
from loadtest.compare.figures import Figures, figures
from loadtest.compare.results import Results
from loadtest.compare.technique import IN_REDIS, NAMES

# In the process blue and green, the heaps grey; in Redis the warm colours, dashed.
COLOURS: Final = {
    "wheel": OWN_COLOUR,
    "service": "#4dabf7",
    "heap": "#868e96",
    "rearmed": "#ced4da",
    "trio": "#51cf66",
    "redis-wheel": "#e8590c",
    "ring": "#f08c00",
    "queue": "#c2255c",
    "expiry": "#9c36b5",
}
LEAST: Final = 0.1  # what is less is drawn there: an axis that is logarithmic has no zero
LINEAR: Final = "told falsely or not at all,\n% of all users"
PANELS: Final[dict[str, Callable[[Figures], float]]] = {
    "µs of CPU a touch,\nprocess and Redis": lambda each: each.process_us + each.redis_us,
    "bytes a user,\nprocess and Redis": lambda each: each.process_bytes + each.redis_bytes,
    "lateness, ms: 99 %": lambda each: each.p99_ms,
    LINEAR: lambda each: 100 * each.wrong / each.users,
}


def draw(results: Results, path: Path) -> None:
    """Draw a panel for each figure, a line for each technique, touches one by one."""
    figure = Figure(figsize=(11, 3.4), facecolor=GROUND, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        "Idle detection against the number of users (less is better; dashed: in Redis)",
        color=INK,
        fontsize=11,
    )
    for number, (title, value) in enumerate(PANELS.items(), 1):
        axes = figure.add_subplot(1, len(PANELS), number, facecolor=GROUND)
        _panel(axes, results, value, is_linear=title == LINEAR)
        axes.set_title(title, color=INK, fontsize=9, loc="left")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, frameon=False, loc="outside right center")
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None}, pil_kwargs={"optimize": True})


def _panel(axes: Axes, results: Results, value: Callable[[Figures], float], *, is_linear: bool) -> None:
    for kind, name in NAMES.items():
        found = [(users, figures(results, kind, users)) for users in results.sizes()]
        least = 0.0 if is_linear else LEAST
        points = [(users, max(least, value(each))) for users, each in found if each]
        if points:
            line = "o--" if kind in IN_REDIS else "o-"
            sizes, values = zip(*points, strict=True)
            label = name.replace("`", "")
            axes.plot(sizes, values, line, color=COLOURS[kind], label=label, markersize=4, linewidth=1.4)
    axes.set_xscale("log")
    if not is_linear:
        axes.set_yscale("log")
    axes.set_xticks(results.sizes(), [f"{users / 1000:g}k" for users in results.sizes()])
    axes.minorticks_off()
    axes.set_xlabel("users", color=INK, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=8)
