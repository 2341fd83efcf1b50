"""Draws the state in lines of text. Nothing that a server sends can control the terminal."""

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice, zip_longest
from typing import Any, Final, NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from presence.common.text import printable
from presence.top.state import TopState
from presence.top.wheel_rows import merged_slots, wheel_rows

NO_VALUE: Final = "-"
READY: Final = "ready"  # what else a node may be needs attention
OTHER_LINES: Final = 9  # beside the rows of the wheel and of the events
MIN_WHEEL_COLUMNS: Final = 29
MAX_WHEEL_COLUMNS: Final = 60
_WHEEL_TEXT: Final = 18  # columns of a row of the wheel beside its bar
_GAP: Final = 2  # columns between the wheel and the nodes
_EVENT_STYLES: Final = {"online": "green", "offline": "yellow", "gap": "red"}
_NODE: Final = "{:<14.14}{:>9}{:>6}{:>9}  {}"


class TopView:
    """The state as a screen that fills the console."""

    def __init__(self, state: TopState) -> None:
        self._state = state

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.size.height
        yield from screen(self._state, options.max_width, height)


def screen(state: TopState, width: int, height: int) -> list[Text]:
    """Return at most `height` lines; the wheel takes half of what the others leave, and events the rest."""
    rows = max(1, (height - OTHER_LINES + 1) // 2)
    sizes, slot_s = _wheel(state.sample, rows)
    columns = min(MAX_WHEEL_COLUMNS, max(MIN_WHEEL_COLUMNS, width // 3))
    wheel = [Text("sessions by time until due", "bold"), *wheel_rows(sizes, slot_s, columns - _WHEEL_TEXT)]
    lines = [
        *_summary(state, width),
        *_side_by_side(wheel, list(_nodes(state, rows)), columns),
        Text(),
        Text("latest events", "bold"),
    ]
    lines += islice(_events(state), max(0, height - len(lines)))
    for line in lines:
        line.rstrip()
        line.truncate(width, overflow="ellipsis")
    return lines[:height]


def _wheel(sample: Mapping[str, Any], rows: int) -> tuple[list[int], float]:
    """Return the wheel in at most so many slots, and the seconds of each."""
    if not (wheel := sample.get("wheel")):
        return [], 1.0
    sizes, length = merged_slots(wheel["sizes"], rows)
    return sizes, length * wheel["slot_s"]


def _summary(state: TopState, width: int) -> Iterator[Text]:
    hello, sample = state.hello, state.sample
    about = f"  {_text(hello['version'])}  idle time-out {hello['idle_timeout_s']:g} s" if hello else ""
    status, style = "live", "green"
    if silent_s := state.silent_s:
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - silent_s))
        status, style = f"no data since {since} ({silent_s:.0f} s)", "red"
    head = Text(f"presence top  {printable(state.url)}{about}", "bold")
    head.truncate(max(0, width - len(status) - 1), overflow="ellipsis", pad=True)
    yield head.append(f" {status}", f"not bold {style}")
    yield Text(
        f"users online {_count(sample.get('online'))}  sessions {_count(sample.get('sessions'))}  "
        f"connections {_count(sample.get('connections'))}"
    )
    _, _, _, _, packets, online, offline, logins = sample.get("point") or [None] * 8
    yield Text(
        f"per second: packets {_rate(packets)}  logins {_rate(logins)}  refusals "
        f"{_rate(sample.get('refusals_per_s'))}  users come {_rate(online)}, gone {_rate(offline)}"
    )
    yield Text(f"detection delay: {_delays(sample.get('delays'))}")
    yield _redis(sample)
    yield Text(printable(state.problem), "red")


def _delays(delays: Mapping[str, Any] | None) -> str:
    """Describe the histogram of detection delays: the bounds of its median and its 99th percentile."""
    if not delays or not (total := sum(delays["counts"])):
        return "no session went silent"

    def bound(fraction: float) -> str:
        index = next(i for i, seen in enumerate(accumulate(delays["counts"])) if seen >= fraction * total)
        bounds = delays["bounds"]
        return f"within {bounds[index]:g} s" if index < len(bounds) else f"over {bounds[-1]:g} s"

    return f"half {bound(0.5)}, 99 % {bound(0.99)}, of {total:,} silent sessions"


def _redis(sample: Mapping[str, Any]) -> Text:
    queued = sum(each["outbox"] or 0 for each in sample.get("workers", ()))
    waiting = f"  {queued:,} changes queued"
    if not (redis := sample.get("redis")):
        return Text(f"Redis: not read yet{waiting if sample else ''}")
    if redis["status"] != "ok":
        return Text(f"Redis: unreachable{waiting}  {_text(redis['error'])}", "red")
    ping = NO_VALUE if redis["ping_ms"] is None else f"{redis['ping_ms']:.1f} ms"
    memory, limit = _bytes(redis["used_memory_bytes"]), redis["maxmemory_bytes"]
    memory += f" of {_bytes(limit)}" if limit else ""
    memory += " in the fullest server" if (redis["servers"] or 1) > 1 else ""
    return Text(
        f"Redis: {_text(redis['server'])} {_text(redis['version'])}  ping {ping}  memory {memory}"
        f"  evicted {_count(redis['evicted_keys'])}{waiting}"
    )


class _NodeRow(NamedTuple):
    """A worker of this server, or another node on the same Redis."""

    name: str | None
    sessions: int | None
    cpu: str
    memory: str
    status: str | None


def _nodes(state: TopState, most: int) -> Iterator[Text]:
    """Yield a heading and at most so many lines, the last of which counts the nodes that are left out.

    Workers of this server come before other nodes, and what is not ready before both.
    """
    yield Text(_NODE.format("workers, nodes", "sessions", "CPU", "memory", ""), "bold")
    rows = sorted(_node_rows(state), key=lambda row: row.status == READY)
    shown = len(rows) if len(rows) <= most else most - 1
    yield from (_node_line(row) for row in rows[: max(0, shown)])
    if shown < len(rows):
        yield Text(f"and {len(rows) - shown:,} more", "dim")


def _node_rows(state: TopState) -> Iterator[_NodeRow]:
    workers = state.sample.get("workers", ())
    nodes = {each["node"]: each for each in state.sample.get("nodes") or ()}
    for worker in workers:
        node = nodes.pop(worker["node"], None)
        is_alive = worker["answering"] and (node is None or node["status"] == "alive")
        status = worker["readiness"] if worker["answering"] else "no answer"
        share = state.cpu_share(worker["pid"])
        yield _NodeRow(
            f"worker {worker['worker']}" if worker["worker"] else "this server",
            worker["sessions"],
            NO_VALUE if share is None else f"{share:.0%}",
            _bytes(worker["rss_bytes"]),
            status if is_alive or node is None else node["status"],
        )
    for node in nodes.values():
        status = node["readiness"] if node["status"] == "alive" else node["status"]
        yield _NodeRow(node["address"], node["sessions"], "", "", status)


def _node_line(row: _NodeRow) -> Text:
    line = Text(_NODE.format(_text(row.name), _count(row.sessions), row.cpu, row.memory, ""))
    return line.append(_text(row.status), "green" if row.status == READY else "red")


def _events(state: TopState) -> Iterator[Text]:
    for event in state.events:
        if isinstance(event, str):
            yield Text(event, "dim")
            continue
        kind = _text(event.get("type"))
        if kind == "gap":
            who = f"{_count(event.get('dropped'))} changes are missing"
        else:
            who = _text(event.get("uid")) + (f" ({_text(event['device'])})" if event.get("device") else "")
        line = Text(f"{_time(event)}  ", "dim").append(
            f"{kind:<8}", f"not dim {_EVENT_STYLES.get(kind, 'cyan')}"
        )
        yield line.append(f"{who}  {_text(event.get('reason', ''))}", "not dim")


def _time(event: Mapping[str, Any]) -> str:
    """Return the local time of an event."""
    at_ms = event.get("at_ms", event["id"].partition("-")[0])
    try:
        return time.strftime("%H:%M:%S", time.localtime(int(at_ms) / 1000))
    except (ValueError, OverflowError, OSError):  # out of range
        return f"{NO_VALUE:<8}"


def _side_by_side(left: Sequence[Text], right: Sequence[Text], columns: int) -> Iterator[Text]:
    for one, other in zip_longest(left, right, fillvalue=Text()):
        line = one.copy()
        line.truncate(columns, overflow="ellipsis", pad=True)
        yield line.append(" " * _GAP).append_text(other)


def _text(value: object) -> str:
    return NO_VALUE if value is None else printable(str(value))


def _count(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:,.0f}"


def _rate(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:,.1f}" if value < 10 else f"{value:,.0f}"


def _bytes(value: float | None) -> str:
    if value is None:
        return NO_VALUE
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
