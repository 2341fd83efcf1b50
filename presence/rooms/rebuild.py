"""A rebuild of all rooms from the records of users, on demand.

It asks the projectors, which do it, and waits for them: in each shard a token in `rooms:state` is the wish.

Tests: `tests/cli/test_rooms.py`.
"""

import secrets
import time
from dataclasses import dataclass
from typing import Any, Final

from presence.store.keys import Keys
from presence.store.shard_clients import ShardClients

POLL_INTERVAL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class RebuiltRooms:
    """What a rebuild has found, over all shards."""

    users: int  # who are in rooms
    corrected: int  # members who were missing, or had another status
    removed: int  # members whose records lack the room
    seconds: float  # of the shard that took longest, for the records


def rebuild_rooms(clients: ShardClients, keys: Keys, wait_s: float) -> RebuiltRooms | None:
    """Have all rooms compared with the records, and wait; None: it was not complete in time, and goes on.

    Raises:
        RedisError: Redis does not answer.
    """
    token, give_up = secrets.token_hex(8), time.monotonic() + wait_s
    shards = range(keys.shards)

    def fill(pipe: Any, shard: int) -> None:
        pipe.hget(keys.room_sources(shard), "walk")
        names = ["walked", "rebuild", "users", "differences", "dropped", "ms"]
        pipe.hmget(keys.rooms_state(shard), names)

    former = {walked for _, (walked, *_) in clients.ask(keys, shards, fill).values()}
    clients.ask(keys, shards, lambda pipe, shard: pipe.hset(keys.rooms_state(shard), "rebuild", token))
    removed: dict[tuple[int, bytes], int] = {}  # by shard of the rooms, and by walk: each rebuild has its own
    while True:
        found = clients.ask(keys, shards, fill)
        for shard, (_, (walked, *_, dropped, _)) in found.items():
            if walked not in former:
                removed[shard, walked] = int(dropped or 0)
        if all(walk == walked and rebuild is None for walk, (walked, rebuild, *_) in found.values()):
            users, corrected, ms = (
                [int(numbers[place] or 0) for _, numbers in found.values()] for place in (2, 3, 5)
            )
            return RebuiltRooms(sum(users), sum(corrected), sum(removed.values()), max(ms) / 1000)
        if time.monotonic() >= give_up:
            return None
        clients.pause(POLL_INTERVAL_S)
