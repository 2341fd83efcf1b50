"""`presence serve` in a process of its own, and what it says."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from presence.store.keys import Keys

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
LOOK_S = 0.02


@dataclass(frozen=True)
class Setup:
    """How servers are set up: what the promises are made of, in seconds, and how many shards there are."""

    idle_timeout: float = 30.0
    lease: float = 10.0
    tick: float = 1.0
    shards: int = 1

    @property
    def beat_s(self) -> float:
        """How often clients are told to beat."""
        return 0.4 * self.idle_timeout

    @property
    def death_s(self) -> float:
        """How long after a node's death its users are offline at the latest, sweep included."""
        return self.lease + self.idle_timeout + self.tick + SWEEP_S

    @property
    def flags(self) -> tuple[str, ...]:
        """The settings."""
        names = {"--idle-timeout": self.idle_timeout, "--lease": self.lease, "--tick": self.tick}
        names["--shards"] = self.shards
        return tuple(word for name, value in names.items() for word in (name, f"{value:g}"))

    def keys(self, prefix: str = "presence") -> Keys:
        """Return how the servers call their keys."""
        return Keys(prefix, self.shards)


SWEEP_S = 2.0  # promised for the sweep of 2,000 users


class Serving:
    """A running server.

    Args:
        url: of its Redis.
        flags: of `presence serve`.
        port: where to listen; 0 picks one.
        program: what Python is given to run `presence`.

    Attributes:
        process: the process.
        address: where clients log in.
        lines: what it has logged so far, one object a line.
    """

    def __init__(
        self, url: str, *flags: str, port: int = 0, program: Sequence[str] = ("-m", "presence")
    ) -> None:
        command = [sys.executable, *program, "serve", "--no-admin", "--port", str(port), "--redis", url]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PRESENCE_")}
        self.process = subprocess.Popen(
            [*command, "--log-format", "json", *flags], stderr=subprocess.PIPE, text=True, env=clean
        )
        self.lines: list[dict[str, Any]] = []
        self._ready: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        with contextlib.suppress(queue.Empty):
            if ready := self._ready.get(timeout=START_TIMEOUT_S):
                host, _, listens_on = ready.removeprefix("ready ").rpartition(":")
                self.address = (host, int(listens_on))
                return
        self.process.kill()
        self.process.wait()
        raise SystemExit(f"the server did not start: {self.lines[-3:]}")

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                if line.startswith("ready "):
                    self._ready.put(line.strip())
                elif line.startswith("{"):
                    self.lines.append(json.loads(line))
                else:
                    self.lines.append({"event": line.strip(), "level": "error"})
        self._ready.put("")

    def said(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of an event."""
        return [line for line in self.lines if line.get("event") == event]

    def workers(self) -> dict[int, int]:
        """Return the newest process of each worker by its number."""
        return {line["worker"]: line["pid"] for line in self.said("worker started")}

    def failures(self) -> list[str]:
        """Return what it logged of exceptions: none is expected, whatever is done to it."""
        return [
            str(line.get("exception") or f"{line['event']}: {line.get('error', '')}")[-500:]
            for line in self.lines
            if "exception" in line or line["event"].startswith(("Traceback", "Redis refused"))
        ]

    def stop(self) -> int:
        """End it gracefully; return its exit status."""
        with contextlib.suppress(OSError):
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            status = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._reader.join(STOP_TIMEOUT_S)
        return status


@contextlib.contextmanager
def running(starts: Sequence[Callable[[], Serving]]) -> Iterator[list[Serving]]:
    """Start servers side by side, for the length of a ``with`` block; those in the list then are stopped."""
    servers: list[Serving] = []
    with ThreadPoolExecutor(len(starts)) as pool:
        try:
            futures = [pool.submit(start) for start in starts]
            servers.extend(future.result() for future in futures)
            yield servers
        finally:
            list(pool.map(Serving.stop, servers))


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal (Linux)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def wait_for(condition: Callable[[], bool], seconds: float, *, look_s: float = LOOK_S) -> bool:
    """Wait until something is so, looking now and then; return whether it came about in time."""
    give_up = time.monotonic() + seconds
    while not (is_so := condition()) and time.monotonic() < give_up:
        time.sleep(look_s)
    return is_so
