"""A real `presence timers run`, and handlers for its processes."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from presence.timers.interface import Due

WAIT_S = 20.0
NOTES = "TIMER_NOTES"  # where the handlers below write what they did


def note(due: Due) -> None:
    """Write down which event was handled, and by whom."""
    line = f"{due.id} {os.getpid()} {due.attempt}\n"
    with open(os.environ[NOTES], "a", encoding="utf-8") as notes:
        notes.write(line)


def note_slowly(due: Due) -> None:
    """Begin, take a while, and end."""
    note(Due(f"begun-{due.id}", b"", 0, 0, due.attempt))
    time.sleep(float(due.payload))
    note(due)


class Workers:
    """A running command.

    Attributes:
        process: its supervisor.
        lines: what it has logged so far.
    """

    def __init__(self, url: str, notes: Path, handler: str, *flags: str) -> None:
        self._notes = notes
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "presence", "timers", "run", "--redis", url),
                *("--kind", "queue", "--name", "t", "--log-format", "json"),
                *("--handler", f"tests.timers.workers:{handler}", *flags),
            ],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, NOTES: str(notes)},
        )
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(json.loads(line) if line.startswith("{") else {"event": line.strip()})

    def wait_for(self, event: str, count: int = 1) -> dict[str, Any]:
        """Wait until a line says this so often; return the last of them."""
        self.wait_until(lambda: sum(line["event"] == event for line in list(self.lines)) >= count)
        return [line for line in self.lines if line["event"] == event][count - 1]

    def notes(self) -> dict[str, list[list[str]]]:
        """Return what was handled: event to the process and attempt of each time."""
        found: dict[str, list[list[str]]] = {}
        for line in self._notes.read_text().splitlines() if self._notes.exists() else ():
            name, *rest = line.split()
            found.setdefault(name, []).append(rest)
        return found

    def wait_until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < deadline, self.lines[-10:]
            time.sleep(0.005)

    def end(self) -> int:
        """Wait for the end; return the exit status."""
        status = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return status


@contextlib.contextmanager
def workers(url: str, notes: Path, handler: str, *flags: str) -> Iterator[Workers]:
    """Run workers for the length of a ``with`` block, and leave none behind."""
    running = Workers(url, notes, handler, *flags)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()  # its workers notice, and drain
        running.end()
        assert running.process.stderr is not None
        running.process.stderr.close()
