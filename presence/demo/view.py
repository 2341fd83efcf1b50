"""The output of the demo: a live view on a terminal, a line every few seconds elsewhere."""

from collections import deque
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from presence.common.text import printable
from presence.demo.comparison import EXPECTED, ComparisonResult, TimelineEvent
from presence.protocol import Code
from presence.top.wheel import wheel_rows

EVENTS_SHOWN = 10
BAR_WIDTH = 44
DIFFERENCES_SHOWN = 20


@dataclass
class DemoState:
    """The data that is shown."""

    seconds: float
    slot_s: float  # seconds that a slot covers
    url: str = ""  # of the live page; "" for none
    elapsed_s: float = 0.0  # of `seconds`
    online: int = 0  # users online according to the server
    slots: list[int] = field(default_factory=list)  # sessions in each slot of the wheel, soonest first
    counts: dict[str, int] = field(default_factory=dict)  # events by type and reason
    latest: deque[TimelineEvent] = field(default_factory=lambda: deque(maxlen=EVENTS_SHOWN))

    def add(self, event: TimelineEvent) -> None:
        """Add an event."""
        reason = Code(event.code).reason
        name = event.type if event.type == "online" else f"offline: {reason}"
        self.counts[name] = self.counts.get(name, 0) + 1
        self.latest.append(event)

    def line(self) -> str:
        """The picture in one line."""
        counts = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        return f"{self.elapsed_s:5.1f} s  users online {self.online}  events: {counts or 'none'}"

    def __rich__(self) -> Group:
        """The picture for a terminal."""
        where = f"   live page: {self.url}" if self.url else ""
        return Group(
            Text(
                f"presence demo   {self.elapsed_s:.0f} of {self.seconds:.0f} s   users online: {self.online}"
                f"{where}"
            ),
            Panel(
                Group(*wheel_rows(self.slots, self.slot_s, BAR_WIDTH)),
                title="the wheel: sessions by the time they are due",
                title_align="left",
            ),
            Panel(self._events(), title="events from the Redis stream", title_align="left"),
        )

    def _events(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_row(Text("  ".join(f"{name} {count}" for name, count in self.counts.items()), style="bold"))
        for event in self.latest:
            style = "green" if event.type == "online" else "yellow"
            table.add_row(
                Text(f"{event.type:<8} {printable(event.uid)}  {Code(event.code).reason}", style=style)
            )
        return table


class DemoView:
    """Redraws the state at every `refresh` until it is closed.

    If the console is not a terminal, a line is printed every few seconds.
    """

    LINE_INTERVAL_S = 5.0

    def __init__(self, state: DemoState, console: Console) -> None:
        self._state = state
        self._console = console
        self._last_line_s = 0.0
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(state, console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> "DemoView":
        if self._live is not None:
            self._live.start()
        elif self._state.url:
            self._console.print(f"live page: {self._state.url}", markup=False, highlight=False)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        """Print a line, above the picture if there is one."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def refresh(self) -> None:
        """Draw the picture as it is now."""
        if self._live is not None:
            self._live.refresh()
        elif self._state.elapsed_s - self._last_line_s >= self.LINE_INTERVAL_S:
            self._last_line_s = self._state.elapsed_s
            self._console.print(self._state.line(), markup=False, highlight=False, soft_wrap=True)


def show_summary(result: ComparisonResult, console: Console) -> None:
    """Print the comparison of actions and events."""
    table = Table(title="what the clients did, and the events", title_justify="left")
    for heading in ("clients", "action", "expected event", "events", "delay (min / median / max)"):
        table.add_column(heading, justify="right" if heading in {"clients", "events"} else "left")
    for row in result.rows:
        code = EXPECTED[row.action]
        expected = "none" if code is None else f"offline, {code.reason}"
        table.add_row(str(row.clients), row.action.value, expected, str(row.events), row.spread())
    console.print(table)
    for difference in result.differences[:DIFFERENCES_SHOWN]:
        console.print(f"differs: {printable(difference)}", markup=False, highlight=False)
    if len(result.differences) > DIFFERENCES_SHOWN:
        console.print(f"… and {len(result.differences) - DIFFERENCES_SHOWN} more", highlight=False)
    agreed = "events match the clients" if not result.differences else "events differ from the clients"
    console.print(agreed, style="bold green" if not result.differences else "bold red")
