"""Servers for the store's tests: each test has its own, but for those that share one a module.

It is the embedded Valkey; the full tier runs all of them on Redis 7, the nightly one on Redis 6.2, too.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.servers import redis_binary
from presence.outbox.replies import ReplyStatus
from presence.store.embedded import EmbeddedRedis, embedded_redis
from presence.store.keys import Keys
from presence.store.redis_client import Redis, open_client
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from tests.store.driving import Hand
from tests.store.servers import Server


@pytest.fixture
def binary() -> str:
    return redis_binary()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory whose path is short enough for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="ps-") as name:
        yield Path(name)


@pytest.fixture
def server(binary: str, folder: Path) -> Iterator[Server]:
    server = Server(binary, folder)
    yield server
    server.close()


@pytest.fixture(scope="module")
def module_server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="ps-") as name:
        server = Server(redis_binary(), Path(name))
        yield server
        server.close()


@pytest.fixture
def emptied_server(module_server: Server) -> Server:
    """The server of a module whose tests neither stop nor configure it, empty."""
    module_server.client.flushall()
    return module_server


@pytest.fixture(scope="module")
def shared_redis() -> Iterator[EmbeddedRedis]:
    with embedded_redis() as server:
        yield server


@pytest.fixture
def client(shared_redis: EmbeddedRedis) -> Iterator[Redis]:
    """A connection to the server that a module's tests share, empty."""
    with open_client(shared_redis.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def durable_server(binary: str, folder: Path) -> Iterator[Server]:
    server = Server(binary, folder, keep=True)
    yield server
    server.close()


@pytest.fixture
def store(server: Server) -> Iterator[RedisStore]:
    store = RedisStore(server.url, Shape(Keys(), maxlen=1_000_000, seen_retention_ms=10**13))
    yield store
    store.close()


@pytest.fixture
def a(store: RedisStore) -> Hand:
    """A node that has opened its first generation."""
    hand = Hand(store, "a")
    assert hand.open().status is ReplyStatus.OK
    return hand


@pytest.fixture
def b(store: RedisStore) -> Hand:
    """A second such node."""
    hand = Hand(store, "b")
    assert hand.open().status is ReplyStatus.OK
    return hand
