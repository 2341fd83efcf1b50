"""The tables, in Markdown."""

from itertools import product

from loadtest.bench.dialects import ANSWERED, UNANSWERED
from loadtest.bench.prober import KINDS
from loadtest.bench.results import Load, Memory, Results, Wheel, median
from loadtest.bench.servers import OWN
from loadtest.outcome import markdown, percentile

NOTES = """\
CPU is the server's own processor time, user and kernel, of all its threads; its Redis, a process of its own,
is not in it. Ratios are taken within a round; the median stands first, then each round. Each keepalive is
sent when it is due, so a server that waits for events is woken for nearly each one; the keepalives for each
time that it had gone to sleep are counted. The floor takes as many events from one `epoll_wait` as are
there, like any C server, but seldom finds more than one. Memory is the slope from a third of the connections
to all."""

SIZES_NOTES = """\
3,300 keepalives/s at each size tell what size alone does. The other rate is a beat of each connection every
4.5 s, that is, what so many users cost: with few of them the ticks are divided among few keepalives. The
first thousands of sessions find room in memory that start-up has left free, so it is the last line that tells
what a session needs."""


def bench_table(results: Results) -> str:
    """Return the whole report on this server beside others."""
    parts = ["# This server beside others", preamble(results), "## In short", _summary(results)]
    for load in results.loads():
        parts += [f"## {load.rate:,.0f} keepalives/s, {load.kind}", _load_table(results, load)]
    parts += ["## Memory", _memory_table(results)]
    if results.trips:
        parts += ["## Round trips under these loads, ms", _trips_table(results)]
    return "\n\n".join([*parts, NOTES, *invalid(results)]) + "\n"


def preamble(results: Results) -> str:
    """Return what was measured, with what, and what was left out."""
    machine = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    settings = ", ".join(f"{name} {value}" for name, value in results.settings.items())
    lines = [f"- Machine: {machine}", f"- Settings: {settings}"]
    lines += [f"- {name}: {says}" for name, says in results.says.items()]
    lines += [f"- {name}: skipped, {why}" for name, why in results.skipped.items()]
    return "\n".join(lines)


def invalid(results: Results) -> list[str]:
    """Return a paragraph on what is not valid; nothing if all is."""
    if not (complaints := results.complaints()):
        return []
    return ["**Not valid:**\n\n" + "\n".join(f"- {complaint}" for complaint in complaints)]


def _rounds(values: list[float], digits: int) -> str:
    """Return the median and, if there are several, each value."""
    if not values:
        return ""
    each = ", ".join(f"{value:.{digits}f}" for value in values)
    return f"{median(values):.{digits}f} ({each})" if len(values) > 1 else each


def _summary(results: Results) -> str:
    """Return the ratios of all loads, one line for each rate."""
    loads = results.loads()
    columns = [
        (kind, peer)
        for kind in (UNANSWERED, ANSWERED)
        for peer in results.says
        if peer != OWN and any(results.ratios(peer, load) for load in loads if load.kind == kind)
    ]
    head = ["rate", *(f"{kind} ÷ {peer}" for kind, peer in columns)]
    body = []
    for rate in dict.fromkeys(load.rate for load in loads):
        line = [f"{rate:,.0f}/s"]
        for kind, peer in columns:
            ratios = next(
                (results.ratios(peer, load) for load in loads if (load.kind, load.rate) == (kind, rate)), []
            )
            line.append(f"{median(ratios):.2f}" if ratios else "")
        body.append(line)
    return markdown(head, body)


def _load_table(results: Results, load: Load) -> str:
    head = (
        f"server | µs of CPU a keepalive | {OWN} ÷ it | keepalives a wake | % of a core "
        "| generator, % of a core"
    )
    body = []
    for server in results.says:
        found = [each for each in results.cpu if (each.server, each.load) == (server, load)]
        if not found:
            continue
        mark = " **not valid**" if any(each.complaints for each in found) else ""
        cpu_us = results.cpu_us(server, load)
        ratio = "" if server == OWN else _rounds(results.ratios(server, load), 2)
        wake, share = median(each.per_wake for each in found), max(each.generator_share for each in found)
        body.append(
            f"{server}{mark} | {_rounds(cpu_us, 1)} | {ratio} | {wake:.1f} "
            f"| {median(cpu_us) * load.rate / 1e4:.1f} | {share * 100:.0f}"
        )
    return markdown(head, body)


def _memory_table(results: Results) -> str:
    body = []
    for server in results.says:
        if found := [each for each in results.memory if each.server == server]:
            rss, pss = (
                median(each) for each in zip(*((m.rss_bytes, m.pss_bytes) for m in found), strict=True)
            )
            body.append(
                f"{server} | {found[0].connections:,} | {rss:,.0f} | {pss:,.0f} | {_megabytes(found)}"
            )
    head = "server | connections | bytes of RSS a connection | of anonymous PSS | RSS of all, MB"
    return markdown(head, body)


def _megabytes(found: list[Memory]) -> str:
    return f"{median(each.total_bytes for each in found) / 1e6:.1f}"


def _trips_table(results: Results) -> str:
    body = []
    for load, probe, server in product(results.loads(), KINDS, results.says):
        trips = [
            trip
            for each in results.trips
            if (each.server, each.load, each.probe) == (server, load, probe)
            for trip in each.trips_ms
        ]
        if trips:
            shown = " | ".join(
                f"{each:.1f}" for each in (percentile(trips, 0.5), percentile(trips, 0.99), max(trips))
            )
            body.append(f"{load} | {probe} | {server} | {len(trips):,} | {shown}")
    return markdown("load | probe | server | probes | p50 | p99 | max", body)


def sizes_table(results: Results) -> str:
    """Return the report on cost against size."""
    parts = ["# Cost against size", preamble(results), "## This server", _sizes(results), SIZES_NOTES]
    if results.wheel:
        parts += ["## The timing wheel", wheel_table(results.wheel)]
    return "\n\n".join([*parts, *invalid(results)]) + "\n"


def _sizes(results: Results) -> str:
    head = (
        "connections | keepalives/s | µs of CPU a keepalive | % of a core | RSS of all, MB "
        "| RSS of each further connection"
    )
    body = []
    for load in sorted(results.loads(), key=lambda load: (load.connections, load.rate)):
        cpu_us = results.cpu_us(OWN, load)
        memory = [each for each in results.memory if each.connections == load.connections]
        body.append(
            f"{load.connections:,} | {load.rate:,.0f} | {_rounds(cpu_us, 1)} "
            f"| {median(cpu_us) * load.rate / 1e4:.1f} | {_megabytes(memory)} "
            f"| {median(each.rss_bytes for each in memory):,.0f} B"
        )
    return markdown(head, body)


def wheel_table(wheels: list[Wheel]) -> str:
    """Return what wheels of several sizes cost."""
    head = (
        "keys | touch, ns | … in a heap with lazy deletion | tick with nobody due, µs "
        "| … by looking at every deadline | each key taken, ns"
    )
    return markdown(
        head,
        (
            f"{each.keys:,} | {each.touch_ns:.0f} | {each.heap_ns:.0f} | {each.idle_tick_us:.2f} "
            f"| {each.scan_us:,.0f} | {each.taken_ns:.0f}"
            for each in wheels
        ),
    )
