"""Fixtures for the tests of commands."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from presence.cli.main import main
from presence.store.embedded import EmbeddedRedis, embedded_redis
from presence.store.keys import Keys
from presence.store.redis_client import Redis, open_client
from presence.store.redis_store import RedisLeaseTable, RedisStore
from presence.store.script_arguments import Shape
from tests.store.driving import Hand


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[EmbeddedRedis]:
    with embedded_redis() as server:
        yield server


@pytest.fixture
def redis_server(shared_redis: EmbeddedRedis) -> EmbeddedRedis:
    """An empty Valkey; commands do not stop it, so one serves all tests."""
    with open_client(shared_redis.url) as client:
        client.flushall()
    return shared_redis


@pytest.fixture
def client(redis_server: EmbeddedRedis) -> Iterator[Redis]:
    with open_client(redis_server.url) as client:
        yield client


class Result(NamedTuple):
    status: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def command(redis_server: EmbeddedRedis, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command on the test's Redis."""

    def run(*words: str) -> Result:
        status = main([*words, "--redis", redis_server.url])
        return Result(status, *capsys.readouterr())

    return run


@pytest.fixture
def hand(redis_server: EmbeddedRedis) -> Iterator[Hand]:
    """A live node that sends what the test says."""
    store = RedisStore(redis_server.url, Shape(Keys(), maxlen=10**6, seen_retention_ms=10**13))
    table = RedisLeaseTable(redis_server.url, Keys(), lease_s=60)
    table.renew("n1", 1, '{"version": "0.1.0"}', [])
    hand = Hand(store, "n1")
    hand.open()
    yield hand
    store.close()
    table.close()
