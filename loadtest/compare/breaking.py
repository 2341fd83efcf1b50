"""The rate at which a technique breaks: touches come faster and faster, open loop, until it falls behind."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import trio

from loadtest.compare.play import CHUNK, STEP_S
from loadtest.compare.technique import Technique
from loadtest.compare.workload import Plan

BEHIND_S: Final = 0.25  # of touches that are due and not made: with so many it does not keep up
FIRST_SHARE: Final = 0.7  # of what it does with no pause, which is guessed first
GUESS_S: Final = 0.5
FACTOR: Final = 1.15
RATES_MAX: Final = 12


@dataclass(frozen=True)
class Breaking:
    """Touches a second: the highest rate that was kept up with, and the next, which was not; 0 if none."""

    kept: float
    broken: float


class _Crowd:
    """Users who are touched at random, in an order drawn before."""

    def __init__(self, technique: Technique, plan: Plan, *, batched: bool) -> None:
        self._technique = technique
        self._batched = batched
        self._uids = [f"user-{number}" for number in range(plan.users)]
        self._order = self._uids[:]
        random.Random(plan.seed).shuffle(self._order)
        self._place = 0

    async def come(self) -> None:
        """All are touched once, in calls as large as may be."""
        for start in range(0, len(self._uids), CHUNK):
            self._technique.touch_many(self._uids[start : start + CHUNK], time.monotonic())
            await trio.lowlevel.checkpoint()

    def touch(self, count: int) -> None:
        """Touch so many."""
        begin, self._place = self._place, (self._place + count) % len(self._order)
        some: Sequence[str] = self._order[begin : begin + count]
        if len(some) < count:
            some = [*some, *self._order[: count - len(some)]]
        if self._batched:
            self._technique.touch_many(some, time.monotonic())
            return
        touch, now = self._technique.touch, time.monotonic
        for uid in some:
            touch(uid, now())

    async def turn(self) -> None:
        """Let the technique, and trio, do what they have to do."""
        if self._technique.next_look(time.monotonic()) <= time.monotonic():
            for _ in self._technique.due(time.monotonic()):
                pass
        await trio.lowlevel.checkpoint()


async def broken(technique: Technique, plan: Plan, seconds: float, *, batched: bool) -> Breaking:
    """Raise the rate until the technique falls behind, and return where that was.

    Args:
        technique: who is tried; it knows nobody yet.
        plan: how many users there are.
        seconds: for which each rate is held.
        batched: touches that are due together are made with one call.
    """
    crowd = _Crowd(technique, plan, batched=batched)
    await crowd.come()
    rate = FIRST_SHARE * await _unpaused(crowd)
    kept = lost = 0.0
    for _ in range(RATES_MAX):
        if await _keeps_up(crowd, rate, seconds):
            kept, rate = rate, rate * FACTOR
        else:
            lost, rate = rate, rate / FACTOR
        if kept and lost:
            break
    return Breaking(kept, lost)


async def _unpaused(crowd: _Crowd) -> float:
    begun, count = time.monotonic(), 0
    while time.monotonic() - begun < GUESS_S:
        crowd.touch(CHUNK)
        count += CHUNK
        await crowd.turn()
    return count / (time.monotonic() - begun)


async def _keeps_up(crowd: _Crowd, rate: float, seconds: float) -> bool:
    begun, made = time.monotonic(), 0
    while (passed := time.monotonic() - begun) < seconds:
        behind = int(passed * rate) - made
        if behind > BEHIND_S * rate:
            return False
        while behind > 0:
            crowd.touch(min(behind, CHUNK))
            made += min(behind, CHUNK)
            behind -= CHUNK
            if time.monotonic() - begun > passed + STEP_S:
                break
        await crowd.turn()
        next_step = begun + STEP_S * (1 + (time.monotonic() - begun) // STEP_S)
        await trio.sleep(max(0.0, next_step - time.monotonic()))
    return True
