"""A process that runs a real projector of rooms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import TYPE_CHECKING, Final
from unittest import mock

from presence.rooms import projector, source_shard
from presence.rooms.projector import RoomProjector
from tests.simulation.fake.client import connector
from tests.simulation.machine import Machine, NodeClock
from tests.simulation.runtime import Task, VirtualRuntime
from tests.simulation.wire import RedisConnection

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld

# Seconds between two looks whether anything has happened: several times as long as usual, so that seeds take
# less processor time.
INTERVALS_S: Final = {
    (source_shard, "POLL_FIRST_S"): 0.05,
    (source_shard, "POLL_LIMIT_S"): 0.5,
    (projector, "PAGE_INTERVAL_S"): 3.0,
    (projector, "WALK_INTERVAL_S"): 2.0,
}


@contextmanager
def fewer_polls() -> Iterator[None]:
    with ExitStack() as stack:
        for (module, name), seconds in INTERVALS_S.items():
            stack.enter_context(mock.patch.object(module, name, seconds))
        yield


class SimulatedProjector:
    """One process that runs a projector, as `presence rooms run`; a restart makes another.

    Args:
        place: the number of its machine.
        number: unique among all that run projectors.
    """

    def __init__(self, world: SimulatedWorld, place: int, number: int) -> None:
        settings, self.place, self.name = world.plan.settings, place, f"projector{number}"
        random = Random(f"{world.plan.seed} {self.name}")
        clock = NodeClock(world.agenda, random.choice((1.0, random.uniform(0.97, 1.03))), 0.0)
        self.machine = Machine(world.agenda, clock, random)
        self.redis_connection = RedisConnection(world.agenda, world.redis, random)
        self._runtime = VirtualRuntime(self.machine)
        self.projector = RoomProjector(
            "redis://simulated",
            settings.prefix,
            shards=settings.shard_count,
            kept=settings.stream_maxlen,
            events=settings.room_events,
            max_rooms=settings.max_rooms,
            connect=connector(world.redis, self.redis_connection.deliver),
            clock=clock.monotonic,
            name=self.name,
        )
        task = Task(self.machine, self._run())
        self.machine.at_end.append(task.cancel)

    async def _run(self) -> None:
        """As `presence.common.background_job.BackgroundJob.run`."""
        caller = self._runtime.loop_caller()
        while True:
            await self._runtime.sleep(await caller.call(self.projector.run_once))
