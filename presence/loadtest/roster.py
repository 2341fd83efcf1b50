"""Which workers a distributed run has, and which of them have judged it to its end: pure.

Each worker judges the events of its own devices and of no others. A worker that was killed, stopped or cut
off takes the verdict about them with it, and what it had reported before looks like success. Hence the master
asks all workers of a run for a final report, and a run that lacks one has failed.

Times are monotonic seconds.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

LEFT_EARLY_S = 5.0  # before the end; an interrupt reaches workers and master within less


class WorkerReport(NamedTuple):
    """What a worker says of itself."""

    pid: int = 0
    devices: int = 0  # that its judge follows
    judged_run: int = 0  # number of the run that it has judged to its end


@dataclass(slots=True)
class WorkerRecord:
    """What the master knows of one worker."""

    name: str
    pid: int = 0  # 0: it never reported
    devices: int = 0
    judged_at: float = math.inf  # when its final report arrived


class Roster:
    """The workers of one run after another.

    Args:
        expected: how many a run needs; 0: as many as there are.

    Attributes:
        run: number of the present or the last run; 0 before the first.
    """

    def __init__(self, expected: int = 0) -> None:
        self.run = 0
        self._expected = expected
        self._workers: dict[str, WorkerRecord] = {}
        self._ended_at = 0.0
        self._is_running = False

    def begin(self, present: Iterable[str]) -> int:
        """Begin a run with the workers that are connected; return its number."""
        self._workers = {name: WorkerRecord(name) for name in present}
        self._is_running = True
        self.run += 1
        return self.run

    def connected(self, name: str) -> None:
        """Add a worker that connects during the run: it gets devices, too."""
        if self._is_running:
            self._workers.setdefault(name, WorkerRecord(name))

    def reported(self, name: str, report: WorkerReport, now: float) -> None:
        worker = self._workers.get(name)
        if worker is None:
            return  # it had left before the run began
        worker.pid, worker.devices = report.pid, report.devices
        if report.judged_run == self.run:
            worker.judged_at = min(worker.judged_at, now)

    def end(self, now: float) -> None:
        """The run is over, and final reports are due."""
        self._ended_at, self._is_running = now, False

    def missing(self) -> list[WorkerRecord]:
        """Return the workers without a final report."""
        return [each for each in self._workers.values() if each.judged_at == math.inf]

    def waiting_for(self, reachable: Iterable[str]) -> list[str]:
        """Return the workers that owe their final report and can be reached."""
        owing = {each.name for each in self.missing()}
        return [name for name in reachable if name in owing]

    def failures(self) -> list[str]:
        """Return why the run was not judged by all its workers; empty if it was."""
        found = []
        for each in self._workers.values():
            name = f"worker {each.name}" + (f" (pid {each.pid})" if each.pid else "")
            judge = f"its judge of {each.devices} devices is gone"
            if each.judged_at == math.inf:
                found.append(f"{name} sent no final report, killed, stopped or cut off: {judge}")
            elif self._ended_at - each.judged_at > LEFT_EARLY_S:
                found.append(f"{name} left {self._ended_at - each.judged_at:.0f} s before the end: {judge}")
        if len(self._workers) < self._expected:
            found.append(f"{len(self._workers)} of {self._expected} expected workers took part")
        return found
