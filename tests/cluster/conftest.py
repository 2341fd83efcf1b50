"""What tests of the edges on a Redis Cluster share."""

from collections.abc import Iterator

import pytest

from loadtest.redis_cluster import Cluster
from presence.store.access import Access
from presence.subscriber import follower, group
from tests.subscriber.streams import Streams

SHARDS = 16


@pytest.fixture(autouse=True)
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a wait in which nothing comes end soon."""
    monkeypatch.setattr(follower, "BLOCK_MS", 50)
    monkeypatch.setattr(group, "BLOCK_MS", 50)


@pytest.fixture
def url(redis_cluster: Cluster) -> str:
    return redis_cluster.url


@pytest.fixture
def access(url: str) -> Iterator[Access]:
    with Access(url) as access:
        yield access


@pytest.fixture
def streams(access: Access) -> Streams:
    return Streams(access, SHARDS)
