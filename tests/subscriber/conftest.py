"""Fixtures for the tests of subscribers."""

from collections.abc import Iterator

import pytest

from presence.store.embedded import EmbeddedRedis, embedded_redis
from presence.store.redis_client import Redis, open_client
from presence.subscriber import blocking, follower, group_cursor
from tests.subscriber.streams import Streams


@pytest.fixture(autouse=True)
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten reads that find nothing."""
    monkeypatch.setattr(follower, "BLOCK_MS", 50)
    monkeypatch.setattr(group_cursor, "BLOCK_MS", 50)
    monkeypatch.setattr(blocking, "BLOCK_MS", 50)


@pytest.fixture(scope="module")
def module_redis() -> Iterator[EmbeddedRedis]:
    with embedded_redis() as server:
        yield server


@pytest.fixture
def redis_server(module_redis: EmbeddedRedis) -> EmbeddedRedis:
    """The Valkey of this module, empty; no test may stop it."""
    with open_client(module_redis.url) as client:
        client.flushall()
    return module_redis


@pytest.fixture
def client(redis_server: EmbeddedRedis) -> Iterator[Redis]:
    with open_client(redis_server.url) as client:
        yield client


@pytest.fixture(params=[1, 16], ids=["S=1", "S=16"])
def streams(request: pytest.FixtureRequest, client: Redis) -> Streams:
    return Streams(client, request.param)


@pytest.fixture
def url(redis_server: EmbeddedRedis) -> str:
    return redis_server.url
