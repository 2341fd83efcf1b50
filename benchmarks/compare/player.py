"""One technique under the one workload, in real time and open loop.

Everything scales with T, the idle time-out: users send a keepalive each 0.4 T, less or more by a tenth, and
begin spread over one interval. A share of them falls silent at moments spread over the first part, early
enough for all to be reported before the end. All is drawn from a seed, so the same for every technique. A
touch is made when it is due.
"""

import contextlib
import ctypes
import gc
import math
import random
import time
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psutil
import trio

from benchmarks.compare.techniques import Technique, open_technique
from loadtest.outcome import percentile
from loadtest.usage import redis_calls
from presence.common.errors import StoreError, StoreUnavailable
from presence.store.redis_client import open_client

BEAT_SHARE: Final = 0.4  # of T: two keepalives may get lost; 12 s of 30
JITTER: Final = 0.1  # of the interval, either way
SLACK_SHARE: Final = 0.05  # of T: a telling that is later than this before the end counts as missed
STEP_S: Final = 0.05  # touches are made together once in so long: a server gathers its reads as well
CHUNK: Final = 512  # touches, after which it is looked whether a look is due
TAIL_SHARE: Final = 0.2  # of T, after the last touch: a late telling is not a missed one, and no other is due
WARM_UP_BEATS: Final = 1.1  # all have come by then
CLOCK_S: Final = 0.001  # Redis counts whole milliseconds: its deadlines are as exact as that
_SCRIPTS: Final = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_fcall")


@dataclass(frozen=True)
class ComparePlan:
    """One run: a technique, and N users of whom a share falls silent for more than T seconds.

    If it is batched, touches that are due together are made in one call.
    """

    kind: str
    users: int
    batched: bool = False
    idle_timeout_s: float = 30.0
    seconds: float = 60.0
    silent_share: float = 0.1
    seed: int = 1


@dataclass(frozen=True)
class Schedule:
    """Every touch in order of time: seconds since the start, and the number of the user.

    `last_beats`: per user, the time of the last keepalive before a silence, else infinity.
    """

    times: "array[float]"
    who: "array[int]"
    last_beats: "array[float]"


def draw_schedule(plan: ComparePlan) -> Schedule:
    """Return the schedule of a plan; raises ValueError if it is too short for a silence."""
    last_silence_s = plan.seconds - (1 + SLACK_SHARE) * plan.idle_timeout_s
    if last_silence_s <= 0:
        raise ValueError(f"{plan.seconds:g} s are too few for an idle time-out of {plan.idle_timeout_s:g} s")
    rng, beat_s = random.Random(plan.seed), BEAT_SHARE * plan.idle_timeout_s
    silent = set(rng.sample(range(plan.users), round(plan.users * plan.silent_share)))
    last_beats = array("d", [math.inf]) * plan.users
    touches: list[tuple[float, int]] = []
    for user in range(plan.users):
        end = last_silence_s * rng.random() if user in silent else plan.seconds
        at = min(rng.random() * beat_s, end)
        while at <= end:
            touches.append((at, user))
            last = at
            at += beat_s * (1 + JITTER * (2 * rng.random() - 1))
        if user in silent:
            last_beats[user] = last
    touches.sort()
    return Schedule(
        array("d", (at for at, _ in touches)), array("L", (who for _, who in touches)), last_beats
    )


@dataclass
class CompareRow:
    """The result of a run."""

    plan: ComparePlan  # what was played
    # Made in the measured stretch, from when all had come to the end; and its length
    touches: int = 0
    seconds: float = 0.0
    # CPU for a touch, looks and tellings included
    process_us: float = 0.0
    redis_us: float = 0.0
    # That Redis ran for a touch; the commands in scripts too
    scripts: float = 0.0
    commands: float = 0.0
    # Memory for a user, just before the first can be due
    process_bytes: float = 0.0
    redis_bytes: float = 0.0
    # Lateness of the first telling of a user, from T after the last touch
    p50_ms: float = math.nan
    p99_ms: float = math.nan
    max_ms: float = math.nan
    early: int = 0  # tellings of a user whose last touch was less than T ago
    false: int = 0  # reports of a user who went on sending keepalives
    missed: int = 0  # silent users who were never reported
    lag_max_ms: float = 0.0  # from when a touch was due until it was done, less the step
    refused: int = 0  # calls that Redis did not take
    error: str = ""  # by which the run ended; all else is 0 then


@dataclass(frozen=True)
class Telling:
    """A user was reported as offline: when, in seconds of the run, and how long after the last touch."""

    user: int
    at: float
    silent_s: float


def judge(row: CompareRow, schedule: Schedule, tellings: Sequence[Telling]) -> None:
    """Hold the tellings against what users did, and note in the row what comes of it."""
    first: dict[int, float] = {}
    for each in tellings:
        late_s = each.silent_s - row.plan.idle_timeout_s
        row.early += late_s < -CLOCK_S
        if each.at < schedule.last_beats[each.user]:
            row.false += 1
        else:
            first.setdefault(each.user, 1000 * late_s)
    row.missed = sum(map(math.isfinite, schedule.last_beats)) - len(first)
    row.p50_ms, row.p99_ms, row.max_ms = (percentile(first.values(), share) for share in (0.5, 0.99, 1.0))


