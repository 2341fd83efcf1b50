"""``python -m tests.system.timers.workers``: do workers that share a timer in Redis lose or double events?

Each trial has a Redis of its own. One process schedules; several claim what is due, note it in a file, and
say that it is done. In the trial with kills a random worker is killed with SIGKILL each second, and another
one started. In the end the notes must name every event, none before its time by Redis' clock, and none
twice, except for those whose worker was killed while it held them. The exit status is 1 if that is not so.
Needs the ``embedded`` extra.
"""

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count, pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, NamedTuple

from presence.store.embedded import die_with_parent, embedded_redis
from presence.store.redis_client import open_client
from presence.timers.interface import Event
from presence.timers.kinds import TimerLocation
from presence.timers.shared_timer import Leasing, SharedTimer

EVENTS_PER_CALL: Final = 10_000  # of one call of `schedule_many`, which makes ten scripts of them
POLL_INTERVAL_S: Final = 0.01
TIMEOUT_S: Final = 60.0  # after the last event is due; what is left then counts as lost
DONE: Final = "-"  # noted once Redis has heard that all before are done
# A worker is there in milliseconds, with all imported. The process that forks has no other threads.
FORKING: Final = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class WorkersTrial:
    name: str
    location: TimerLocation  # the timer; each trial sets the URL of its own Redis
    leasing: Leasing
    events: int
    span_s: float  # over which the events' times are spread; 0: all at one time
    workers: int
    limit: int  # events per claim
    kill_every_s: float = 0.0  # 0: no worker is killed
    handling_s: float = 0.0  # a worker's time for the events of one claim


class Handling(NamedTuple):
    """One event that one worker handled."""

    event: int  # its number
    attempt: int
    at_ms: int  # when it was claimed, by Redis' clock
    worker: int
    is_unacknowledged: bool  # the worker ended before Redis acknowledged it


class WorkersVerdict(NamedTuple):
    missing: int  # events without a handling
    early: int  # handlings before the event's time
    repeated: int  # handlings of an event beyond its first
    unexplained: int  # of these, those whose previous worker was not killed while it held the event

    @property
    def is_good(self) -> bool:
        return not (self.missing or self.early or self.unexplained)


def handlings(worker: int, notes: str) -> Iterator[Handling]:
    """Read what a worker noted; a last line that is not whole was never acted upon."""
    lines = notes.split("\n")[:-1]
    last_done = max((i for i, line in enumerate(lines) if line == DONE), default=-1)
    for i, line in enumerate(lines):
        if line != DONE:
            event, attempt, at_ms = map(int, line.split())
            yield Handling(event, attempt, at_ms, worker, is_unacknowledged=i > last_done)


def judge(asked_ms: Sequence[float], seen: Collection[Handling], killed: Collection[int]) -> WorkersVerdict:
    """Compare the workers' notes with what was scheduled.

    Args:
        asked_ms: the time of Redis' clock before which each event must not come.
    """
    by_event: dict[int, list[Handling]] = {}
    for each in sorted(seen, key=lambda handling: handling.attempt):
        by_event.setdefault(each.event, []).append(each)
    repeats = [pair for several in by_event.values() for pair in pairwise(several)]
    return WorkersVerdict(
        missing=len(asked_ms) - len(by_event),
        early=sum(each.at_ms < asked_ms[each.event] for each in seen),
        repeated=len(repeats),
        unexplained=sum(
            not (first.is_unacknowledged and first.worker in killed and first.attempt < second.attempt)
            for first, second in repeats
        ),
    )


class Crew:
    """The worker processes; the ``with`` block ends them."""

    def __init__(self, trial: WorkersTrial, folder: Path) -> None:
        self._trial = trial
        self._folder = folder
        self._numbers = count()
        self._living: dict[int, BaseProcess] = {}
        self.killed: set[int] = set()
        for _ in range(trial.workers):
            self._start()

    def kill_one(self) -> None:
        """Kill a random worker, and start another."""
        number = random.choice(list(self._living))
        self._end(number)
        self.killed.add(number)
        self._start()

    def check_alive(self) -> None:
        """Raise RuntimeError if a worker has ended by itself; its error is on standard error."""
        for number, process in self._living.items():
            if process.exitcode is not None:
                raise RuntimeError(f"worker {number} ended with {process.exitcode}")

    def handlings(self) -> list[Handling]:
        notes = [(int(path.stem), path.read_text()) for path in self._folder.glob("*.txt")]
        return [each for number, text in notes for each in handlings(number, text)]

    def _start(self) -> None:
        number = next(self._numbers)
        arguments = (self._trial, self._folder / f"{number}.txt")
        self._living[number] = FORKING.Process(target=run_worker, args=arguments, daemon=True)
        self._living[number].start()

    def _end(self, number: int) -> None:
        process = self._living.pop(number)
        process.kill()
        process.join()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number in list(self._living):
            self._end(number)


