"""What tests of commands share."""

from collections.abc import Iterator

import pytest

from presence.embedded import EmbeddedRedis
from presence.store.client import Redis, open_client


@pytest.fixture
def client(redis_server: EmbeddedRedis) -> Iterator[Redis]:
    with open_client(redis_server.url) as client:
        yield client
