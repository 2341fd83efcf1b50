"""What a scenario runs on, and its report: a table, and the same as JSON."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from loadtest.redis_contents import Data
from loadtest.servers import PRESENCE, PresenceServer
from presence.loadtest.client_loop import ClientLoop


class LoadedServer(NamedTuple):
    """A server, its Redis, and the loop of its clients."""

    data: Data
    server: PresenceServer
    loop: ClientLoop


@contextmanager
def loaded_server(
    *flags: str, beat_s: float, keep: bool = False, program: Sequence[str] = PRESENCE
) -> Iterator[LoadedServer]:
    """Run a server for the length of a ``with`` block.

    Args:
        flags: of `presence serve`.
        beat_s: the keepalive interval of the clients.
        keep: whether Redis keeps every write over a kill.
        program: see `PresenceServer`.
    """
    with (
        Data(keep=keep) as data,
        PresenceServer("--redis", data.url, *flags, program=program) as server,
        ClientLoop(server.address, beat_s=beat_s) as loop,
    ):
        yield LoadedServer(data, server, loop)


@dataclass
class ScenarioReport:
    """One run of one scenario.

    Attributes:
        scenario: its name and size.
        rows: what was measured, as text by name.
        metrics: some of it as numbers.
        broken: each broken promise.
    """

    scenario: str
    rows: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def table(self) -> str:
        rows = [f"| {name} | {value} |" for name, value in self.rows.items()]
        verdict = "; ".join(self.broken[:3]) or "kept"
        return "\n".join([f"| {self.scenario} | |", "| --- " * 2 + "|", *rows, f"| promises | {verdict} |"])

    def as_json(self) -> str:
        found = {"scenario": self.scenario, "rows": self.rows, **self.metrics, "broken": self.broken}
        return json.dumps(found, indent=1)