def run_worker(trial: WorkersTrial, notes: Path) -> None:
    """Claim, note and acknowledge until killed. A note is one write, which a kill keeps."""
    ask_kernel = die_with_parent(signal.SIGKILL)
    if ask_kernel:
        ask_kernel()
    file = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with trial.location.open(trial.leasing) as timer:
        while True:
            if dues := timer.due(trial.limit):
                lines = [f"{each.id} {each.attempt} {each.due_ms + each.late_ms}\n" for each in dues]
                os.write(file, "".join(lines).encode())
                time.sleep(trial.handling_s)
                timer.done(dues)
                os.write(file, f"{DONE}\n".encode())
            else:
                time.sleep(POLL_INTERVAL_S)


def run_trial(trial: WorkersTrial) -> tuple[WorkersVerdict, int]:
    """Run a trial on a Redis of its own; return the verdict, and how many workers were killed."""
    with embedded_redis() as redis, tempfile.TemporaryDirectory(prefix="timers-") as folder:
        trial = replace(trial, location=replace(trial.location, redis_url=redis.url))
        with trial.location.open(trial.leasing) as timer, closing(open_client(redis.url)) as client:
            # A slow machine schedules some 20,000 a second; all are to be there before the first is due.
            lead_s = 0.2 + trial.events / 20_000
            asked_ms = _schedule(trial, timer, client, lead_s)
            with Crew(trial, Path(folder)) as crew:
                _wait_until_done(trial, timer, crew, lead_s)
            return judge(asked_ms, crew.handlings(), crew.killed), len(crew.killed)


def _schedule(trial: WorkersTrial, timer: SharedTimer, client: Any, lead_s: float) -> list[float]:
    """Schedule all events; return, for each, the time of Redis' clock before which it must not come."""
    asked_ms: list[float] = []
    first_ms = _now_ms(client) + lead_s * 1000
    for first in range(0, trial.events, EVENTS_PER_CALL):
        now_ms = _now_ms(client)
        lead_s = max(0.0, (first_ms - now_ms) / 1000)
        numbers = range(first, min(first + EVENTS_PER_CALL, trial.events))
        delays_s = [lead_s + random.uniform(0, trial.span_s) for _ in numbers]
        asked_ms += [now_ms + delay_s * 1000 for delay_s in delays_s]
        timer.schedule_many(Event(str(n), delay_s) for n, delay_s in zip(numbers, delays_s, strict=True))
    return asked_ms


def _wait_until_done(trial: WorkersTrial, timer: SharedTimer, crew: Crew, lead_s: float) -> None:
    """Wait until no event is left, killing workers meanwhile."""
    started = time.monotonic()
    next_kill = started + trial.kill_every_s
    while time.monotonic() < started + lead_s + trial.span_s + TIMEOUT_S:
        time.sleep(POLL_INTERVAL_S)
        crew.check_alive()
        state = timer.state()
        if state.waiting == state.leased == 0:
            return
        if trial.kill_every_s and time.monotonic() >= next_kill:
            crew.kill_one()
            next_kill += trial.kill_every_s


def _now_ms(client: Any) -> float:
    seconds, micros = client.time()
    return float(seconds * 1000 + micros / 1000)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.timers.workers", description=__doc__)
    parser.add_argument("--kind", choices=("ring", "queue"), nargs="+", default=["queue", "ring"])
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--limit", type=int, default=200, help="events that a worker claims at once")
    for name, seconds, text in (
        ("span", 20.0, "over which events are spread"),
        ("kill-every", 1.0, "between two kills"),
        ("handling", 0.02, "for what was claimed at once, with kills"),
        ("lease", 3.0, "of a claim"),
        ("tick", 0.1, "of a ring"),
    ):
        parser.add_argument(f"--{name}", type=float, default=seconds, metavar="S", help=text)
    options = parser.parse_args(arguments)
    is_good = True
    for kind in options.kind:
        place = TimerLocation("", kind, "loadtest", tick_s=options.tick)
        leasing = Leasing(options.lease, attempts_max=100)
        once = WorkersTrial(
            f"{kind}, all at once", place, leasing, options.events, 0, options.workers, options.limit
        )
        spread = replace(once, name=f"{kind}, spread", span_s=options.span)
        kills = {"kill_every_s": options.kill_every, "handling_s": options.handling}
        for trial in (once, spread, replace(spread, name=f"{kind}, spread, with kills", **kills)):
            verdict, killed = run_trial(trial)
            figures = "  ".join(f"{name} {value}" for name, value in verdict._asdict().items())
            print(f"{trial.name}: {trial.events} events  kills {killed}  {figures}", flush=True)
            is_good = is_good and verdict.is_good
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
