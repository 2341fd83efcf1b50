"""A real `presence serve` in a process of its own, as its users run it."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

START_TIMEOUT_S = 40.0


class ServerProcess:
    """A running server.

    Args:
        flags: of the command.
        before: called in its process before the command runs.

    Attributes:
        address: where it listens.
        process: the process; tests stop and continue it.
        lines: what it has logged so far, one object a line.
        operators: flags unless others say whether these are served: that takes a second of processor time,
            and a port that others want.
    """

    operators: tuple[str, ...] = ("--no-admin",)

    def __init__(self, *flags: str, before: Callable[[], None] | None = None) -> None:
        operators = () if {"--admin", "--no-admin"} & set(flags) else self.operators
        serve = [sys.executable, "-m", "presence", "serve", "--port", "0", "--log-format", "json"]
        self.process = subprocess.Popen(
            [*serve, *operators, *flags],
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("PRESENCE_")},
            preexec_fn=before,  # noqa: PLW1509 - it takes no lock
        )
        self.lines: list[dict[str, Any]] = []
        self._ready: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        try:
            ready = self._ready.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            ready = ""
        if not ready:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not become ready: {self.lines}")
        host, _, port = ready.removeprefix("ready ").rpartition(":")
        self.address = (host, int(port))

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("ready "):
                self._ready.put(line.strip())
            elif line.startswith("{"):
                self.lines.append(json.loads(line))
            else:
                self.lines.append({"event": line.strip()})
        self._ready.put("")

    def pause(self, seconds: float) -> None:
        """Stop the process as a whole, and let it go on after a while."""
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Stop it gracefully; return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            status = self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._reader.join(5)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return status

    @property
    def report(self) -> dict[str, Any]:
        """The figures that it logged when it stopped."""
        return next(line for line in reversed(self.lines) if line["event"] == "stopped")


@contextlib.contextmanager
def running_server(*flags: str) -> Iterator[ServerProcess]:
    """Run a server for the length of a ``with`` block; it must end with status 0."""
    server = ServerProcess(*flags)
    try:
        yield server
    except BaseException:
        server.stop()
        raise
    assert server.stop() == 0, server.lines[-5:]


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def pids(server: ServerProcess) -> dict[int, int]:
    """The newest process of each worker."""
    return {line["worker"]: line["pid"] for line in server.lines if line["event"] == "worker started"}
