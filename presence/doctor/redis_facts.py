"""What is so in Redis, gathered by questions alone: nothing is written, and nobody waits for long.

What this user may not ask is `Unknown`, with what Redis says about it, and so is what comes after a lost
connection. Rights are looked at as a server does when it starts, see `presence.store.privileges`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from presence.common.errors import StoreError, StoreUnavailable
from presence.common.redis_url import redacted
from presence.config.settings import Settings
from presence.doctor.results import Unknown
from presence.store import privileges
from presence.store.client import Redis, RedisError
from presence.store.keys import Keys
from presence.store.nodes import NodeState, read_nodes
from presence.store.shard_clients import ShardClients

PINGS: Final = 9
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisServer:
    """One server that has keys.

    Attributes:
        name: where it is.
        info: what it tells of itself.
        pings_ms: how long it took to answer nothing.
    """

    name: str
    info: Mapping[str, Any] | Unknown
    pings_ms: Sequence[float]


@dataclass(frozen=True, slots=True)
class Slots:
    """Some slots of a cluster, one behind the other, and how many replicas their primary has."""

    first: int
    last: int
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisFacts:
    """What is so in Redis.

    Attributes:
        url: where it is, without passwords.
        is_cluster: whether a Redis Cluster is there.
        failure: why it cannot be asked; "" if it can. Then there is nothing else.
        servers: those that have keys.
        slots: of a cluster.
        missing: what a server may not do, in words that fix it; "" if it may.
        too_much: what else the user may do.
        no_events: the command that lets the live page show events; "" if it may.
        data: version and number of shards, as written; None each where nobody wrote.
        nodes: the table of leases.
    """

    url: str
    is_cluster: bool
    failure: str
    servers: Sequence[RedisServer] = ()
    slots: Sequence[Slots] | Unknown = ()
    missing: str | Unknown = ""
    too_much: Sequence[str] = ()
    no_events: str = ""
    data: tuple[str | None, str | None] | Unknown = (None, None)
    nodes: Sequence[NodeState] | Unknown = ()


def gather(settings: Settings, redis_url: str) -> RedisFacts:
    """Ask Redis."""
    url = redacted(redis_url)
    with ShardClients(redis_url) as access:
        try:
            servers = [_server(client) for client in access.primaries()]
        except (RedisError, OSError) as error:
            return RedisFacts(url=url, is_cluster=access.is_cluster, failure=_said(error))
        keys = Keys(settings.prefix, settings.shard_count, settings.database)
        missing, rights = _rights(settings, redis_url, keys)
        return RedisFacts(
            url=url,
            is_cluster=access.is_cluster,
            failure="",
            servers=servers,
            slots=_asked(lambda: _slots(access)) if access.is_cluster else (),
            missing=missing,
            too_much=rights.too_much,
            no_events="" if settings.no_admin else rights.no_events,
            data=_asked(lambda: _data(access, keys)),
            nodes=_asked(lambda: read_nodes(access, keys)),
        )


def _asked(ask: Callable[[], T]) -> T | Unknown:
    try:
        return ask()
    except (RedisError, StoreError, StoreUnavailable, OSError, ValueError) as error:
        return Unknown(_said(error))


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _server(client: Redis) -> RedisServer:
    """Ask one server.

    Raises:
        RedisError: it does not even answer a ping.
    """
    pings = []
    for _ in range(PINGS):
        begun = time.perf_counter()
        client.ping()
        pings.append((time.perf_counter() - begun) * 1000)
    where = client.connection_pool.connection_kwargs
    name = str(where.get("path") or f"{where.get('host', 'localhost')}:{where.get('port', 6379)}")
    return RedisServer(name=name, info=_asked(client.info), pings_ms=pings)


def _slots(access: ShardClients) -> list[Slots]:
    rows: Any = access.primaries()[0].execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]  # redis-py's
    return [Slots(int(row[0]), int(row[1]), len(row) - 3) for row in rows]


def _rights(settings: Settings, redis_url: str, keys: Keys) -> tuple[str | Unknown, privileges.Rights]:
    try:
        return "", privileges.look(redis_url, keys, followups=settings.followups is not None)
    except privileges.MissingRight as error:
        return str(error), privileges.Rights([], "")
    except (StoreError, StoreUnavailable) as error:
        return Unknown(_said(error)), privileges.Rights([], "")


def _data(access: ShardClients, keys: Keys) -> tuple[str | None, str | None]:
    version, shards = access.at(keys.meta).hmget(keys.meta, "version", "shards")
    return _text_or_none(version), _text_or_none(shards)


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
