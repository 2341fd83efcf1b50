"""Each technique at each size in a process and on a Redis of its own; and what is killed meanwhile."""

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from loadtest.compare import ledger
from loadtest.compare.judge import judge
from loadtest.compare.server import Server
from loadtest.compare.technique import IN_REDIS
from loadtest.compare.workload import Plan, Schedule
from presence.embedded import die_with_parent

LEAD_S: Final = 1.0  # from when the player is ready until second 0: it connects, and makes its objects
GRACE_S: Final = 60.0  # beyond the run's length: it hangs then
DOWN_AT: Final = 1.5  # of T: by then some have been told, some are silent, some are not yet
DOWN_FOR: Final = 1 / 6  # of T: 5 s of 30
POWER_CUT_S: Final = 1.0  # what `appendfsync everysec` may lose

PROCESS = "process killed"
EMPTY = "Redis killed, in memory only"
KEPT = "Redis killed, AOF everysec"
POWER_CUT = "power cut, AOF everysec"
FAULTS: Final = (PROCESS, EMPTY, KEPT, POWER_CUT)

ABREAST: Final = 40_000  # users of techniques in Redis who are played side by side
_LIGHT: Final = 10  # so many users in the process of a technique without Redis weigh as one
_TOGETHER: Final = 6  # and so many whose touches are made together


@dataclass(frozen=True)
class Trial:
    """What is played: a technique, with touches together or one by one, and what is done to it."""

    kind: str
    users: int
    batched: bool = False
    fault: str = ""

    @property
    def weight(self) -> int:
        """Its share of `ABREAST`."""
        if self.kind not in IN_REDIS:
            return self.users // _LIGHT
        return self.users // _TOGETHER if self.batched else self.users


def rounds(trials: Iterable[Trial], abreast: int = ABREAST) -> list[list[Trial]]:
    """Return trials in rounds, of which each does not overload two cores; the order is kept otherwise."""
    found: list[list[Trial]] = []
    for trial in trials:
        for each in found:
            if sum(other.weight for other in each) + trial.weight <= abreast:
                each.append(trial)
                break
        else:
            found.append([trial])
    return found


def play(trial: Trial, schedule: Schedule) -> dict[str, Any]:
    """Play a trial and return its row: the trial, the plan, the player's report and the judge's verdict.

    A technique that ends with an error has a row with `error` instead.
    """
    plan = schedule.plan
    row = asdict(trial) | {"plan": asdict(plan)}
    with tempfile.TemporaryDirectory(prefix="compare-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        schedule.write(folder)
        server = stack.enter_context(_redis(trial))
        child = stack.enter_context(_Child(trial, folder, server, []))
        # What comes after the kill has its imports behind it: it is away for as long as is said.
        successor = None
        if trial.fault == PROCESS:
            successor = stack.enter_context(_Child(trial, folder, server, ["--resumed"]))
        begin = child.begin()
        if trial.fault:
            down_s = DOWN_FOR * plan.idle_timeout_s
            _sleep_until(begin + DOWN_AT * plan.idle_timeout_s)
            if successor:
                child.kill()
                time.sleep(down_s)
                child = successor
                child.begin(begin)
            else:
                _kill(server, trial.fault, down_s)
        report = child.report(begin + plan.seconds + GRACE_S)
        if "error" in report:
            return row | report
        verdict = judge(schedule, begin, ledger.tellings(folder))
        return row | {"report": report, "verdict": asdict(verdict) | {"missed": verdict.missed}}


def find_breaking(trial: Trial, plan: Plan, seconds: float) -> dict[str, Any]:
    """Raise the rate until the technique breaks, and return a row with it."""
    row = asdict(trial) | {"plan": asdict(plan)}
    with tempfile.TemporaryDirectory(prefix="compare-") as name, contextlib.ExitStack() as stack:
        plan.write(Path(name))
        server = stack.enter_context(_redis(trial))
        flags = ["--breaking", "--seconds", str(seconds)]
        child = stack.enter_context(_Child(trial, Path(name), server, flags))
        return row | {"breaking": child.report(time.monotonic() + 2 * GRACE_S)}


@contextlib.contextmanager
def _redis(trial: Trial) -> Iterator[Server | None]:
    if trial.kind not in IN_REDIS:
        yield None
        return
    with Server(keep=trial.fault in (KEPT, POWER_CUT)) as server:
        yield server


def _kill(server: Server | None, fault: str, down_s: float) -> None:
    if server is None:
        raise ValueError("there is no Redis to kill")
    size = 0
    if fault == POWER_CUT:
        size = server.written_bytes()
        time.sleep(POWER_CUT_S)
    server.kill()
    if fault == POWER_CUT:
        server.cut(size)
    time.sleep(down_s)
    server.start()


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))


class _Child:
    """The process that plays; it ends with this one."""

    def __init__(self, trial: Trial, folder: Path, server: Server | None, flags: list[str]) -> None:
        self._command = [
            *(sys.executable, "-m", "loadtest.compare.child", trial.kind, str(folder)),
            *(["--redis", server.url] if server else []),
            *(["--batched"] if trial.batched else []),
            *flags,
        ]
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509 - it makes one system call
        )

    def __enter__(self) -> "_Child":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def begin(self, at: float = 0.0) -> float:
        """Let it play once it is ready, from a moment or as soon as may be; return the moment."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("it has no pipes")
        stdout.readline()  # of one that has ended it is empty, and `report` says why
        at = at or time.monotonic() + LEAD_S
        with contextlib.suppress(OSError):
            stdin.write(f"{at!r}\n".encode())
            stdin.flush()
        return at

    def kill(self) -> None:
        """As a crash does."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()

    def report(self, deadline: float) -> dict[str, Any]:
        """Return what it printed at its end, or the error by which it ended."""
        try:
            said, complaint = self._process.communicate(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return {"error": "it did not end"}
        if self._process.returncode:
            return {"error": _essence(complaint) or f"status {self._process.returncode}"}
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        return found


def _essence(complaint: bytes) -> str:
    """Return the last line of a traceback that says something; groups frame theirs."""
    lines = [line.strip(" |+-") for line in complaint.decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")
