"""The techniques in the process, each held to the same few facts."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from loadtest.compare import opening
from loadtest.compare.technique import Technique

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
    async with opening.opened(kind, T, "") as technique:
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


async def test_an_unknown_technique_is_refused() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="no such technique: abacus")):
        async with opening.opened("abacus", T, ""):
            pass
