"""Each command that makes a load is interrupted, and loses each of its processes, in the middle of a run.

Held: it ends in time with a status other than 0, it does not say that it passed, and none of its processes is
left.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import psutil
import pytest

from loadtest.processes import LOCUSTFILE, kill_tree
from tests.support.waiting import wait_for

START_S: Final = 40.0  # until the load has begun, on a busy machine
MIDDLE_S: Final = {"expiry": 1.5}  # after that
USUAL_MIDDLE_S: Final = 8.0  # each of the others is at its measure then
END_S: Final = 150.0  # a generator that is stopped is waited for
LEFT_S: Final = 10.0  # for what ends by itself when its parent has ended
ROOT: Final = LOCUSTFILE.parent.parent

COMMANDS: Final = {
    "check": "loadtest.check --only run --users 40 --seconds 15 --idle-timeout 2",
    "scale": "benchmarks.scale --connections 60 --workers 2 --processes 2 --logins 2000 --idle-timeout 5"
    " --tick 0.25 --beat 1 --hold 10 --floor-hold 0 --last-beat 0.4",
    "bench": "benchmarks.keepalives --connections 30 --rates 400 --seconds 10 --probe-seconds 5 --rounds 1"
    " --servers presence",
    "visits": "benchmarks.visits --rates 50 --seconds 15 --rounds 1 --servers presence --others 10",
    "storm": "benchmarks.storm --clients 100 --rounds 1",
    "expiry": "benchmarks.expiry --sessions 2000",
    "compare": "benchmarks.compare --users 60 --idle-timeout 6 --kinds queue --single",
    "soak": "benchmarks.soak --visits 6000 --rate 300 --users 900 --crowd 40 --events-only",
    "networks": "benchmarks.networks --phones 1 --minutes 0.4",
}
WRITES: Final = ("bench", "visits")  # which write into a folder unless they are given one


class Child(NamedTuple):
    """A descendant of a command, with its words as they were when it was found."""

    process: psutil.Process
    words: str


def is_redis(child: Child) -> bool:
    return "valkey-server" in child.words or "redis-server" in child.words


def is_server(child: Child) -> bool:
    return " serve " in child.words and not is_redis(child)


def is_generator(child: Child) -> bool:
    return any(each in child.words for each in ("locust", "spawn_main", "forkserver")) and not is_tracker(
        child
    )


def is_tracker(child: Child) -> bool:
    """Whether it is a process of multiprocessing's own, which makes no load."""
    return "resource_tracker" in child.words


def interrupt(main: psutil.Process) -> None:
    """As Ctrl-C on a terminal: the whole group has it."""
    os.killpg(main.pid, signal.SIGINT)


def terminate(main: psutil.Process) -> None:
    main.terminate()


Harm = Callable[[psutil.Process], None]


def lose(is_wanted: Callable[[Child], bool], harm: signal.Signals) -> Harm:
    def lose_one(main: psutil.Process) -> None:
        victims = [each for each in family(main) if is_wanted(each)]
        victims[-1].process.send_signal(harm)  # of a chain of processes the one that does the work

    return lose_one


HARMS: Final[Mapping[str, Harm]] = {
    "interrupted": interrupt,
    "terminated": terminate,
    "server killed": lose(is_server, signal.SIGKILL),
    "Redis killed": lose(is_redis, signal.SIGKILL),
    "generator killed": lose(is_generator, signal.SIGKILL),
    "generator stopped": lose(is_generator, signal.SIGSTOP),
}
ONE_PROCESS: Final = {"expiry"}  # it is server and generator itself
NO_SERVER: Final = {"compare"}
# Redis is in none of their figures, and the server replaces it.
WITHOUT_REDIS: Final = {"bench", "storm"}
NO_GENERATOR: Final = {"storm"}  # the command makes the load itself


class Cell(NamedTuple):
    command: str
    harm: str

    def __str__(self) -> str:
        return f"{self.command}: {self.harm}"

    @property
    def exists(self) -> bool:
        if self.harm == "server killed":
            return self.command not in ONE_PROCESS | NO_SERVER
        if self.harm == "Redis killed":
            return self.command not in WITHOUT_REDIS
        if self.harm.startswith("generator"):
            return self.command not in ONE_PROCESS | NO_GENERATOR
        return True


CELLS: Final = [cell for name in COMMANDS for harm in HARMS if (cell := Cell(name, harm)).exists]
IN_SMALL: Final = {
    Cell("check", "interrupted"),
    Cell("visits", "generator killed"),
    Cell("soak", "generator killed"),
}


def family(main: psutil.Process) -> list[Child]:
    """Return a process' descendants; those that end meanwhile are left out."""
    found = []
    for each in main.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(Child(each, " ".join(each.cmdline())))
    return found


@contextlib.contextmanager
def running(cell: Cell, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    words = COMMANDS[cell.command].split()
    words += ["--out", str(folder / "out")] if cell.command in WRITES else []
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=ROOT, stdout=said, stderr=said, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            kill_tree(process.pid)
            process.wait()


def has_begun(cell: Cell, main: psutil.Process) -> bool:
    parts = {"server killed": is_server, "Redis killed": is_redis, "generator killed": is_generator}
    wanted = [is_wanted for harm, is_wanted in parts.items() if Cell(cell.command, harm).exists]
    found = family(main)
    return all(any(is_wanted(each) for each in found) for is_wanted in wanted)


@pytest.fixture(scope="module")
def tally() -> Iterator[Counter[bool]]:
    """How many cells held (False), and how many did not; printed at the end."""
    counts: Counter[bool] = Counter()
    yield counts
    print(f"\n{counts.total()} cells, {counts[False]} held")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(each, marks=() if each in IN_SMALL else pytest.mark.nightly, id=str(each))
        for each in CELLS
    ],
)
@pytest.mark.timeout(START_S + USUAL_MIDDLE_S + END_S + LEFT_S + 30)
def test_a_run_that_was_harmed_does_not_pass_and_leaves_nothing(
    cell: Cell, tmp_path: Path, tally: Counter[bool]
) -> None:
    with running(cell, tmp_path) as process:
        main = psutil.Process(process.pid)
        wait_for(lambda: has_begun(cell, main), START_S)
        time.sleep(MIDDLE_S.get(cell.command, USUAL_MIDDLE_S))
        children = family(main)
        HARMS[cell.harm](main)
        began = time.monotonic()
        status = process.wait(END_S)
        took_s = time.monotonic() - began
    said = (tmp_path / "said").read_text(errors="replace")
    _, running_on = psutil.wait_procs([each.process for each in children], LEFT_S)
    left = [child.words[:100] for child in children if child.process in running_on]
    for each in running_on:
        each.kill()
    last = (said.strip().splitlines() or [""])[-1][:160]
    broken = [
        *(["its status is 0"] if status == 0 else []),
        *(["it says that it passed"] if "passed" in last else []),
        *(f"left: {each}" for each in left),
    ]
    tally[bool(broken)] += 1
    words = "; ".join(broken) or "held"
    print(f"{cell}: {words}: status {status} after {took_s:.1f} s: {last}")
    assert not broken, said[-2000:]
