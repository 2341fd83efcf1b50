"""Servers for the store's tests: each test has its own, of the embedded binary and of PATH's redis-server."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from presence.store.keys import Keys
from presence.store.packing import Shape
from presence.store.redis_store import RedisStore
from tests.store.servers import BINARIES, Server


@pytest.fixture(params=["embedded", pytest.param("redis-server", marks=pytest.mark.needs("redis-server"))])
def binary(request: pytest.FixtureRequest) -> str:
    found = BINARIES[request.param]()
    assert found
    return found


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
