"""A run of locust in a process of its own, and its report."""

import contextlib
import csv
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from loadtest.servers import free_port

LOCUSTFILE = Path(__file__).with_name("locustfile.py")


class LocustRow(NamedTuple):
    """One line of locust's report; times in ms."""

    requests: int = 0
    failures: int = 0
    median: float = 0.0
    p99: float = 0.0
    max: float = 0.0


@dataclass(frozen=True)
class LocustReport:
    """The result of a run of locust."""

    status: int  # its exit status
    rows: dict[tuple[str, str], LocustRow]  # by type and name: ``("event", "offline idle_timeout")``
    broken: Counter[str]  # how often each promise was broken, by its words

    @property
    def failures(self) -> int:
        """All failures, those of requests included."""
        return sum(row.failures for row in self.rows.values())

    def row(self, name: str) -> LocustRow:
        """Return the row of an event's measure; zeros without one."""
        return self.rows.get(("event", name), LocustRow())


def run_locust(
    host: str, redis_url: str, *flags: str, users: int, seconds: float, locustfile: Path = LOCUSTFILE
) -> LocustReport:
    """Run the devices against a server, headless; locust prints its report on standard output."""
    with tempfile.TemporaryDirectory(prefix="loadtest-") as folder:
        command = [
            *(sys.executable, "-m", "locust", "-f", str(locustfile), "--headless", "--only-summary"),
            *("--host", host, "--redis-url", redis_url, "--csv", f"{folder}/run", "--users", str(users)),
            *("--spawn-rate", str(min(users, max(100, users // 5))), "--run-time", f"{seconds:.0f}s"),
        ]
        if "--processes" in flags:  # locust's own port may be another run's
            port = str(free_port())
            command += ["--master-bind-port", port, "--master-port", port]
        # Its own timer ends it; the margin is for a machine that is busy.
        ended = subprocess.run(
            [*command, *flags], cwd=LOCUSTFILE.parent.parent, timeout=seconds * 2 + 60, check=False
        )
        rows, broken = {}, Counter[str]()
        for line in _lines(Path(folder) / "run_stats.csv"):
            if line["Name"] != "Aggregated":
                counts = int(line["Request Count"]), int(line["Failure Count"])
                times = (line[name] for name in ("50%", "99%", "Max Response Time"))
                rows[line["Type"], line["Name"]] = LocustRow(
                    *counts, *(0.0 if text in {"", "N/A"} else float(text) for text in times)
                )
        for line in _lines(Path(folder) / "run_failures.csv"):
            if line["Method"] == "event":
                broken[line["Error"]] += int(line["Occurrences"])
    return LocustReport(ended.returncode, rows, broken)


def _lines(path: Path) -> Iterator[dict[str, str]]:
    with contextlib.suppress(FileNotFoundError), path.open() as file:
        yield from csv.DictReader(file)
