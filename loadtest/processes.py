"""The processes that a check of the load test starts: locust with the devices, and a server to load."""

import contextlib
import csv
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.ports import free_port
from loadtest.servers import PRESENCE, PresenceServer

LOCUSTFILE = Path(__file__).with_name("locustfile.py")


@dataclass(frozen=True)
class Row:
    """One line of locust's report; times in ms."""

    requests: int
    failures: int
    median: float
    p99: float
    max: float


@dataclass(frozen=True)
class Report:
    """What a run of locust ended with.

    Attributes:
        status: its exit status.
        rows: by type and name, for example ``("event", "offline idle_timeout")``.
        broken: how often each promise was broken, by its words.
    """

    status: int
    rows: dict[tuple[str, str], Row]
    broken: dict[str, int]

    @property
    def failures(self) -> int:
        """All failures, those of requests too."""
        return sum(row.failures for row in self.rows.values())

    def row(self, name: str) -> Row:
        """Return the row of an event's measure; one of zeros if there was none."""
        return self.rows.get(("event", name), Row(0, 0, 0.0, 0.0, 0.0))


def run_locust(
    host: str, redis_url: str, *flags: str, users: int, seconds: float, locustfile: Path = LOCUSTFILE
) -> Report:
    """Run the devices against a server, headless; locust prints its report on standard output."""
    with tempfile.TemporaryDirectory(prefix="loadtest-") as folder:
        command = [
            *(sys.executable, "-m", "locust", "-f", str(locustfile), "--headless", "--only-summary"),
            *("--host", host, "--redis-url", redis_url, "--csv", f"{folder}/run"),
            *(
                "--users",
                str(users),
                "--spawn-rate",
                str(min(users, max(100, users // 5))),
                "--run-time",
                f"{seconds:.0f}s",
            ),
        ]
        if "--processes" in flags:  # locust's own port may be another run's
            port = str(free_port())
            command += ["--master-bind-port", port, "--master-port", port]
        root = LOCUSTFILE.parent.parent
        # Its own timer ends it; the margin is for a machine that is busy.
        status = subprocess.run(
            [*command, *flags], cwd=root, timeout=seconds * 2 + 60, check=False
        ).returncode
        return _read_report(Path(folder), status)


def _read_report(folder: Path, status: int) -> Report:
    rows: dict[tuple[str, str], Row] = {}
    broken: dict[str, int] = {}
    with contextlib.suppress(FileNotFoundError), (folder / "run_stats.csv").open() as file:
        for line in csv.DictReader(file):
            if line["Name"] != "Aggregated":
                median, p99, most = (_ms(line[name]) for name in ("50%", "99%", "Max Response Time"))
                counts = int(line["Request Count"]), int(line["Failure Count"])
                rows[line["Type"], line["Name"]] = Row(*counts, median, p99, most)
    with contextlib.suppress(FileNotFoundError), (folder / "run_failures.csv").open() as file:
        for line in csv.DictReader(file):
            if line["Method"] == "event":
                broken[line["Error"]] = broken.get(line["Error"], 0) + int(line["Occurrences"])
    return Report(status, rows, broken)


def _ms(text: str) -> float:
    return float(text) if text not in {"", "N/A"} else 0.0


@contextlib.contextmanager
def running_server(*flags: str, program: Sequence[str] = PRESENCE) -> Iterator[PresenceServer]:
    """Run a server for the length of a ``with`` block; what it logs of errors goes to standard error."""
    server = PresenceServer(*flags, program=program, is_heard=True)
    try:
        yield server
    finally:
        server.stop()
