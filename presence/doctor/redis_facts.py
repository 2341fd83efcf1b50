"""Facts about Redis, collected by reading only, with short time-outs.

A fact that this user may not read is `Unknown`, with the error of Redis, as are all facts after a lost
connection. Permissions are checked as by a server when it starts, see `presence.store.privileges`.

Tests: `tests/doctor/test_redis_checks.py`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from presence.common.errors import StoreError, StoreUnavailable
from presence.common.redis_url import parse, redacted
from presence.config.settings import Settings
from presence.doctor.results import Unknown
from presence.store import privileges
from presence.store.keys import Keys
from presence.store.node_states import NodeState, read_nodes
from presence.store.redis_client import Redis, RedisError, open_sentinels
from presence.store.script_arguments import DATA_VERSION
from presence.store.sentinels import address, ask
from presence.store.shard_clients import ShardClients

PINGS: Final = 9
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisServer:
    """One server that holds keys."""

    name: str  # its address
    info: Mapping[str, Any] | Unknown  # the answer to INFO
    pings_ms: Sequence[float]  # durations of pings


@dataclass(frozen=True, slots=True)
class Slots:
    """A range of slots of a cluster, and the number of replicas of their primary."""

    first: int
    last: int
    replicas: int


@dataclass(frozen=True, slots=True)
class SentinelFacts:
    name: str  # its address
    primary: str | Unknown  # the address that it names
    quorum: str  # why the Sentinels could not replace the primary now, as it says; "" if they could


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisFacts:
    url: str  # without passwords
    is_cluster: bool
    failure: str  # why it cannot be reached; then there are no other facts; "" if it can
    servers: Sequence[RedisServer] = ()  # those that hold keys
    slots: Sequence[Slots] | Unknown = ()  # of a cluster
    sentinels: Sequence[SentinelFacts] = ()
    missing: str | Unknown = ""  # missing permissions, with the fix; "" if none
    too_much: Sequence[str] = ()  # unneeded permissions
    no_events: str = ""  # the command that permits the live page to read events; "" if it may
    # version, the highest of any shard, and number of shards; None each if there is no data
    data: tuple[str | None, str | None] | Unknown = (None, None)
    nodes: Sequence[NodeState] | Unknown = ()  # the table of leases


def gather(settings: Settings, redis_url: str) -> RedisFacts:
    url = redacted(redis_url)
    with ExitStack() as stack:
        service = parse(redis_url).service
        clients = [stack.enter_context(closing(each)) for each in open_sentinels(redis_url)]
        sentinels = [_sentinel(each, service) for each in clients]
    with ShardClients(redis_url) as access:
        try:
            servers = [_server(client) for client in access.primaries()]
        except (RedisError, OSError) as error:
            return RedisFacts(
                url=url, is_cluster=access.is_cluster, failure=_message(error), sentinels=sentinels
            )
        keys = Keys(settings.prefix, settings.shard_count, settings.database)
        missing, rights = _rights(settings, redis_url, keys)
        return RedisFacts(
            url=url,
            is_cluster=access.is_cluster,
            failure="",
            servers=servers,
            slots=_try(lambda: _slots(access)) if access.is_cluster else (),
            sentinels=sentinels,
            missing=missing,
            too_much=rights.too_much,
            no_events=rights.no_events,
            data=_try(lambda: _data(access, keys)),
            nodes=_try(lambda: read_nodes(access, keys)),
        )


def _try(ask: Callable[[], T]) -> T | Unknown:
    try:
        return ask()
    except (RedisError, StoreError, StoreUnavailable, OSError, ValueError) as error:
        return Unknown(_message(error))


def _message(error: Exception) -> str:
    return str(error) or type(error).__name__


def _server(client: Redis) -> RedisServer:
    """Collect the facts of one server.

    Raises:
        RedisError: it does not answer a ping.
    """
    pings = []
    for _ in range(PINGS):
        begun = time.perf_counter()
        client.ping()
        pings.append((time.perf_counter() - begun) * 1000)
    where = client.connection_pool.connection_kwargs
    name = str(where.get("path") or f"{where.get('host', 'localhost')}:{where.get('port', 6379)}")
    return RedisServer(name=name, info=_try(client.info), pings_ms=pings)


def _sentinel(client: Redis, service: str) -> SentinelFacts:
    named = _try(lambda: ask(client, service))
    if isinstance(named, Unknown):
        return SentinelFacts(address(client), named, "")
    if named is None:
        return SentinelFacts(address(client), Unknown(f"does not know {service}"), "")
    found = _try(lambda: client.sentinel_ckquorum(service))
    quorum = found.why if isinstance(found, Unknown) else ""
    return SentinelFacts(address(client), "{}:{}".format(*named), quorum)


def _slots(access: ShardClients) -> list[Slots]:
    rows: Any = access.primaries()[0].execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]  # redis-py's
    return [Slots(int(row[0]), int(row[1]), len(row) - 3) for row in rows]


def _rights(settings: Settings, redis_url: str, keys: Keys) -> tuple[str | Unknown, privileges.Rights]:
    try:
        return "", privileges.check_server_rights(redis_url, keys, settings)
    except privileges.MissingRight as error:
        return str(error), privileges.Rights([], "")
    except (StoreError, StoreUnavailable) as error:
        return Unknown(_message(error)), privileges.Rights([], "")


def _data(access: ShardClients, keys: Keys) -> tuple[str | None, str | None]:
    version, shards = access.at(keys.meta).hmget(keys.meta, "version", "shards")
    versions = access.ask(
        keys, range(keys.shards), lambda pipe, shard: pipe.hget(keys.shard_meta(shard), "version")
    )
    present = [_text(each) for (each,) in ((version,), *versions.values()) if each is not None]
    other = next((each for each in present if each != DATA_VERSION), DATA_VERSION if present else None)
    return other, _text_or_none(shards)


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
