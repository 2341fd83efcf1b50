"""A run in tables (Markdown) and as an object (JSON), and which promises it shows broken."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtest import usage
from loadtest.scale.play import LATE_S, SPAN_MAX_S, Hold, Ramp, percentile
from loadtest.scale.verdict import Ends, Promise

MB = 1_000_000


@dataclass
class Result:
    """What was asked for, and what came of it.

    Attributes:
        connections, workers, processes: how many; the processes are the generators.
        promise: what the events were judged by.
        empty: memory of the server before the first connection.
        ramps, holds: on the server.
        silence, last_beat: verdicts.
        floors: holds with the same intervals on C floors; empty if there were none.
    """

    connections: int
    workers: int
    processes: int
    promise: Promise
    empty: usage.Memory = field(default_factory=lambda: usage.Memory(0, 0))
    ramps: list[Ramp] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    silence: Ends | None = None
    last_beat: Ends | None = None
    floors: list[Hold] = field(default_factory=list)

    def broken(self) -> list[str]:
        """Return every promise that was broken, in words; nothing if the run shows what it must."""
        found = [
            f"only {ramp.online:,} of {self.connections:,} logged in"
            for ramp in self.ramps
            if ramp.online < self.connections
        ]
        for hold in self.holds:
            name = f"beat each {hold.beat_s:g} s"
            found += [f"{name}: {hold.lost:,} connections lost"] if hold.lost else []
            found += [f"{name}: {hold.offline:,} offline events"] if hold.offline else []
        for name, verdict in (("silence", self.silence), ("last beat", self.last_beat)):
            if verdict is None:
                found.append(f"{name}: not played")
                continue
            found += [f"{name}: {count:,} x {what}" for what, count in verdict.wrong.items()]
        if self.last_beat and self.last_beat.first_to_last_s > SPAN_MAX_S:
            found.append(f"last beat: {self.last_beat.first_to_last_s:.2f} s from first to last event")
        return found

    def notes(self) -> list[str]:
        """Return what makes figures doubtful, though no promise is broken."""
        return [
            f"the generators were late at a beat each {hold.beat_s:g} s: their figures say little"
            for hold in self.holds + self.floors
            if percentile(hold.generators.late_s, 0.99) > LATE_S
        ]

    def ratio(self, beat_s: float) -> float | None:
        """Return processor time a keepalive, the server's by the floors', at that interval."""
        own, floor = (
            next((hold.cpu_us for hold in holds if hold.beat_s == beat_s), None)
            for holds in (self.holds, self.floors)
        )
        return own / floor if own and floor else None

    def as_json(self) -> dict[str, Any]:
        """Return all figures; times in seconds, memory in bytes, processor time of a keepalive in µs."""
        return {
            "machine": usage.machine(),
            "connections": self.connections,
            "workers": self.workers,
            "processes": self.processes,
            "empty": vars(self.empty),
            "ramps": [_plain(ramp) for ramp in self.ramps],
            "holds": [{**_hold(hold), "to_floor": self.ratio(hold.beat_s)} for hold in self.holds],
            "floors": [_hold(hold) for hold in self.floors],
            "silence": self.silence and _plain(self.silence),
            "last_beat": self.last_beat and _plain(self.last_beat),
            "notes": self.notes(),
            "broken": self.broken(),
        }

    def as_markdown(self) -> str:
        """Return the tables."""
        return "\n\n".join(
            [
                f"{self.connections:,} connections over {self.workers} workers, {self.processes} generators; "
                + ", ".join(usage.machine().values()),
                self._memory_line(),
                self._ramp_table(),
                self._hold_table(),
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

    def _ramp_table(self) -> str:
        rows = [
            f"| {ramp.online:,} | {ramp.seconds:.1f} | {_ms(ramp.login_s)} "
            f"| {ramp.refused or ''} | {ramp.failed or ''} |"
            for ramp in self.ramps
        ]
        head = "| logged in | s | login, ms: p50, p99, max | refused | failed |"
        return "\n".join([head, "| --- " * 5 + "|", *rows])

    def _hold_table(self) -> str:
        rows = []
        for name, holds in ((f"{self.workers} workers", self.holds), ("C floors", self.floors)):
            for hold in holds:
                ratio = self.ratio(hold.beat_s) if holds is self.holds else None
                rows.append(
                    f"| {name} | {hold.beat_s:g} s, {hold.beats / hold.seconds:,.0f}/s | {hold.seconds:.0f} "
                    f"| {hold.cpu_us:.1f} | {f'{ratio:.2f}' if ratio else ''} | {hold.core_share * 100:.1f} "
                    f"| {hold.memory.pss / MB:.0f} | {hold.memory.rss / MB:.0f} "
                    f"| {hold.offline} | {hold.lost} | {_ms(hold.generators.late_s)} "
                    f"| {hold.generators.cpu_s / hold.seconds * 100:.0f} |"
                )
        head = (
            "| server | a beat each | held, s | µs of CPU a keepalive | ÷ C floors | % of a core | PSS, MB "
            "| RSS, MB | false offline | lost | generators late, ms: p50, p99, max "
            "| generators, % of a core |"
        )
        return "\n".join([head, "| --- " * 12 + "|", *rows])

    def _end_table(self) -> str:
        rows = []
        for name, verdict in (("all fall silent", self.silence), ("one last beat of all", self.last_beat)):
            if verdict is None:
                continue
            decided, stood, read = (
                f"{', '.join(f'{percentile(delays, share):.3f}' for share in (0.0, 0.5, 0.99, 1.0))}"
                for delays in (verdict.decided_s, verdict.stood_s, verdict.read_s)
            )
            rows.append(
                f"| {name} | {verdict.offline:,} of {verdict.clients:,} | {decided} | {stood} | {read} "
                f"| {self._beyond(verdict):,} | {verdict.first_to_last_s:.2f} "
                f"| {verdict.wrong.total()} |"
            )
        head = (
            "| | offline events that are right | last packet to decision, s: min, p50, p99, max "
            f"| to the stream | to the reader | beyond {self.promise.delay_max:g} s | first to last event, s "
            "| broken promises |"
        )
        return "\n".join([head, "| --- " * 8 + "|", *rows])

    def _beyond(self, verdict: Ends) -> int:
        """Return how many events were read later than T + tick + slack after the last packet."""
        return len(verdict.read_s) - bisect.bisect_right(verdict.read_s, self.promise.delay_max)


def _ms(rising: list[float]) -> str:
    return ", ".join(f"{percentile(rising, share) * 1000:.1f}" for share in (0.5, 0.99, 1.0))


def _spread(rising: Sequence[float]) -> dict[str, float]:
    shares = {"min": 0.0, "p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: percentile(rising, share) for name, share in shares.items()}


def _plain(part: object) -> dict[str, Any]:
    """Return the attributes; of what was measured often, the spread."""
    return {
        name: _spread(value) if isinstance(value, list) and name.endswith("_s") else value
        for name, value in vars(part).items()
    }


def _hold(hold: Hold) -> dict[str, Any]:
    generators = hold.generators
    return {
        **_plain(hold),
        "rate": hold.beats / hold.seconds,
        "cpu_us": hold.cpu_us,
        "core_share": hold.core_share,
        "memory": vars(hold.memory),
        "generators": {"late_s": _spread(generators.late_s), "core_share": generators.cpu_s / hold.seconds},
    }
