"""A `presence timers run` of processes of its own, and handlers for them."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from presence.timers.interface import Due
from tests.timers.zygote import WAIT_S, Zygote

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
    """

    def __init__(self, zygote: Zygote, url: str, folder: Path, handler: str, *flags: str) -> None:
        self._notes, self._log = folder / "notes", folder / "log"
        self._log.touch()
        place = ("--redis", url, "--kind", "queue", "--name", "t", "--log-format", "json")
        name = f"tests.timers.workers:{handler}"
        argv = ["timers", "run", *place, "--handler", name, *flags]
        self.process = zygote.run(argv, {NOTES: str(self._notes)}, self._log)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it has logged so far."""
        whole = self._log.read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line) if line.startswith("{") else {"event": line} for line in whole]

    def wait_for(self, event: str, count: int = 1) -> dict[str, Any]:
        """Wait until a line says this so often; return the last of them."""
        self.wait_until(lambda: sum(line["event"] == event for line in self.lines) >= count)
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

    def stop(self) -> int:
        """Drain it; return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait()


@contextlib.contextmanager
def workers(zygote: Zygote, url: str, folder: Path, handler: str, *flags: str) -> Iterator[Workers]:
    """Run workers for the length of a ``with`` block, and leave none behind."""
    running = Workers(zygote, url, folder, handler, *flags)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.send_signal(signal.SIGKILL)
        if running.process.wait() < 0:  # it did not see to the end of its workers
            for line in running.lines:
                if line["event"] == "worker started":
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(line["pid"], signal.SIGKILL)
