"""What tests of subscribers share."""

from collections.abc import Iterator

import pytest

from presence.embedded import EmbeddedRedis
from presence.store.client import Redis, open_client
from tests.subscriber.streams import Streams


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
