"""Faults while users change: how long until members are right again, and what the stream of rooms tells.

A node without sockets, and two projectors, of which one waits. Users log in and out and move between rooms
all the time. Some seconds later the active projector is killed, or all data are deleted, or Redis is killed
and a replica takes over. Members are compared with the sessions of users who have not changed for `LAG_S`:
they are right again from the first comparison on after which no other finds a difference. In the end all are
compared.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import trio

from benchmarks.inprocess_node import InProcessNode
from benchmarks.rooms.costs import LOBBY, PREFIX, game_name, uid
from benchmarks.rooms.projectors import ProjectorProcess
from benchmarks.rooms.stream_judge import judge_streams
from loadtest.outcome import markdown
from loadtest.redis_sentinel import SentinelSetup
from loadtest.room_members import Members, stored_members
from loadtest.servers import LocalRedis
from presence import protocol
from presence.core.registry import Session
from presence.store.keys import Keys
from presence.store.redis_client import RedisError

BEFORE_S: Final = 4.0
AFTER_S: Final = 12.0
SAMPLE_S: Final = 0.25
LAG_S: Final = 1.0  # a change that is older must be in rooms
STEP_S: Final = 0.02
REST_TIMEOUT_S: Final = 60.0
IDLE_TIMEOUT_S: Final = 600.0  # nobody falls silent
HEAD: Final = (
    "fault | events a second | right again after, s | members | entries in the stream of rooms | wrong"
)


@dataclass
class RoomFaultFigures:
    """What a fault has done.

    Attributes:
        right_after_s: from the fault until members were right, under load.
        broken: what was wrong in the end, or in the stream of rooms.
    """

    name: str
    rate: float
    right_after_s: float = 0.0
    members: int = 0
    entries: int = 0
    broken: list[str] = field(default_factory=list)

    def row(self) -> list[str]:
        return [
            self.name,
            f"{self.rate:,.0f}",
            f"{self.right_after_s:.1f}",
            f"{self.members:,}",
            f"{self.entries:,}",
            f"{len(self.broken):,}",
        ]


class RoomGoers:
    """The users of a node, who change at random.

    Attributes:
        rooms: of each user who is online.
    """

    def __init__(self, node: Any, users: int) -> None:
        self._node = node
        self._users = users
        self._random = random.Random(3)
        self._sessions: dict[str, Session] = {}
        self._changed_at: dict[str, float] = {}
        self.rooms: dict[str, tuple[str, ...]] = {}

    def change_some(self, count: int) -> None:
        for _ in range(count):
            self._change(uid(self._randrange(self._users)))

    def _randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def _change(self, user: str) -> None:
        """Log a user in or out, or have them move."""
        self._changed_at[user] = time.monotonic()
        game = game_name(self._randrange(self._users), self._users)
        rooms = (game, LOBBY) if self._randrange(4) else (game,)
        session = self._sessions.get(user)
        if session is None:
            self._sessions[user], self.rooms[user] = self._node.begin_session(user, rooms), rooms
        elif self._randrange(2):
            self._node.engine.received(session, protocol.encode(protocol.logout()))
            del self._sessions[user], self.rooms[user]
        else:
            self._node.engine.received(session, protocol.encode(protocol.update(rooms=rooms)))
            self.rooms[user] = rooms

    def wrong(self, found: Members, before: float) -> int:
        """Return how many users, of those who have not changed since a moment, are not where they are."""
        places: dict[str, set[str]] = {}
        for room, members in found.items():
            for user in members:
                places.setdefault(user, set()).add(room)
        return sum(
            places.get(user, set()) != set(self.rooms.get(user, ()))
            for user, at in self._changed_at.items()
            if at < before
        )


async def _play(
    name: str,
    url: str,
    client: Callable[[], Any],
    inject: Callable[[], None],
    users: int,
    shards: int,
    rate: float,
) -> RoomFaultFigures:
    keys, found = Keys(PREFIX, shards), RoomFaultFigures(name, rate)
    node: Any = InProcessNode(url, keys, users, IDLE_TIMEOUT_S, rooms="open")
    await node.start()
    crowd = RoomGoers(node, users)
    is_over = trio.Event()

    async def change() -> None:
        began, done = time.monotonic(), 0
        while not is_over.is_set():
            due = round(rate * (time.monotonic() - began))
            crowd.change_some(due - done)
            done = due
            await trio.sleep(STEP_S)

    def wrong_users() -> int | None:
        before = time.monotonic() - LAG_S
        try:
            return crowd.wrong(stored_members(lambda _key: client(), keys), before)
        except (RedisError, LookupError):
            return None

    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.relay.run)
        nursery.start_soon(node.cluster.run)
        nursery.start_soon(change)
        await trio.sleep(BEFORE_S)
        if wrong_users():
            found.broken.append("members were wrong before the fault")
        began = time.monotonic()
        await trio.to_thread.run_sync(inject)
        injected = time.monotonic()
        right_at = None
        while time.monotonic() < injected + AFTER_S:
            await trio.sleep(SAMPLE_S)
            right_at = (right_at or time.monotonic()) if wrong_users() == 0 else None
        is_over.set()
        if right_at is None:
            found.broken.append(f"members were wrong for {AFTER_S:g} s")
        found.right_after_s = (right_at or time.monotonic()) - began
        await node.settled()
        give_up = time.monotonic() + REST_TIMEOUT_S
        while (left := _differences(client(), keys, crowd)) and time.monotonic() < give_up:  # noqa: ASYNC110 - Redis sends no event
            await trio.sleep(SAMPLE_S)
        found.broken += [f"{left:,} rooms have other members than the sessions say"] if left else []
        nursery.cancel_scope.cancel()
    found.members = sum(map(len, crowd.rooms.values()))
    verdict = judge_streams(client(), keys)
    found.entries = verdict.entries
    found.broken += verdict.broken
    return found


def _differences(client: Any, keys: Keys, crowd: RoomGoers) -> int:
    wanted: dict[str, set[str]] = {}
    for user, rooms in crowd.rooms.items():
        for room in rooms:
            wanted.setdefault(room, set()).add(user)
    found = stored_members(lambda _key: client, keys)
    return sum(wanted.get(room, set()) != {*found.get(room, ())} for room in {*wanted, *found})


@contextmanager
def _two_projectors(url: str, python: str) -> Iterator[list[ProjectorProcess]]:
    """Run two projectors, of which the first is active."""
    with ExitStack() as stack:
        yield [stack.enter_context(ProjectorProcess(url, python=python)) for _ in range(2)]


def _take_over(setup: SentinelSetup) -> None:
    former = setup.primary
    former.kill()
    setup.wait_until_replaced(former)


def play_faults(python: str, users: int, shards: int, rate: float) -> list[RoomFaultFigures]:
    found = []
    for name in ("projector killed", "all data deleted"):
        with LocalRedis() as redis:
            redis.client.hset(f"{PREFIX}:meta", mapping={"version": "2", "shards": shards})
            with _two_projectors(redis.url, python) as projectors:
                inject: Callable[[], None] = {
                    "projector killed": projectors[0].kill,
                    "all data deleted": redis.client.flushall,
                }[name]
                play = partial(_play, name, redis.url, lambda: redis.client, inject, users, shards, rate)
                found.append(trio.run(play))
    with SentinelSetup() as setup:
        setup.primary.client.hset(f"{PREFIX}:meta", mapping={"version": "2", "shards": shards})
        with _two_projectors(setup.url, python):
            play = partial(
                _play,
                "Redis killed, a replica takes over",
                setup.url,
                lambda: setup.primary.client,
                partial(_take_over, setup),
                users,
                shards,
                rate,
            )
            found.append(trio.run(play))
    return found


def fault_table(found: list[RoomFaultFigures]) -> str:
    return markdown(HEAD, [each.row() for each in found])
