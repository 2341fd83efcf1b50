"""A lobby whose members fall silent together: how long until its count is 0, on a node without sockets."""

import time
from dataclasses import dataclass
from typing import Any, Final

import trio

from benchmarks.inprocess_node import TICK_S, InProcessNode
from benchmarks.rooms.costs import LOBBY, PREFIX, uid
from benchmarks.rooms.projectors import ProjectorProcess
from loadtest.servers import LocalRedis
from presence.store.keys import Keys

IDLE_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.02
TIMEOUT_S: Final = 180.0


@dataclass(frozen=True)
class SilenceFigures:
    """What came of it.

    Attributes:
        events_s: from the first end until Redis has acknowledged the last one.
        beyond_s: from then until nobody is in the room.
    """

    users: int
    events_s: float
    beyond_s: float

    @property
    def total_s(self) -> float:
        return self.events_s + self.beyond_s


def measure_silence(python: str, users: int, shards: int) -> SilenceFigures:
    keys = Keys(PREFIX, shards)
    with LocalRedis() as redis:
        return trio.run(_play, redis, keys, python, users)


async def _play(redis: LocalRedis, keys: Keys, python: str, users: int) -> SilenceFigures:
    def count() -> int:
        return int(redis.client.zscore(keys.room_sizes(keys.shard(LOBBY)), LOBBY) or 0)

    async def wait_until_count(wanted: int) -> None:
        with trio.fail_after(TIMEOUT_S):
            while count() != wanted:  # noqa: ASYNC110 - Redis sends no event
                await trio.sleep(POLL_S)

    node: Any = InProcessNode(redis.url, keys, users, IDLE_TIMEOUT_S, rooms="open")
    await node.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.relay.run)
        with ProjectorProcess(redis.url, python=python):
            live = await node.log_in(map(uid, range(users)), [LOBBY])
            await wait_until_count(users)
            node.engine.connections_read(live)
            live.clear()
            nursery.start_soon(node.ticker.run)
            with trio.fail_after(IDLE_TIMEOUT_S + 3 * TICK_S + TIMEOUT_S):
                while len(node.engine.registry) == users:  # noqa: ASYNC110 - it only observes the node
                    await trio.sleep(0.001)
                began = time.monotonic()
                while node.engine.registry:  # noqa: ASYNC110 - as above
                    await trio.sleep(0.001)
            await node.settled()
            written = time.monotonic()
            await wait_until_count(0)
            over = time.monotonic()
        nursery.cancel_scope.cancel()
    return SilenceFigures(users, written - began, over - written)
