"""What the changes of rooms cost Redis and the projector, by the way in which users are in rooms.

For each way all users log in, and then change as they do; meanwhile the projector stands still. Then it goes
on, and has to apply all that: the processor time of both until it has, divided by the changes, is the cost in
full calls.
"""

import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.rooms.load import RoomLoad
from benchmarks.rooms.projectors import ProjectorProcess
from loadtest.room_members import stored_members
from loadtest.servers import LocalRedis, wait_for
from loadtest.usage import redis_cpu_seconds
from presence.store.keys import Keys

BATCH: Final = 64  # changes
PREFIX: Final = "presence"
CATCH_UP_TIMEOUT_S: Final = 300.0
LOBBY: Final = "lobby"
ROOM_SIZE: Final = 10


@dataclass(frozen=True)
class Movement:
    """How users are in rooms.

    Attributes:
        rooms_of: the rooms of a user, by the user's number, how often they have moved, and how many users
            there are.
    """

    name: str
    rooms_of: Callable[[int, int, int], tuple[str, ...]]


def game_name(number: int, users: int) -> str:
    """Return the name of one of the rooms of ten that so many users have; any number is that of a room."""
    return f"game-{number % max(1, users // ROOM_SIZE):05d}"


def _game(user: int, moves: int, users: int) -> str:
    return game_name(user + moves * 7919, users)


WAYS: Final = (
    Movement("all in one room", lambda user, moves, users: () if moves % 2 else (LOBBY,)),
    Movement("rooms of ten", lambda user, moves, users: (_game(user, moves, users),)),
    Movement("both", lambda user, moves, users: (LOBBY, _game(user, moves, users))),
)


@dataclass
class Spent:
    """Processor time of Redis and of the projector for some changes."""

    changes: int
    redis_s: float
    projector_s: float
    seconds: float

    @property
    def redis_us(self) -> float:
        return self.redis_s * 1e6 / self.changes

    @property
    def projector_us(self) -> float:
        return self.projector_s * 1e6 / self.changes


@dataclass
class WayCosts:
    """What one way of being in rooms costs."""

    server: str
    way: str
    users: int
    joins: Spent
    moves: Spent
    logouts: Spent
    member_bytes: float
    wrong: int  # rooms whose members are not those of the records, in the end


def uid(number: int) -> str:
    return f"user-{number:06d}"


class CostRun:
    """A Redis and a projector of one installation, and a load that it applies when it is told to."""

    def __init__(self, redis: LocalRedis, keys: Keys, projector: ProjectorProcess, load: RoomLoad) -> None:
        self._client = redis.client
        self._keys = keys
        self._projector = projector
        self._load = load

    def apply(self, write: Callable[[], None]) -> Spent:
        """Write changes while the projector stands still; return what it takes to apply them."""
        before = self._load.changes
        with self._projector.paused():
            write()
            self._load.write(BATCH)
            self._load.mark()
            redis_s, projector_s = redis_cpu_seconds(self._client), self._projector.cpu_s()
            began = time.monotonic()
        self.wait_until_caught_up()
        seconds = time.monotonic() - began
        redis_s, projector_s = (
            redis_cpu_seconds(self._client) - redis_s,
            self._projector.cpu_s() - projector_s,
        )
        return Spent(self._load.changes - before, redis_s, projector_s, seconds)

    def wait_until_caught_up(self) -> None:
        if not wait_for(lambda: self._load.is_caught_up(self._client), CATCH_UP_TIMEOUT_S, poll_s=0.01):
            raise TimeoutError("the projector does not catch up")

    def wait_until_settled(self) -> None:
        """Wait until the projector has applied and compared all: the first time it begins with a rebuild."""
        self.wait_until_caught_up()
        if not wait_for(lambda: not self._is_comparing(), CATCH_UP_TIMEOUT_S, poll_s=0.05):
            raise TimeoutError("the projector does not complete its first rebuild")

    def _is_comparing(self) -> bool:
        client, keys = self._client, self._keys
        for shard in range(keys.shards):
            rebuild, walked = client.hmget(keys.rooms_state(shard), "rebuild", "walked")
            if rebuild is not None or walked != client.hget(keys.room_sources(shard), "walk"):
                return True
        return False

    def room_bytes(self) -> int:
        """Return the bytes that the members of rooms take, with the index of rooms."""
        client, keys, total = self._client, self._keys, 0
        for shard in range(keys.shards):
            rooms = [room.decode() for room, _ in client.zscan_iter(keys.room_sizes(shard), count=1000)]
            for first in range(0, len(rooms), 1000):
                pipe = client.pipeline(transaction=False)
                for room in rooms[first : first + 1000]:
                    pipe.memory_usage(keys.room(room), samples=0)
                total += sum(pipe.execute())
            total += client.memory_usage(keys.room_sizes(shard), samples=0) or 0
        return total


def measure_way(server: str, python: str, way: Movement, users: int, shards: int, moves: float) -> WayCosts:
    """Return the costs of one way of being in rooms; `moves`: of each user."""
    keys, random_users = Keys(PREFIX, shards), random.Random(1)
    with LocalRedis() as redis, closing(RoomLoad(redis.url, keys)) as load:
        load.mark()
        with ProjectorProcess(redis.url, python=python) as projector:
            run = CostRun(redis, keys, projector, load)
            run.wait_until_settled()

            def join() -> None:
                for number in range(users):
                    load.show(uid(number), way.rooms_of(number, 0, users))

            def move() -> None:
                moved: dict[int, int] = {}
                for _ in range(round(users * moves)):
                    number = random_users.randrange(users)
                    moved[number] = moved.get(number, 0) + 1
                    load.show(uid(number), way.rooms_of(number, moved[number], users))

            def leave() -> None:
                for number in range(users):
                    load.end(uid(number))

            joins = run.apply(join)
            members = sum(map(len, load.expected().values()))
            member_bytes = run.room_bytes() / members
            moves_cost = run.apply(move)
            wrong = _differing(redis.client, load)
            logouts = run.apply(leave)
            wrong += _differing(redis.client, load)
    return WayCosts(server, way.name, users, joins, moves_cost, logouts, member_bytes, wrong)


def _differing(client: Any, load: RoomLoad) -> int:
    wanted, found = load.expected(), stored_members(lambda _key: client, load.keys)
    return sum(wanted.get(room) != found.get(room) for room in {*wanted, *found})
