"""What a run of the benchmark has found, as plain data that goes to JSON."""

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from loadtest.bench.servers import OWN


@dataclass(frozen=True, order=True)
class Load:
    """Keepalives of one kind, so many a second over so many connections."""

    kind: str
    rate: float
    connections: int

    def __str__(self) -> str:
        return f"{self.rate:,.0f}/s, {self.kind}"


@dataclass(frozen=True)
class Cpu:
    """One server under one load in one round.

    Attributes:
        cpu_us: µs of processor time for each keepalive.
        per_wake: keepalives for each time that the server had gone to sleep.
        generator_share: the load generator's processor time, of a core.
        complaints: why it is not valid; empty when it is.
    """

    server: str
    round: int
    load: Load
    cpu_us: float
    per_wake: float
    generator_share: float
    complaints: list[str]


@dataclass(frozen=True)
class Memory:
    """Bytes for each further connection of one server in one round, from a third of them to all.

    Attributes:
        rss_bytes: resident.
        pss_bytes: of no file, each shared page divided among those who share it.
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
    load: Load
    probe: str
    trips_ms: list[float]


@dataclass(frozen=True)
class Wheel:
    """What a timing wheel of so many keys costs; see `loadtest.bench.wheel`."""

    keys: int
    touch_ns: float
    heap_ns: float
    idle_tick_us: float
    scan_us: float
    taken_ns: float


@dataclass
class Results:
    """Everything that one run found, and where.

    Attributes:
        machine: processor, kernel, versions.
        settings: what the run was told.
        says: what each server is; in the order of the tables.
        skipped: servers that could not be measured here, and why.
    """

    machine: dict[str, str]
    settings: dict[str, object]
    says: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    cpu: list[Cpu] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    trips: list[Trips] = field(default_factory=list)
    wheel: list[Wheel] = field(default_factory=list)

    def loads(self) -> list[Load]:
        """Return the loads in the order in which they were first measured."""
        return list(dict.fromkeys(each.load for each in self.cpu))

    def cpu_us(self, server: str, load: Load) -> list[float]:
        """Return a server's µs a keepalive, round by round."""
        found = sorted(
            (each.round, each.cpu_us) for each in self.cpu if (each.server, each.load) == (server, load)
        )
        return [value for _, value in found]

    def ratios(self, peer: str, load: Load) -> list[float]:
        """Return this server's µs over a peer's, for each round in which both were measured."""
        rounds = {
            (each.server, each.round): each.cpu_us
            for each in self.cpu
            if each.load == load and each.cpu_us > 0
        }
        numbers = sorted({number for server, number in rounds if server == peer})
        return [rounds[OWN, n] / rounds[peer, n] for n in numbers if (OWN, n) in rounds]

    def complaints(self) -> list[str]:
        """Return everything that makes a figure invalid, with where it happened."""
        return [
            f"{each.server}, {each.load} over {each.load.connections:,}, round {each.round}: {complaint}"
            for each in self.cpu
            for complaint in each.complaints
        ]

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")


def median(values: Iterable[float]) -> float:
    """Return the median; NaN of nothing."""
    found = list(values)
    return statistics.median(found) if found else float("nan")
