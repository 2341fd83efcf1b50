"""`presence timers run` as processes: killed, drained and stuck."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from presence.store.embedded import EmbeddedRedis, embedded_redis
from presence.store.keys import Keys
from presence.store.script_runner import Scripting
from presence.timers.interface import Due, Event
from presence.timers.kinds import DelayQueue

pytestmark = pytest.mark.usefixtures("clean_environment")

NOTES = "TIMER_NOTES"  # where the handlers below write what they did
WAIT_S = 20.0


def note(due: Due) -> None:
    """Record the event and the process that handled it."""
    with open(os.environ[NOTES], "a", encoding="utf-8") as notes:
        notes.write(f"{due.id} {os.getpid()} {due.attempt}\n")


def note_slowly(due: Due) -> None:
    """Record the begin, wait, and record the end."""
    note(Due(f"begun-{due.id}", b"", 0, 0, due.attempt))
    time.sleep(float(due.payload))
    note(due)


class WorkerProcesses:
    """A running command; none of its workers is left behind. `process` is its supervisor."""

    def __init__(self, url: str, folder: Path, handler: str, *flags: str) -> None:
        self._notes, self._log = folder / "notes", folder / "log"
        place = ("--redis", url, "--kind", "queue", "--name", "t", "--log-format", "json")
        command = ("timers", "run", *place, "--handler", f"{__name__}:{handler}", *flags)
        with self._log.open("w") as log:
            environment = {**os.environ, NOTES: str(self._notes)}
            self.process = subprocess.Popen(
                [sys.executable, "-m", "presence", *command], env=environment, stderr=log
            )

    @property
    def lines(self) -> list[dict[str, Any]]:
        whole = self._log.read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line) if line.startswith("{") else {"event": line} for line in whole]

    def wait_for(self, event: str, count: int = 1) -> dict[str, Any]:
        """Wait for the `count`th line of an event; return it."""
        self.wait_until(lambda: sum(line["event"] == event for line in self.lines) >= count)
        return [line for line in self.lines if line["event"] == event][count - 1]

    def read_notes(self) -> dict[str, list[list[str]]]:
        """Return, by event, the process and attempt of each handling."""
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
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)

    def __enter__(self) -> "WorkerProcesses":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        if self.process.wait() < 0:  # it did not see to the end of its workers
            for line in self.lines:
                if line["event"] == "worker started":
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(line["pid"], signal.SIGKILL)


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    with embedded_redis() as server:
        yield server


Start = Callable[..., WorkerProcesses]


@pytest.fixture
def start(server: EmbeddedRedis, tmp_path: Path) -> Start:
    return partial(WorkerProcesses, server.url, tmp_path)


@pytest.fixture
def queue(server: EmbeddedRedis) -> Iterator[DelayQueue]:
    with contextlib.closing(Scripting(server.url)) as scripting:
        yield DelayQueue(scripting, Keys().timer("t"))


def test_what_a_killed_process_had_begun_another_handles(start: Start, queue: DelayQueue) -> None:
    queue.schedule(Event("e", 0, b"0.6"))
    flags = ("--processes", "2", "--lease", "1")
    with start("note_slowly", *flags) as running:
        running.wait_until(lambda: "begun-e" in running.read_notes())
        ((pid, _),) = running.read_notes()["begun-e"]
        os.kill(int(pid), signal.SIGKILL)
        running.wait_until(lambda: "e" in running.read_notes())
        ((other, attempt),) = running.read_notes()["e"]
        assert (other != pid, attempt) == (True, "2")
        replaced = running.wait_for("worker exited, restarting")
        assert (replaced["status"], replaced["pause_s"]) == (-signal.SIGKILL, 0.5)
        running.wait_for("worker started", 3)
        assert running.stop() == 0
    assert queue.state().counts["done"] == 1


def test_a_second_signal_ends_at_once(start: Start, queue: DelayQueue) -> None:
    queue.schedule(Event("e", 0, b"30"))
    with start("note_slowly") as running:
        running.wait_until(lambda: "begun-e" in running.read_notes())
        running.wait_for("ready queue t")
        running.process.send_signal(signal.SIGINT)
        running.wait_for("stopping")
        running.process.send_signal(signal.SIGINT)
        started = time.monotonic()
        assert running.process.wait(WAIT_S) == 1
        assert time.monotonic() - started < 2


def test_a_stuck_plain_handler_is_ended_with_its_process(start: Start, queue: DelayQueue) -> None:
    queue.schedule_many([Event("stuck", 0, b"1000"), Event("e", 0.001, b"0")])
    flags = ("--timeout", "0.2", "--attempts", "1")
    with start("note_slowly", *flags) as running:
        running.wait_until(lambda: "e" in running.read_notes())
        ((first, _),), ((second, _),) = running.read_notes()["begun-stuck"], running.read_notes()["e"]
        assert first != second
        assert not Path(f"/proc/{first}").exists()
        assert running.stop() == 0
    assert [letter.id for letter in queue.dead()] == ["stuck"]


def test_workers_drain_when_their_supervisor_is_killed(start: Start, queue: DelayQueue) -> None:
    queue.schedule(Event("e", 0, b"0.3"))
    with start("note_slowly") as running:
        running.wait_until(lambda: "begun-e" in running.read_notes())
        running.process.send_signal(signal.SIGKILL)
        running.wait_for("stopped")
    assert "e" in running.read_notes()
    assert queue.state().counts["done"] == 1


def test_a_handler_that_cannot_be_called_starts_nothing(start: Start) -> None:
    with start("nobody") as running:
        assert running.process.wait(WAIT_S) == 2
        (refusal,) = [line["error"] for line in running.lines if line["event"] == "refusing to start"]
        assert f"{__name__!r} has no attribute 'nobody'" in refusal
