"""Processes of a load test: locust and its report, and workers for calls. None is left behind."""

import contextlib
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

import psutil

from loadtest.servers import free_port

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
END_TIMEOUT_S = 60.0  # of locust, beyond twice its time: the margin is for a machine that is busy

P = ParamSpec("P")
T = TypeVar("T")
_starting = threading.Lock()


def exit_on_sigterm() -> None:
    """From now on SIGTERM raises SystemExit, so that servers, Redis and generators are ended, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))


class LocustFailed(Exception):
    """Locust did not end, or left no report."""


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


class LocustRun:
    """The devices against a server, headless; locust prints its report on standard output.

    It ends by itself after `seconds`. A ``with`` block kills it, and what it has forked.
    """

    def __init__(
        self,
        host: str,
        redis_url: str,
        *flags: str,
        users: int,
        seconds: float,
        locustfile: Path = LOCUSTFILE,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="loadtest-")
        self._path = Path(self._folder.name) / "run.json"
        self._give_up_at = time.monotonic() + 2 * seconds + END_TIMEOUT_S
        command = [
            *(sys.executable, "-m", "locust", "-f", str(locustfile), "--headless", "--only-summary"),
            *("--host", host, "--redis-url", redis_url, "--json-report", str(self._path)),
            *("--users", str(users), "--spawn-rate", str(min(users, max(100, users // 5)))),
            *("--run-time", f"{math.ceil(seconds)}s"),  # 0 s would be for ever
        ]
        if "--processes" in flags:  # locust's own port may be another run's
            port = str(free_port())
            command += ["--master-bind-port", port, "--master-port", port]
        self.process = subprocess.Popen([*command, *flags], cwd=LOCUSTFILE.parent.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self.has_ended:
            kill_tree(self.process.pid)
            self.process.wait()
        self._folder.cleanup()

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def report(self) -> LocustReport:
        """Wait for the end; return the report.

        Raises:
            LocustFailed: there is none.
        """
        try:
            status = self.process.wait(max(0.0, self._give_up_at - time.monotonic()))
            report = json.loads(self._path.read_text())
        except subprocess.TimeoutExpired:
            raise LocustFailed("locust does not end") from None
        except (OSError, ValueError):
            raise LocustFailed(f"locust ended with status {status} and left no report") from None
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
        return LocustReport(status, rows, report["errors"], report["reasons"])


def run_locust(
    host: str, redis_url: str, *flags: str, users: int, seconds: float, locustfile: Path = LOCUSTFILE
) -> LocustReport:
    """Run the devices to their end, see `LocustRun`; raises LocustFailed."""
    with LocustRun(host, redis_url, *flags, users=users, seconds=seconds, locustfile=locustfile) as run:
        return run.report()


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants, if there are any left."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()


class WorkerProcess:
    """A process of its own for calls, one after the other; it is killed at the end of a ``with`` block.

    A pool would wait for its process then, and for ever if that is stopped.

    Args:
        prepare: what the process calls at first, with these arguments.
    """

    def __init__(self, prepare: Callable[..., object] | None = None, arguments: Sequence[Any] = ()) -> None:
        context = multiprocessing.get_context("spawn")
        self._executor = ProcessPoolExecutor(1, context, prepare, tuple(arguments))
        with _starting:
            others = {*multiprocessing.active_children()}
            self._executor.submit(os.getpid)  # the first call starts the process
            self._processes = {*multiprocessing.active_children()} - others

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def submit(self, function: "Callable[P, T]", *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Begin a call; its future raises BrokenExecutor if the process ends meanwhile."""
        return self._executor.submit(function, *args, **kwargs)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        self._executor.shutdown(cancel_futures=True)
