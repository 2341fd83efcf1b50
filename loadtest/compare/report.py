"""The tables, in Markdown."""

import math
from collections.abc import Iterable, Iterator
from typing import Final

from loadtest.bench.report import rows
from loadtest.compare.figures import Figures, figures
from loadtest.compare.results import Results, Row
from loadtest.compare.technique import NAMES
from loadtest.compare.trials import DOWN_FOR, FAULTS

NONE: Final = "-"  # not played
NOTES: Final = """\
CPU is user and kernel time of all threads, tellings and all looks for what is due included, divided by the
touches; the process' is less what a player costs that touches nothing (touches are made together once in
50 ms). Memory of a user is without his name; Redis' is its `used_memory`, the process' that of no file, just
before the first telling; in short that of the largest size that was kept up with. Lateness is from T after
the begin of the last touch to the moment at which the process has the telling. Early: less than T. False: of
somebody who beats. Missed: not told by the end.
"Breaks at" is the rate of the open loop, raised by 15 % a step with the largest number of users, at which a
quarter of a second's touches wait; the last that was kept up with stands before it."""


def whole(results: Results) -> str:
    """Return everything."""
    parts = [
        "# Idle detection: one workload, all techniques",
        _machine(results),
        "## In short",
        short(results),
    ]
    for users in results.sizes():
        parts += [f"## {users:,} users", _size_table(results, users)]
    if any("breaking" in row for row in results):
        parts += ["## The rate at which it breaks", _breaking_table(results)]
    if any(row["fault"] for row in results):
        parts += ["## What is lost", *_losses(results)]
    if errors := results.errors():
        parts += ["## What did not end", "\n".join(f"* {line}" for line in errors)]
    return "\n\n".join([*parts, NOTES]) + "\n"


def short(results: Results) -> str:
    """Return the table for a page that has not much room: a row for each technique."""
    sizes = results.sizes()
    at = " / ".join(f"{users:,}" for users in sizes)
    head = [f"N = {at}", "µs of CPU a touch: process", "Redis", "bytes a user", "late ms: p50, p99, max"]
    body = []
    for kind, name, batched in _variants(results):
        found = [figures(results, kind, users, batched=batched) for users in sizes]
        body.append(
            [
                name,
                " / ".join(_number(each.process_us) if each else NONE for each in found),
                " / ".join(_number(each.redis_us) if each else NONE for each in found),
                _bytes(next((each for each in reversed(found) if each and not each.wrong), None)),
                " / ".join(_lateness(each) if each else NONE for each in found),
                " / ".join(f"{each.wrong:,}" if each else NONE for each in found),
                _breaks_at(results.breaking(kind, batched=batched)),
            ]
        )
    return rows([*head, "early, false, missed", "breaks at, touches/s"], body)


def _variants(results: Results) -> Iterator[tuple[str, str, bool]]:
    for kind, name in NAMES.items():
        for batched in (False, True):
            is_there = any(row["kind"] == kind and row["batched"] == batched for row in results)
            if is_there:
                yield kind, f"{name}, batched" if batched else name, batched


def _size_table(results: Results, users: int) -> str:
    head = [
        *("", "touches/s", "process µs", "Redis µs", "scripts", "commands", "process B", "Redis B"),
        *("p50 ms", "p99 ms", "max ms", "early", "false", "missed", "touches late by at most, ms"),
    ]
    found = (
        (name, figures(results, kind, users, batched=batched)) for kind, name, batched in _variants(results)
    )
    return rows(head, ([name, *_cells(each)] for name, each in found if each))


def _cells(each: Figures) -> list[str]:
    return [
        f"{each.touches_s:,.0f}",
        _number(each.process_us),
        _number(each.redis_us),
        f"{each.scripts:.2f}",
        f"{each.commands:.1f}",
        f"{each.process_bytes:,.0f}",
        f"{each.redis_bytes:,.0f}",
        *(_number(value) for value in (each.p50_ms, each.p99_ms, each.max_ms)),
        *(f"{count:,}" for count in (each.early, each.false, each.missed)),
        _number(each.lag_ms),
    ]


def _breaking_table(results: Results) -> str:
    body = []
    for kind, name in NAMES.items():
        cells = [results.breaking(kind, batched=batched) for batched in (False, True)]
        if any(cells):
            body.append([name, *(_breaks_at(cell) for cell in cells)])
    users = max(row["users"] for row in results if "breaking" in row)
    return rows([f"touches/s, {users:,} users", "one by one", "batched"], body)


def _losses(results: Results) -> Iterator[str]:
    some = next(row for row in results if row["fault"])
    plan = some["plan"]
    timeout_s = plan["idle_timeout_s"]
    yield (
        f"{plan['users']:,} users, T = {timeout_s:g} s; away for {timeout_s * DOWN_FOR:.3g} s. Of those that "
        "fell silent: told in time / late (by at most) / never; and tellings that were early or of somebody "
        "who beats, and users told of twice."
    )
    body = [
        [name, *(_loss(results.killed(kind, fault)) for fault in FAULTS)]
        for kind, name in NAMES.items()
        if any(results.killed(kind, fault) for fault in FAULTS)
    ]
    yield rows(["", *FAULTS], body)


def _loss(row: Row | None) -> str:
    if row is None:
        return NONE
    verdict = row["verdict"]
    in_time = verdict["found"] - verdict["late"]
    latest = f" ({verdict['max_ms'] / 1000:.1f} s)" if verdict["late"] else ""
    beside = [
        f"{count} {what}"
        for what, count in (
            ("early", verdict["early"]),
            ("false", verdict["false"]),
            ("twice", verdict["doubled"]),
        )
        if count
    ]
    told = f"{in_time} / {verdict['late']}{latest} / {verdict['missed']}"
    return "; ".join([told, *beside])


def _lateness(each: Figures) -> str:
    return ", ".join(_number(value) for value in (each.p50_ms, each.p99_ms, each.max_ms))


def _bytes(each: Figures | None) -> str:
    if each is None:
        return NONE
    return f"{each.redis_bytes:,.0f} in Redis" if each.redis_bytes else f"{each.process_bytes:,.0f}"


def _breaks_at(row: Row | None) -> str:
    if row is None:
        return NONE
    found = row["breaking"]
    if "error" in found:
        return "it failed"
    kept, broken = found["kept"], found["broken"]
    return f"{_thousands(kept)} to {_thousands(broken)}" if broken else f"above {_thousands(kept)}"


def _thousands(rate: float) -> str:
    return f"{rate / 1000:,.1f}k" if rate < 100_000 else f"{rate / 1000:,.0f}k"


def _number(value: float) -> str:
    """Return two digits, or all before the point."""
    if math.isnan(value):
        return NONE
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _machine(results: Results) -> str:
    facts: Iterable[str] = (f"{name} {value}" for name, value in results.machine.items())
    return ", ".join(facts)
