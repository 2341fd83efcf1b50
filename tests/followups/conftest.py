"""What the tests of follow-ups share: one Valkey a module, emptied for each test."""

from collections.abc import Iterator

import pytest

from presence.config.followup_rules import Rule
from presence.store.embedded import EmbeddedRedis, embedded_redis
from presence.store.redis_client import Redis, open_client
from tests.followups.shards import Shard


@pytest.fixture(scope="module")
def module_redis() -> Iterator[EmbeddedRedis]:
    with embedded_redis() as server:
        yield server


@pytest.fixture
def url(module_redis: EmbeddedRedis) -> str:
    with open_client(module_redis.url) as client:
        client.flushall()
    return module_redis.url


@pytest.fixture
def client(url: str) -> Iterator[Redis]:
    with open_client(url) as client:
        yield client


@pytest.fixture
def shard(client: Redis, url: str) -> Shard:
    """A shard that the scheduler has started on, with one rule: a minute after any offline event."""
    shard = Shard(client, url, [Rule("mail", 60.0, payload="template")])
    shard.run_scheduler()
    return shard
