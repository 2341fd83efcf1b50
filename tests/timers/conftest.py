"""A Valkey for each module, empty for each test, for timers in Redis."""

from collections.abc import Iterator

import pytest

from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import Redis, open_client
from presence.store.script_runner import Scripting


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    server = EmbeddedRedis()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def scripting(server: EmbeddedRedis) -> Iterator[Scripting]:
    scripting = Scripting(server.url)
    yield scripting
    scripting.close()


@pytest.fixture
def client(server: EmbeddedRedis) -> Iterator[Redis]:
    with open_client(server.url) as client:
        client.flushall()
        yield client
