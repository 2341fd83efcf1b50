"""Timers on a server for tests, and the passing of their time."""

import time
from typing import Any

import msgpack

from presence.store.keys import Keys
from presence.store.redis_client import Redis
from presence.store.script_runner import Scripting
from presence.timers.interface import Due
from presence.timers.kinds import DelayQueue, RingTimer
from presence.timers.shared_timer import Leasing, SharedTimer

KINDS = ("queue", "ring")
SLOTS = 512  # that one call reads
TICK_S = 0.02
LAP_S = SLOTS * TICK_S
TIMEOUT_S = 5.0
BASE = Keys().timer("test")


def a_timer(scripting: Scripting, kind: str, leasing: Leasing | None = None, **more: Any) -> SharedTimer:
    if kind == "queue":
        return DelayQueue(scripting, BASE, leasing, **more)
    return RingTimer(scripting, BASE, leasing, slots=SLOTS, tick_s=TICK_S, **more)


def wait_for(timer: SharedTimer, count: int = 1, limit: int = 100) -> list[Due]:
    """Claim until that many events are due."""
    deadline, found = time.monotonic() + TIMEOUT_S, list[Due]()
    while len(found) < count and time.monotonic() < deadline:
        found += timer.due(limit)
        time.sleep(0.001)
    return found


def let_pass(client: Redis, laps: int = 1) -> None:
    """Let laps of the ring pass: move everything that a timer keeps into the past."""
    ms = round(laps * LAP_S * 1000)
    work: Any = client.hgetall(f"{BASE}:work")
    for event_id, packed in work.items():
        due_ms, *rest = msgpack.unpackb(packed, raw=True)
        entry = msgpack.packb([due_ms - ms, *rest], use_bin_type=False)
        client.hset(f"{BASE}:work", event_id, entry)
    for key in (f"{BASE}:due", f"{BASE}:leased"):
        scored: Any = client.zrange(key, 0, -1, withscores=True)
        if scored:
            client.zadd(key, {member: score - ms for member, score in scored})
    for key in slots(client):
        laps_of: Any = client.zrange(key, 0, -1, withscores=True)
        client.zadd(key, {member: lap - laps for member, lap in laps_of})
    if client.exists(f"{BASE}:ring"):
        client.hincrby(f"{BASE}:ring", "hand", -laps * SLOTS)


def slots(client: Redis) -> list[str]:
    """Return the slots of a ring that are not empty."""
    names: Any = client.keys(f"{BASE}:slot:*")
    return [name.decode() for name in names]


def places(client: Redis) -> dict[str, str]:
    """Return where each event is: waiting, leased or dead.

    Raises:
        AssertionError: an event is in two places.
    """
    found: dict[str, str] = {}
    waiting = [f"{BASE}:due"] if client.type(f"{BASE}:due") == b"zset" else slots(client)
    for key in (*waiting, f"{BASE}:leased", f"{BASE}:dead"):
        members: Any = client.zrange(key, 0, -1)
        for member in members:
            assert member.decode() not in found, member
            found[member.decode()] = "waiting" if key in waiting else key.rpartition(":")[2]
    return found
