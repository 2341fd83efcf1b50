"""Rooms while users change: processor time at several rates, and how late rooms are.

At each rate the load runs twice, first with the projector, then while it stands still: what Redis takes less
the second time is the cost of rooms. What both take while nothing changes is shown apart, and is no part of
it. The lag is from the id of an event, which is Redis' time when it was written, to that of the entry in the
stream of rooms, which Redis writes together with the members. So each join and leave has an entry here, which
by default only the first and the last member of a room have.
"""

import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.rooms.costs import PREFIX, WAYS, CostRun, uid
from benchmarks.rooms.load import RoomLoad
from benchmarks.rooms.projectors import ProjectorProcess
from loadtest.outcome import percentile
from loadtest.servers import LocalRedis
from loadtest.usage import redis_cpu_seconds
from presence.store.keys import Keys

STEP_S: Final = 0.01  # the changes of so long share a batch
WAY: Final = WAYS[-1]
PAGE: Final = 10_000


@dataclass(frozen=True)
class LiveCosts:
    """At one rate.

    Attributes:
        rate: events a second.
        redis_us, projector_us: for each change, beside `IdleCosts`.
        lags_ms: of the changes, sorted.
        late_s: most that the load was late.
    """

    rate: float
    changes: int
    redis_us: float
    projector_us: float
    lags_ms: list[int]
    late_s: float

    def lag_ms(self, share: float) -> float:
        return percentile(self.lags_ms, share)


@dataclass(frozen=True)
class IdleCosts:
    """Shares of a core while nothing changes: the comparison and the reads of idle shards."""

    members: int
    redis: float
    projector: float


def measure_live(
    python: str, users: int, shards: int, rates: list[float], seconds: float
) -> tuple[IdleCosts, list[LiveCosts]]:
    """Return the costs while nothing changes, and at each rate, of users in a lobby and a room of ten."""
    keys, randomly = Keys(PREFIX, shards), random.Random(2)
    moved: dict[int, int] = {}
    with LocalRedis() as redis, closing(RoomLoad(redis.url, keys)) as load:
        load.mark()
        with ProjectorProcess(redis.url, "--room-events", "all", python=python) as projector:
            run = CostRun(redis, keys, projector, load)
            run.wait_until_settled()
            for number in range(users):
                load.show(uid(number), WAY.rooms_of(number, 0, users))
            load.write(256)
            load.mark()
            run.wait_until_caught_up()

            def move() -> None:
                number = randomly.randrange(users)
                moved[number] = moved.get(number, 0) + 1
                load.show(uid(number), WAY.rooms_of(number, moved[number], users))

            redis_s, projector_s = redis_cpu_seconds(redis.client), projector.cpu_s()
            time.sleep(seconds)
            idle = IdleCosts(
                2 * users,
                (redis_cpu_seconds(redis.client) - redis_s) / seconds,
                (projector.cpu_s() - projector_s) / seconds,
            )
            found = []
            for rate in rates:
                begin_ids = {shard: _last_id(redis.client, keys, shard) for shard in range(shards)}
                changes, projector_s = load.changes, projector.cpu_s()
                with_it, late_s = _play(redis, load, move, rate, seconds)
                changes, projector_s = load.changes - changes, projector.cpu_s() - projector_s
                load.mark()
                run.wait_until_caught_up()
                lags = sorted(
                    lag for shard, id in begin_ids.items() for lag in _lags(redis.client, keys, shard, id)
                )
                with projector.paused():
                    without, _ = _play(redis, load, move, rate, seconds)
                load.mark()
                run.wait_until_caught_up()
                redis_s = with_it - without - idle.redis * seconds
                projector_s -= idle.projector * seconds
                found.append(
                    LiveCosts(
                        rate, changes, redis_s * 1e6 / changes, projector_s * 1e6 / changes, lags, late_s
                    )
                )
    return idle, found


def _play(
    redis: LocalRedis, load: RoomLoad, move: Callable[[], None], rate: float, seconds: float
) -> tuple[float, float]:
    """Let users move at a rate; return the processor time of Redis, and how late the load was at most."""
    before, began, done, late_s = redis_cpu_seconds(redis.client), time.monotonic(), 0, 0.0
    while (passed := time.monotonic() - began) < seconds:
        due = round(rate * passed)
        late_s = max(late_s, passed - done / rate - STEP_S)
        while done < due:
            move()
            done += 1
        load.write(256)
        time.sleep(STEP_S)
    return redis_cpu_seconds(redis.client) - before, late_s


def _last_id(client: Any, keys: Keys, shard: int) -> bytes:
    entries = client.xrevrange(keys.room_events(shard), count=1)
    return bytes(entries[0][0]) if entries else b"0-0"


def _lags(client: Any, keys: Keys, shard: int, after: bytes) -> list[int]:
    """Return the lags of all entries of a stream of rooms after one, in ms."""
    found = []
    while entries := client.xrange(keys.room_events(shard), b"(" + after, count=PAGE):
        for id, fields in entries:
            found.append(int(id.partition(b"-")[0]) - int(fields[b"event_id"].partition(b"-")[0]))
        after = entries[-1][0]
    return found
