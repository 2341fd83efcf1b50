"""Outcomes of trials as tables, and what must not be in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from loadtest.timers.service.trial import Outcome

TICK_MS = 10.0

Column = tuple[str, Callable[[Outcome], str]]


def _micro(value_ns: float) -> str:
    return f"{value_ns / 1000:.2f}"


MEMORY: Column = ("bytes a timer", lambda each: f"{each.timer_bytes:.0f}")
ADD: Column = ("add, µs", lambda each: _micro(each.add_ns))
FIRE: Column = ("fire, µs", lambda each: _micro(each.fire_ns))
BOTH: Column = ("add + fire, µs", lambda each: _micro(each.add_ns + each.fire_ns))
COLUMNS: dict[str, Sequence[Column]] = {
    "real": (
        ("late mean, ms", lambda each: f"{each.mean_ms:.2f}"),
        ("p50", lambda each: f"{each.p50_ms:.2f}"),
        ("p99", lambda each: f"{each.p99_ms:.2f}"),
        ("max", lambda each: f"{each.max_ms:.1f}"),
        ("early", lambda each: str(each.early)),
        ("not fired", lambda each: str(each.count - each.fired)),
        ADD,
        FIRE,
        BOTH,
        MEMORY,
    ),
    "cancel": (
        ADD,
        ("cancel, µs", lambda each: _micro(each.cancel_ns)),
        ("cancel, and gone, µs", lambda each: _micro(each.gone_ns)),
        MEMORY,
    ),
    "mock": (("early", lambda each: str(each.early)), ADD, FIRE, BOTH),
}
HEADINGS = {
    "real": "{count:,} timers over {span_s:g} s, in real time",
    "cancel": "{count:,} timers over {span_s:g} s, 99 of 100 cancelled in random order",
    "mock": "{count:,} timers over {span_s:g} s, by a clock that jumps",
}


def tables(outcomes: Iterable[Outcome]) -> str:
    """Return a markdown table for each mode, count and span; processor time is a timer's share."""
    groups: dict[tuple[str, int, float], list[Outcome]] = {}
    for each in outcomes:
        groups.setdefault((each.mode, each.count, each.span_s), []).append(each)
    return "\n\n".join(_table(group) for group in groups.values())


def _table(group: Sequence[Outcome]) -> str:
    first = group[0]
    columns = COLUMNS[first.mode]
    lines = [HEADINGS[first.mode].format(count=first.count, span_s=first.span_s), ""]
    lines.append("| | " + " | ".join(name for name, _ in columns) + " |")
    lines.append("| --- |" + " --: |" * len(columns))
    for each in group:
        if each.error:
            lines.append(f"| {each.kind} | {each.error} |" + " |" * (len(columns) - 1))
        else:
            lines.append(f"| {each.kind} | " + " | ".join(cell(each) for _, cell in columns) + " |")
    ours = first if first.kind == "TimerService" and not first.error else None
    for each in group[1:]:
        if ours and not each.error:
            ratios = _ratios(ours, each, columns)
            lines.append(f"| {each.kind} ÷ TimerService | " + " | ".join(ratios) + " |")
    return "\n".join(lines)


def _ratios(ours: Outcome, other: Outcome, columns: Sequence[Column]) -> list[str]:
    """Return how many times ours the other takes, where that says something."""
    cells = []
    for name, cell in columns:
        costs = ("µs" in name or "bytes" in name) and float(cell(ours)) > 0
        cells.append(f"{float(cell(other)) / float(cell(ours)):.2f}" if costs else "")
    return cells


def broken(outcomes: Iterable[Outcome], slack_ms: float) -> list[str]:
    """Return in words what a kind that is ours must not do.

    Args:
        outcomes: of trials of ours.
        slack_ms: how much later than a tick the 99th percentile may be.
    """
    faults = []
    for each in outcomes:
        name = f"{each.mode}, {each.count:,} timers"
        if each.error:
            faults.append(f"{name}: {each.error}")
        elif each.early:
            faults.append(f"{name}: {each.early} were early")
        elif each.mode != "cancel" and each.fired < each.count:
            faults.append(f"{name}: {each.count - each.fired} did not fire")
        elif each.mode == "real" and each.p99_ms > TICK_MS + slack_ms:
            faults.append(f"{name}: p99 {each.p99_ms:.1f} ms, {TICK_MS + slack_ms:.0f} allowed")
    return faults
