"""What the tests of rooms share: one Valkey a module, emptied for each test, and worlds on it."""

from collections.abc import Iterator

import pytest

from presence.store.embedded import EmbeddedRedis, embedded_redis
from presence.store.redis_client import Redis, open_client
from tests.rooms.world import World


@pytest.fixture(scope="module")
def module_redis() -> Iterator[EmbeddedRedis]:
    with embedded_redis() as server:
        yield server


@pytest.fixture
def client(module_redis: EmbeddedRedis) -> Iterator[Redis]:
    with open_client(module_redis.url) as client:
        client.flushall()
        yield client


@pytest.fixture(params=[1, 4])
def world(client: Redis, module_redis: EmbeddedRedis, request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(client, module_redis.url, request.param)
    yield world
    for projector in world.projectors:
        projector.close()
