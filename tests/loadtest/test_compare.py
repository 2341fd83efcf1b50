"""The comparison: the techniques in the process, each held to the same few facts, and the judge of all."""

import math
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
import trio.testing

from loadtest.compare.player import Plan, Row, Schedule, Telling, draw, judge
from loadtest.compare.techniques import Technique, opened

T = 10.0
KINDS = ("wheel", "service", "heap", "rearmed", "trio")
TICK_S = T / 30


class Stage:
    """A technique, and time: that of trio, of which the player's clock is a copy."""

    def __init__(self, technique: Technique, clock: trio.testing.MockClock) -> None:
        self.technique = technique
        self._clock = clock
        self._begun = time.monotonic()
        self._zero = clock.current_time()

    @property
    def now(self) -> float:
        return self._begun + self._clock.current_time() - self._zero

    async def at(self, second: float) -> list[str]:
        """Let time pass until that second; return who was found, sorted."""
        self._clock.jump(self._begun + second - self.now)
        for _ in range(3):
            await trio.testing.wait_all_tasks_blocked()
        if self.technique.next_look(self.now) > self.now:
            return []
        return sorted(found.uid for found in self.technique.due(self.now))

    def touch(self, *uids: str) -> None:
        for uid in uids:
            self.technique.touch(uid, self.now)


@asynccontextmanager
async def on_stage(kind: str, clock: trio.testing.MockClock) -> AsyncIterator[Stage]:
    async with opened(kind, T, "") as technique:
        yield Stage(technique, clock)


@pytest.mark.parametrize("kind", KINDS)
async def test_who_is_silent_is_found_once_and_never_early(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    async with on_stage(kind, mock_clock) as stage:
        stage.touch("ann", "bob")
        assert await stage.at(T - 0.001) == []
        assert await stage.at(T + TICK_S) == ["ann", "bob"]
        assert await stage.at(3 * T) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_touch_puts_it_off(kind: str, mock_clock: trio.testing.MockClock) -> None:
    async with on_stage(kind, mock_clock) as stage:
        stage.touch("ann", "bob")
        await stage.at(0.9 * T)
        stage.technique.touch_many(["ann"], stage.now)
        assert await stage.at(T + TICK_S) == ["bob"]
        assert await stage.at(1.9 * T - 0.001) == []
        assert await stage.at(1.9 * T + TICK_S) == ["ann"]


@pytest.mark.parametrize("kind", KINDS)
async def test_who_is_forgotten_is_not_found(kind: str, mock_clock: trio.testing.MockClock) -> None:
    async with on_stage(kind, mock_clock) as stage:
        stage.touch("ann", "bob")
        stage.technique.forget("ann")
        assert await stage.at(T + TICK_S) == ["bob"]


@pytest.mark.parametrize("kind", KINDS)
async def test_who_comes_back_is_found_again(kind: str, mock_clock: trio.testing.MockClock) -> None:
    async with on_stage(kind, mock_clock) as stage:
        stage.touch("ann")
        assert await stage.at(T + TICK_S) == ["ann"]
        stage.touch("ann")
        assert await stage.at(2 * T + TICK_S - 0.001) == []
        assert await stage.at(2 * T + 2 * TICK_S) == ["ann"]


@pytest.mark.parametrize(
    ("told", "early", "false", "missed", "max_ms"),
    [
        ([Telling(0, 15.1, T + 0.1), Telling(1, 18.3, T + 0.3)], 0, 0, 0, 300.0),
        ([Telling(1, 18.3, T + 0.3)], 0, 0, 1, 300.0),
        ([Telling(0, 14.9, T - 0.1)], 1, 0, 1, -100.0),
        ([Telling(0, 15.0, T - 0.0005)], 0, 0, 1, -0.5),  # as exact as Redis counts
        ([Telling(2, 25.0, T)], 0, 1, 2, math.nan),
        ([Telling(1, 6.0, T)], 0, 1, 2, math.nan),  # before the last beat
        ([Telling(0, 15.0, T), Telling(0, 20.0, T + 5)], 0, 0, 1, 0.0),
    ],
)
def test_tellings_are_held_against_what_users_did(
    told: list[Telling], early: int, false: int, missed: int, max_ms: float
) -> None:
    schedule = Schedule(array("d"), array("L"), array("d", [5.0, 8.0, math.inf]))
    row = Row(Plan("wheel", 3, idle_timeout_s=T, seconds=30.0))
    judge(row, schedule, told)
    assert (row.early, row.false, row.missed) == (early, false, missed)
    assert row.max_ms == pytest.approx(max_ms, nan_ok=True)


def test_the_schedule_keeps_users_beating_until_they_fall_silent() -> None:
    plan = Plan("wheel", 200, idle_timeout_s=T, seconds=2.5 * T, silent_share=0.3)
    schedule = draw(plan)
    assert list(schedule.times) == sorted(schedule.times)
    beats: dict[int, list[float]] = {user: [] for user in range(plan.users)}
    for at, user in zip(schedule.times, schedule.who, strict=True):
        beats[user].append(at)
    assert sum(map(math.isfinite, schedule.last_beats)) == 60
    for user, times in beats.items():
        ends_at = min(schedule.last_beats[user], plan.seconds)
        assert all(b - a < 0.45 * T for a, b in pairwise([*times, ends_at]))
        assert times[-1] <= ends_at
    with pytest.raises(ValueError, match="too few"):
        draw(Plan("wheel", 10, seconds=30.0))
