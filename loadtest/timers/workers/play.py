"""One trial: events are scheduled, workers handle them, some of the workers are killed."""

import multiprocessing
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from loadtest.timers.workers import worker
from loadtest.timers.workers.verdict import Verdict, handlings, judge
from loadtest.timers.workers.worker import Work
from presence.embedded import EmbeddedRedis, embedded_redis
from presence.store.client import open_client
from presence.store.scripting import Scripting
from presence.timers.handing import SharedTimer
from presence.timers.interface import Event

EVENTS_A_CALL: Final = 10_000  # of `schedule_many`, which makes ten scripts of them
PAYLOAD: Final = b"x" * 100
LOOK_S: Final = 0.05  # between two looks at what is left
PATIENCE_S: Final = 60.0  # after the last event is due; then what is left counts as lost
SLOW_US: Final = 200  # calls that are shorter are not looked for
# A worker is there in milliseconds, with all imported. Whoever plays has no other threads.
FORKING: Final = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a trial is.

    Attributes:
        name: of the trial, in the table.
        events: how many.
        span_s: over which their times are spread; 0: all at one time.
        workers: processes.
        kill_every_s: after so long a random worker is killed and another started; 0: none is.
        handling_s: how long a worker takes over what it has taken at once.
    """

    name: str
    events: int
    span_s: float
    workers: int
    kill_every_s: float = 0.0
    handling_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial has shown.

    Attributes:
        plan: what it was.
        verdict: whether all was right.
        scheduled_per_s: events that one process scheduled, a second.
        took_s: from when the first event was due until the last one was handed out.
        schedule_us, handle_us: processor time of Redis for an event: to schedule it; to claim and settle it,
            with the looks for nothing.
        kills: how many workers.
        longest_ms: the longest call in Redis.
        counts: what the timer counted.
    """

    plan: Plan
    verdict: Verdict
    scheduled_per_s: float
    took_s: float
    schedule_us: float
    handle_us: float
    kills: int
    longest_ms: float
    counts: dict[str, int]


class Crew:
    """The workers; used in a ``with`` block, after which none is left."""

    def __init__(self, work: Work, folder: Path, size: int) -> None:
        self._work = work
        self._folder = folder
        self._numbers = count()
        self._living: dict[int, BaseProcess] = {}
        self.killed: set[int] = set()
        for _ in range(size):
            self._start()

    def _start(self) -> None:
        number = next(self._numbers)
        process = FORKING.Process(target=worker.run, args=(self._work, self._notes(number)), daemon=True)
        process.start()
        self._living[number] = process

    def _notes(self, number: int) -> Path:
        return self._folder / f"{number}.txt"

    def kill_one(self) -> None:
        """Kill a random worker as `kill -9` does, and start another."""
        number = random.choice(list(self._living))
        self.check()
        self._end(number)
        self.killed.add(number)
        self._start()

    def check(self) -> None:
        """See that all live who should.

        Raises:
            RuntimeError: one has ended by itself; its error is on standard error.
        """
        for number, process in self._living.items():
            if process.exitcode is not None:
                raise RuntimeError(f"worker {number} ended with {process.exitcode}")

    def _end(self, number: int) -> None:
        process = self._living.pop(number)
        process.kill()
        process.join()

    def notes(self) -> Iterator[tuple[int, str]]:
        """Give what each worker noted."""
        for path in self._folder.glob("*.txt"):
            yield int(path.stem), path.read_text()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number in list(self._living):
            self._end(number)


def play(plan: Plan, work: Work) -> Outcome:
    """Play a trial on a Redis of its own; `work.url` is left out of account."""
    slowlog = ("--slowlog-log-slower-than", str(SLOW_US), "--slowlog-max-len", "10000")
    with embedded_redis(extra=slowlog) as redis, tempfile.TemporaryDirectory(prefix="workers-") as folder:
        return _play(plan, replace(work, url=redis.url, handling_s=plan.handling_s), redis, Path(folder))


def _play(plan: Plan, work: Work, redis: EmbeddedRedis, folder: Path) -> Outcome:
    client = open_client(redis.url)
    scripting = Scripting(redis.url)
    timer = work.timer(scripting)
    # A slow machine schedules some 20,000 a second; all are to be there before the first is due.
    lead_s = 0.2 + plan.events / 20_000
    cpu_before, begun = _cpu_s(client), time.monotonic()
    asked_us = _schedule(plan, timer, client, lead_s)
    schedule_s, cpu_between = time.monotonic() - begun, _cpu_s(client)
    first_ms = max(min(asked_us) / 1000, _now_us(client) / 1000)
    with Crew(work, folder, plan.workers) as crew:
        _wait(plan, timer, crew, lead_s)
        cpu_after = _cpu_s(client)
    seen = [each for number, notes in crew.notes() for each in handlings(number, notes)]
    verdict = judge(asked_us, seen, crew.killed)
    state = timer.state()
    slowest = max((each["duration"] for each in client.slowlog_get(10_000)), default=SLOW_US)
    scripting.close()
    client.close()
    return Outcome(
        plan=plan,
        verdict=verdict,
        scheduled_per_s=plan.events / schedule_s,
        took_s=max(0.001, (verdict.last_ms - first_ms) / 1000),
        schedule_us=(cpu_between - cpu_before) * 1e6 / plan.events,
        handle_us=(cpu_after - cpu_between) * 1e6 / plan.events,
        kills=len(crew.killed),
        longest_ms=slowest / 1000,
        counts=dict(state.counts),
    )


def _schedule(plan: Plan, timer: SharedTimer, client: Any, lead_s: float) -> list[float]:
    """Schedule all; return before which microsecond of Redis' clock each must not come."""
    asked_us: list[float] = []
    base_us = _now_us(client) + lead_s * 1e6
    for first in range(0, plan.events, EVENTS_A_CALL):
        last = min(first + EVENTS_A_CALL, plan.events)
        now_us = _now_us(client)
        delays = [
            max(0.0, (base_us - now_us) / 1e6) + random.uniform(0, plan.span_s) for _ in range(first, last)
        ]
        asked_us += [now_us + delay_s * 1e6 for delay_s in delays]
        timer.schedule_many(Event(str(first + i), delay_s, PAYLOAD) for i, delay_s in enumerate(delays))
    return asked_us


def _wait(plan: Plan, timer: SharedTimer, crew: Crew, lead_s: float) -> None:
    """Wait until nothing is left, and kill meanwhile."""
    begun = time.monotonic()
    next_kill = begun + plan.kill_every_s
    while time.monotonic() < begun + lead_s + plan.span_s + PATIENCE_S:
        time.sleep(LOOK_S)
        crew.check()
        state = timer.state()
        if state.waiting == state.leased == 0:
            return
        if plan.kill_every_s and time.monotonic() >= next_kill:
            crew.kill_one()
            next_kill += plan.kill_every_s


def _now_us(client: Any) -> int:
    seconds, micros = client.time()
    return int(seconds * 1_000_000 + micros)


def _cpu_s(client: Any) -> float:
    used = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])
