"""Clients and calls for all shards, on one Redis and on a cluster."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.redis_client import RedisError
from presence.store.shard_clients import ShardClients, forget_prefix
from tests.support.redis_cluster import Cluster

KEYS = Keys(shards=16)
SHARDS = range(KEYS.shards)


@pytest.fixture
def access(redis_cluster: Cluster) -> Iterator[ShardClients]:
    with ShardClients(redis_cluster.url) as access:
        yield access


def fill(access: ShardClients) -> None:
    access.ask(KEYS, SHARDS, lambda pipe, shard: pipe.hset(KEYS.online(shard), str(shard), "record"))


def both(pipe: Any, shard: int) -> None:
    pipe.hlen(KEYS.online(shard))
    pipe.hgetall(KEYS.online(shard))


@pytest.mark.parametrize("is_atomic", [True, False])
def test_all_servers_answer_shard_by_shard(access: ShardClients, *, is_atomic: bool) -> None:
    fill(access)
    assert len(access.primaries()) == 3
    asked = list(reversed(SHARDS))
    answers = access.ask(KEYS, asked, both, is_atomic=is_atomic)
    assert list(answers.items()) == [(shard, [1, {b"%d" % shard: b"record"}]) for shard in asked]
    errors = access.ask(KEYS, SHARDS, lambda pipe, s: pipe.xlen(KEYS.online(s)), raise_on_error=False)
    assert all(isinstance(answer, RedisError) for (answer,) in errors.values())


def test_all_keys_of_a_prefix_are_forgotten_and_no_other(
    redis_cluster: Cluster, access: ShardClients
) -> None:
    fill(access)
    access.at("other:{1}").set("other:{1}", "kept")
    assert forget_prefix(redis_cluster.url, "presence") == 16
    assert [member.client.keys("*") for member in redis_cluster.members if member.client.dbsize()] == [
        [b"other:{1}"]
    ]


def test_closing_ends_a_call_that_waits_and_lets_no_other_begin(redis_server: EmbeddedRedis) -> None:
    access = ShardClients(redis_server.url, call_timeout_s=20)
    started = time.monotonic()
    threading.Timer(0.1, access.close).start()
    with pytest.raises(RedisError):
        access.at("list").blpop("list", timeout=10)
    assert time.monotonic() - started < 5
    with pytest.raises(RedisError, match="closed"):
        access.at("list")
