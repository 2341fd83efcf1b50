"""What a run of the benchmark has found: plain data that goes to JSON, and its tables in Markdown."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product

from benchmarks.contenders import OWN
from benchmarks.prober import KINDS
from benchmarks.wheel import Wheel, wheel_table
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


@dataclass(frozen=True, order=True)
class KeepaliveLoad:
    """Keepalives of one kind, per second and over that many connections."""

    kind: str
    rate: float
    connections: int

    def __str__(self) -> str:
        return f"{self.rate:,.0f}/s, {self.kind}"


@dataclass(frozen=True)
class Cpu:
    """One server under one load in one round."""

    server: str
    round: int
    load: KeepaliveLoad
    cpu_us: float  # µs of processor time for each keepalive
    per_wake: float  # keepalives for each time that the server had gone to sleep
    generator_share: float  # the load generator's processor time, of a core
    complaints: list[str]  # why it is not valid; empty when it is


@dataclass(frozen=True)
class MemorySlope:
    """Bytes of one server in one round.

    Attributes:
        rss_bytes, pss_bytes: per connection, from a third of them to all: resident; without pages of files,
            and each shared page divided among its processes.
        total_bytes: resident, of the whole process with all connections.
    """

    server: str
    round: int
    connections: int
    rss_bytes: float
    pss_bytes: float
    total_bytes: int


@dataclass(frozen=True)
class Trips:
    """Round trips of one kind of probe, in ms, at one server under one load in one round."""

    server: str
    round: int
    load: KeepaliveLoad
    probe: str
    trips_ms: list[float]
    complaints: list[str] = field(default_factory=list)  # why the round trips are not valid


@dataclass
class Results:
    """Everything that one run found, and where."""

    machine: dict[str, str]  # processor, kernel, versions
    settings: dict[str, object]  # the options of the run
    says: dict[str, str] = field(default_factory=dict)  # what each server is; in the order of the tables
    skipped: dict[str, str] = field(default_factory=dict)  # servers that could not be measured here, and why
    cpu: list[Cpu] = field(default_factory=list)
    memory: list[MemorySlope] = field(default_factory=list)
    trips: list[Trips] = field(default_factory=list)
    wheel: list[Wheel] = field(default_factory=list)

    def loads(self) -> list[KeepaliveLoad]:
        """Return the loads in the order in which they were first measured."""
        return list(dict.fromkeys(each.load for each in self.cpu))

    def cpu_us(self, server: str, load: KeepaliveLoad) -> dict[int, float]:
        """Return a server's µs per keepalive, by round."""
        found = [each for each in self.cpu if (each.server, each.load) == (server, load)]
        return {each.round: each.cpu_us for each in sorted(found, key=lambda each: each.round)}

    def ratios(self, peer: str, load: KeepaliveLoad) -> list[float]:
        """Return this server's µs over a peer's, for each round with both."""
        own, others = self.cpu_us(OWN, load), self.cpu_us(peer, load)
        return [own[number] / us for number, us in others.items() if us > 0 and number in own]

    def complaints(self) -> list[str]:
        """Return what makes a figure invalid, and where it happened."""
        measured: list[Cpu | Trips] = [*self.cpu, *self.trips]
        return [
            f"{each.server}, {each.load} over {each.load.connections:,}, round {each.round}: {complaint}"
            for each in measured
            for complaint in each.complaints
        ]

    def bench_report(self) -> str:
        parts = {
            f"{load.rate:,.0f} keepalives/s, {load.kind}": self._load_table(load) for load in self.loads()
        }
        parts["Memory"] = self._memory_table()
        if self.trips:
            parts["Round trips under these loads, ms"] = self._trips_table()
        return self._report("This server beside others", parts, NOTES)

    def sizes_report(self) -> str:
        parts = {"This server": self._sizes_table(), "The timing wheel": wheel_table(self.wheel)}
        return self._report("Cost against size", parts, SIZES_NOTES)

    def _report(self, title: str, parts: dict[str, str], notes: str) -> str:
        """Return a report: machine and settings, what was left out, tables, and invalid figures."""
        lines = [
            "- Machine: " + ", ".join(f"{name} {value}" for name, value in self.machine.items()),
            "- Settings: " + ", ".join(f"{name} {value}" for name, value in self.settings.items()),
            *(f"- {name}: {says}" for name, says in self.says.items()),
            *(f"- {name}: skipped, {why}" for name, why in self.skipped.items()),
        ]
        tables = (f"## {name}\n\n{text}" for name, text in parts.items())
        invalid = "\n".join(f"- {complaint}" for complaint in self.complaints())
        paragraphs = [f"# {title}", "\n".join(lines), *tables, notes]
        return "\n\n".join([*paragraphs, *([f"**Not valid:**\n\n{invalid}"] if invalid else [])]) + "\n"

    def _load_table(self, load: KeepaliveLoad) -> str:
        head = (
            f"server | µs of CPU a keepalive | {OWN} ÷ it | keepalives a wake | % of a core "
            "| generator, % of a core"
        )
        body = []
        for server in self.says:
            if found := [each for each in self.cpu if (each.server, each.load) == (server, load)]:
                mark = " **not valid**" if any(each.complaints for each in found) else ""
                cpu_us = [*self.cpu_us(server, load).values()]
                ratio = "" if server == OWN else _rounds(self.ratios(server, load), 2)
                share = max(each.generator_share for each in found)
                body.append(
                    f"{server}{mark} | {_rounds(cpu_us, 1)} | {ratio} "
                    f"| {median(each.per_wake for each in found):.1f} "
                    f"| {median(cpu_us) * load.rate / 1e4:.1f} | {share * 100:.0f}"
                )
        return markdown(head, body)

    def _memory_table(self) -> str:
        body = [
            f"{server} | {found[0].connections:,} | {median(each.rss_bytes for each in found):,.0f} "
            f"| {median(each.pss_bytes for each in found):,.0f} | {_megabytes(found)}"
            for server in self.says
            if (found := [each for each in self.memory if each.server == server])
        ]
        return markdown(
            "server | connections | bytes of RSS a connection | of anonymous PSS | RSS of all, MB", body
        )

    def _trips_table(self) -> str:
        body = []
        for load, probe, server in product(self.loads(), KINDS, self.says):
            where = (server, load, probe)
            found = [each for each in self.trips if (each.server, each.load, each.probe) == where]
            if trips := [trip for each in found for trip in each.trips_ms]:
                shown = " | ".join(f"{percentile(trips, share):.1f}" for share in (0.5, 0.99, 1.0))
                body.append(f"{load} | {probe} | {server} | {len(trips):,} | {shown}")
        return markdown("load | probe | server | probes | p50 | p99 | max", body)

    def _sizes_table(self) -> str:
        head = (
            "connections | keepalives/s | µs of CPU a keepalive | % of a core | RSS of all, MB "
            "| RSS of each further connection"
        )
        body = []
        for load in sorted(self.loads(), key=lambda load: (load.connections, load.rate)):
            cpu_us = [*self.cpu_us(OWN, load).values()]
            memory = [each for each in self.memory if each.connections == load.connections]
            body.append(
                f"{load.connections:,} | {load.rate:,.0f} | {_rounds(cpu_us, 1)} "
                f"| {median(cpu_us) * load.rate / 1e4:.1f} | {_megabytes(memory)} "
                f"| {median(each.rss_bytes for each in memory):,.0f} B"
            )
        return markdown(head, body)


def median(values: Iterable[float]) -> float:
    """Return the median; NaN without values."""
    found = list(values)
    return statistics.median(found) if found else math.nan


def _rounds(values: list[float], digits: int) -> str:
    """Return the median and, if there are several, each value."""
    each = ", ".join(f"{value:.{digits}f}" for value in values)
    return f"{median(values):.{digits}f} ({each})" if len(values) > 1 else each


def _megabytes(found: list[MemorySlope]) -> str:
    return f"{median(each.total_bytes for each in found) / 1e6:.1f}"
