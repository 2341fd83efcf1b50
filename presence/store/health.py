"""The health of Redis, to be shown to operators; never a reason to act."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from presence.store.shard_clients import ShardClients


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisHealth:
    """The health of a Redis, or of all primaries of a cluster together; None for what it does not report."""

    status: Literal["ok", "away"]  # away: it did not answer, and all else is from before
    ping_ms: float | None = None  # response time of the slowest
    server: str | None = None  # redis or valkey
    version: str | None = None
    servers: int | None = None  # primaries
    shards: int | None = None  # of the users
    used_memory_bytes: int | None = None  # of the fullest primary, as measured by its limit if it has one
    maxmemory_bytes: int | None = None  # of that primary; None if it has no limit
    maxmemory_policy: str | None = None  # all except noeviction lose users at the limit
    aof: bool | None = None  # whether all have the append-only file enabled
    clients: int | None = None
    replicas: int | None = None  # connected to primaries
    evicted_keys: int | None = None  # since its start; more than 0 means lost data
    error: str | None = None  # if it did not answer


def read_health(clients: ShardClients, shards: int) -> RedisHealth:
    infos: list[Mapping[str, Any]] = []
    slowest_s = 0.0
    for client in clients.primaries():
        begun = time.monotonic()
        client.ping()
        slowest_s = max(slowest_s, time.monotonic() - begun)
        info: Any = client.info()
        infos.append(info)
    first = infos[0] if infos else {}
    server = "valkey" if "valkey_version" in first else "redis"
    fullest = max(infos, key=_fullness, default={})
    policies = {str(each["maxmemory_policy"]) for each in infos if "maxmemory_policy" in each}
    return RedisHealth(
        status="ok",
        ping_ms=round(slowest_s * 1000, 2),
        server=server,
        version=str(first[f"{server}_version"]) if f"{server}_version" in first else None,
        servers=len(infos),
        shards=shards,
        used_memory_bytes=_number(fullest, "used_memory"),
        maxmemory_bytes=_number(fullest, "maxmemory") or None,
        maxmemory_policy=", ".join(sorted(policies)) or None,
        aof=all(_numbers(infos, "aof_enabled")),
        clients=_sum(_numbers(infos, "connected_clients")),
        replicas=_sum(_numbers(infos, "connected_slaves")),
        evicted_keys=_sum(_numbers(infos, "evicted_keys")),
    )


def _fullness(info: Mapping[str, Any]) -> tuple[float, int]:
    """Return the share of its memory limit that a server uses, and how much that is."""
    used, limit = _number(info, "used_memory") or 0, _number(info, "maxmemory")
    return (used / limit if limit else 0.0, used)


def _number(info: Mapping[str, Any], name: str) -> int | None:
    return number if isinstance(number := info.get(name), int) else None


def _numbers(infos: Iterable[Mapping[str, Any]], name: str) -> list[int]:
    return [number for each in infos if (number := _number(each, name)) is not None]


def _sum(numbers: list[int]) -> int | None:
    return sum(numbers) if numbers else None
