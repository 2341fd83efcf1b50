"""A run of locust in a process of its own, and its report."""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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
    errors: list[dict[str, Any]]  # as in the report in JSON
    reasons: list[str]  # why it failed

    @property
    def failures(self) -> int:
        """All failures, those of requests included."""
        return sum(row.failures for row in self.rows.values())

    @property
    def broken(self) -> Counter[str]:
        """How often each promise about events was broken, by its words."""
        counts = Counter[str]()
        for error in self.errors:
            if error["method"] == "event":
                counts[error["error"]] += error["occurrences"]
        return counts

    def row(self, name: str) -> LocustRow:
        """Return the row of an event's measure; zeros without one."""
        return self.rows.get(("event", name), LocustRow())


def run_locust(
    host: str, redis_url: str, *flags: str, users: int, seconds: float, locustfile: Path = LOCUSTFILE
) -> LocustReport:
    """Run the devices against a server, headless; locust prints its report on standard output."""
    with tempfile.TemporaryDirectory(prefix="loadtest-") as folder:
        path = Path(folder) / "run.json"
        command = [
            *(sys.executable, "-m", "locust", "-f", str(locustfile), "--headless", "--only-summary"),
            *("--host", host, "--redis-url", redis_url, "--json-report", str(path), "--users", str(users)),
            *("--spawn-rate", str(min(users, max(100, users // 5))), "--run-time", f"{seconds:.0f}s"),
        ]
        if "--processes" in flags:  # locust's own port may be another run's
            port = str(free_port())
            command += ["--master-bind-port", port, "--master-port", port]
        # Its own timer ends it; the margin is for a machine that is busy.
        ended = subprocess.run(
            [*command, *flags], cwd=LOCUSTFILE.parent.parent, timeout=seconds * 2 + 60, check=False
        )
        report = json.loads(path.read_text())
    rows = {
        (row["method"], row["name"]): LocustRow(
            row["num_requests"],
            row["num_failures"],
            row["median_response_time"],
            row["response_time_percentile_0.99"],
            row["max_response_time"],
        )
        for row in report["rows"]
    }
    return LocustReport(ended.returncode, rows, report["errors"], report["reasons"])
