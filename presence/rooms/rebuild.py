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
    clients.ask(keys, shards, lambda pipe, shard: pipe.hset(keys.rooms_state(shard), "rebuild", token))

    def fill(pipe: Any, shard: int) -> None:
        pipe.hget(keys.room_sources(shard), "walk")
        names = ["walked", "rebuild", "users", "differences", "dropped", "ms"]
        pipe.hmget(keys.rooms_state(shard), names)

    while True:
        found = list(clients.ask(keys, shards, fill).values())
        if all(walk == walked and rebuild is None for walk, (walked, rebuild, *_) in found):
            users, corrected, removed, ms = (
                [int(numbers[place] or 0) for _, numbers in found] for place in (2, 3, 4, 5)
            )
            return RebuiltRooms(sum(users), sum(corrected), sum(removed), max(ms) / 1000)
        if time.monotonic() >= give_up:
            return None
        clients.pause(POLL_INTERVAL_S)
