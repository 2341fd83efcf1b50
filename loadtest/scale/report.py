"""A run in tables (Markdown) and as an object (JSON), and which promises it shows broken."""

from collections.abc import Iterable
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from loadtest import usage
from loadtest.outcome import markdown, percentile
from loadtest.scale.play import SPAN_MAX_S, Hold, Ramp
from loadtest.scale.verdict import Ends, Promise

LATE_S = 0.25  # at p99; a generator that is later than this is at its limits
MB = 1_000_000
SPREAD = {"min": 0.0, "p50": 0.5, "p99": 0.99, "max": 1.0}
HOLD_HEAD = (
    "server | a beat each | held, s | µs of CPU a keepalive | ÷ C floors | % of a core | PSS, MB | RSS, MB "
    "| false offline | lost | generators late, ms: min, p50, p99, max | generators, % of a core"
)


@dataclass
class Result:
    """What was asked for, and what came of it.

    Attributes:
        connections, workers, processes: how many; the processes are the generators.
        promise: what the events were judged by.
        empty: memory of the server before the first connection.
        ramps, holds: on the server.
        ends: verdicts, by what all did: ``silence`` and ``last_beat``.
        floors: holds with the same intervals on C floors; empty if there were none.
    """

    connections: int
    workers: int
    processes: int
    promise: Promise
    empty: usage.Memory = field(default_factory=lambda: usage.Memory(0, 0))
    ramps: list[Ramp] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    ends: dict[str, Ends] = field(default_factory=dict)
    floors: list[Hold] = field(default_factory=list)

    def broken(self) -> list[str]:
        """Return every promise that was broken, in words; nothing if the run shows what it must."""
        found = [
            f"only {ramp.load.online:,} of {self.connections:,} logged in"
            for ramp in self.ramps
            if ramp.load.online < self.connections
        ]
        for hold in self.holds:
            name = f"beat each {hold.beat_s:g} s"
            found += [f"{name}: {hold.lost:,} connections lost"] if hold.lost else []
            found += [f"{name}: {hold.offline:,} offline events"] if hold.offline else []
        for name, ends in self.ends.items():
            found += [f"{name}: {count:,} x {what}" for what, count in ends.wrong.items()]
        last = self.ends.get("last_beat")
        if last and last.first_to_last_s > SPAN_MAX_S:
            found.append(f"last_beat: {last.first_to_last_s:.2f} s from first to last event")
        return found

    def notes(self) -> list[str]:
        """Return what makes figures doubtful, though no promise is broken."""
        return [
            f"the generators were late at a beat each {hold.beat_s:g} s: their figures say little"
            for hold in self.holds + self.floors
            if percentile(hold.load.late_s, 0.99) > LATE_S
        ]

    def ratio(self, own: Hold) -> float | None:
        """Return processor time a keepalive, the server's by the floors', at that interval."""
        return next((own.cpu_us / each.cpu_us for each in self.floors if each.beat_s == own.beat_s), None)

    def as_json(self) -> dict[str, Any]:
        """Return all figures; times in seconds, memory in bytes, processor time of a keepalive in µs."""
        found: dict[str, Any] = _plain(self)
        for name, holds in (("holds", self.holds), ("floors", self.floors)):
            for row, hold in zip(found[name], holds, strict=True):
                row |= {"beats": hold.load.beats, "cpu_us": hold.cpu_us, "to_floor": self.ratio(hold)}
        return {"machine": usage.machine(), **found, "notes": self.notes(), "broken": self.broken()}

    def as_markdown(self) -> str:
        """Return the tables."""
        ramps = (
            f"{ramp.load.online:,} | {ramp.seconds:.1f} | {_spread(ramp.load.login_s, 1000)} "
            f"| {dict(ramp.load.refused) or ''} | {dict(ramp.load.failed) or ''}"
            for ramp in self.ramps
        )
        head = (
            f"{self.connections:,} connections over {self.workers} workers, {self.processes} generators; "
            + ", ".join(usage.machine().values())
        )
        return "\n\n".join(
            [
                head,
                self._memory_line(),
                markdown("logged in | s | login, ms: min, p50, p99, max | refused | failed", ramps),
                markdown(HOLD_HEAD, map(self._hold, [*self.holds, *self.floors])),
                self._end_table(),
                *self.notes(),
            ]
        )

    def _memory_line(self) -> str:
        most = max((hold.memory for hold in self.holds), key=lambda memory: memory.pss, default=self.empty)
        return (
            f"Server processes without Redis: PSS {self.empty.pss / MB:.0f} MB "
            f"(RSS {self.empty.rss / MB:.0f} MB) before the first connection, "
            f"at most {most.pss / MB:.0f} MB ({most.rss / MB:.0f} MB) with all: "
            f"{(most.pss - self.empty.pss) / self.connections:,.0f} bytes of PSS a connection."
        )

    def _hold(self, hold: Hold) -> str:
        is_floor = hold in self.floors
        ratio = None if is_floor else self.ratio(hold)
        return (
            f"{'C floors' if is_floor else f'{self.workers} workers'} "
            f"| {hold.beat_s:g} s, {hold.load.beats / hold.seconds:,.0f}/s | {hold.seconds:.0f} "
            f"| {hold.cpu_us:.1f} | {f'{ratio:.2f}' if ratio else ''} "
            f"| {hold.cpu_s / hold.seconds * 100:.1f} "
            f"| {hold.memory.pss / MB:.0f} | {hold.memory.rss / MB:.0f} | {hold.offline} | {hold.lost} "
            f"| {_spread(hold.load.late_s, 1000)} | {hold.load.cpu_s / hold.seconds * 100:.0f}"
        )

    def _end_table(self) -> str:
        head = (
            " | offline events that are right | last packet to decision, s: min, p50, p99, max "
            f"| to the stream | to the reader | beyond {self.promise.delay_max:g} s | first to last event, s "
            "| broken promises"
        )
        rows = (
            f"{name} | {ends.offline:,} of {ends.clients:,} | {_spread(ends.decided_s)} "
            f"| {_spread(ends.stood_s)} | {_spread(ends.read_s)} "
            f"| {sum(each > self.promise.delay_max for each in ends.read_s):,} "
            f"| {ends.first_to_last_s:.2f} | {ends.wrong.total()}"
            for name, ends in self.ends.items()
        )
        return markdown(head, rows)


def _spread(seconds: Iterable[float], times: float = 1) -> str:
    found = [*seconds]
    return ", ".join(f"{percentile(found, share) * times:.3f}" for share in SPREAD.values())


def _plain(value: Any) -> Any:
    """Return it with the spread of what was measured often."""
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        return {
            name: {what: percentile(each, share) for what, share in SPREAD.items()}
            if name.endswith("_s") and isinstance(each, list)
            else _plain(each)
            for name, each in value.items()
        }
    return [_plain(each) for each in value] if isinstance(value, list) else value