class Meter:
    """Reads what the process, and its Redis if there is a URL, have used so far."""

    def __init__(self, url: str) -> None:
        self._client: Any = open_client(url) if url else None
        self._redis = psutil.Process(self._client.info("server")["process_id"]) if self._client else None

    def used(self) -> list[float]:
        """Return seconds, CPU seconds of the process and of Redis, and scripts and commands that it ran."""
        mine = [time.monotonic(), time.process_time()]
        if not self._redis:
            return [*mine, 0.0, 0.0, 0.0]
        cpu = self._redis.cpu_times()
        calls = redis_calls(self._client)
        scripts = sum(calls.get(name, 0) for name in _SCRIPTS)
        return [*mine, cpu.user + cpu.system, scripts, sum(calls.values())]

    def memory(self) -> tuple[int, int]:
        """Return bytes that only this process has, and bytes that Redis uses for data.

        Free memory is returned first: the next user would use it, and seem to need none.
        """
        gc.collect()
        with contextlib.suppress(AttributeError):  # of another C library
            ctypes.CDLL(None).malloc_trim(0)
        used = self._client.info("memory")["used_memory"] if self._client else 0
        return psutil.Process().memory_full_info().uss, used


class Player:
    """Makes the touches of a schedule and records what is reported."""

    def __init__(self, row: CompareRow, technique: Technique, meter: Meter) -> None:
        self._row, self._technique, self._meter = row, technique, meter
        self._schedule = draw_schedule(row.plan)
        self._tellings: list[Telling] = []
        self._uids = [f"user-{number}" for number in range(row.plan.users)]
        self._touched = array("d", [0.0]) * row.plan.users
        self._position = 0
        self._begin = 0.0

    async def run(self) -> None:
        """Play to the end, and fill the row."""
        plan, row, meter = self._row.plan, self._row, self._meter
        # What the first call loads is charged to no user.
        self._technique.touch_many(["warm-up"], time.monotonic())
        before = meter.memory()
        self._begin = begin = time.monotonic()
        await self._play_until(begin + WARM_UP_BEATS * BEAT_SHARE * plan.idle_timeout_s)
        gc.collect()
        gc.freeze()  # as the server does once it is warm
        start, place = meter.used(), self._position
        await self._play_until(begin + plan.idle_timeout_s)
        row.process_bytes, row.redis_bytes = (
            (b - a) / plan.users for a, b in zip(before, meter.memory(), strict=True)
        )
        await self._play_until(begin + plan.seconds)
        row.touches = self._position - place
        used = [b - a for a, b in zip(start, meter.used(), strict=True)]
        row.seconds, process, redis, row.scripts, row.commands = (
            used[0],
            *(value / max(1, row.touches) for value in used[1:]),
        )
        row.process_us, row.redis_us = process * 1e6, redis * 1e6
        await self._play_until(begin + plan.seconds + TAIL_SHARE * plan.idle_timeout_s)
        judge(row, self._schedule, self._tellings)

    async def _play_until(self, end: float) -> None:
        while (now := time.monotonic()) < end:
            self._make_touches(now)
            if self._technique.next_poll(now) <= time.monotonic():
                self._collect_due()
            now = time.monotonic()
            step = self._begin + STEP_S * (1 + (now - self._begin) // STEP_S)
            await trio.sleep(max(0.0, min(step, self._technique.next_poll(now), end) - now))

    def _make_touches(self, now: float) -> None:
        """Make what is due by now; a step's time later the rest has to wait for a turn of the others."""
        times, who = self._schedule.times, self._schedule.who
        touch = self._touch_batch if self._row.plan.batched else self._touch_each
        upto = bisect_left(times, now - self._begin)
        while self._position < upto and time.monotonic() - now < STEP_S:
            chunk = who[self._position : min(upto, self._position + CHUNK)]
            due = times[self._position]
            self._position += len(chunk)
            touch(chunk)
            lag_ms = 1000 * (time.monotonic() - self._begin - due - STEP_S)
            self._row.lag_max_ms = max(self._row.lag_max_ms, lag_ms)

    def _touch_each(self, users: Sequence[int]) -> None:
        touch, uids, touched = self._technique.touch, self._uids, self._touched
        for user in users:
            now = time.monotonic()
            try:
                touch(uids[user], now)
            except (StoreUnavailable, StoreError):
                self._row.refused += 1
            else:
                touched[user] = now

    def _touch_batch(self, users: Sequence[int]) -> None:
        now = time.monotonic()
        try:
            self._technique.touch_many([self._uids[user] for user in users], now)
        except (StoreUnavailable, StoreError):
            self._row.refused += len(users)
            return
        for user in users:
            self._touched[user] = now

    def _collect_due(self) -> None:
        try:
            for uid, at in self._technique.due(time.monotonic()):
                if uid != "warm-up":
                    user = int(uid.removeprefix("user-"))
                    self._tellings.append(Telling(user, at - self._begin, at - self._touched[user]))
        except (StoreUnavailable, StoreError):
            self._row.refused += 1


async def play(plan: ComparePlan, url: str) -> CompareRow:
    """Play a plan, and return its result; `url`: of a Redis, for the techniques that need one."""
    row = CompareRow(plan)
    async with open_technique(plan.kind, plan.idle_timeout_s, url) as technique:
        await Player(row, technique, Meter(url)).run()
    return row


def run(plan: ComparePlan, url: str) -> CompareRow:
    """The same, for a process."""
    return trio.run(play, plan, url)
