"""The full tier: real processes, real time, faults, clusters, browsers, other languages."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.redis_cluster import Cluster

FOLDER = Path(__file__).parent
TIME_LIMIT_S = 180

settings.load_profile("system")  # over that of the fast tier, which tests/conftest.py has loaded


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give these tests more time than those of the fast tier have."""
    for item in items:
        if FOLDER in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIME_LIMIT_S))


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def redis_cluster(shared_cluster: Cluster) -> Cluster:
    """Three empty primaries; tests may move their slots, and stop none of them."""
    for member in shared_cluster.members:
        member.call("FLUSHALL")
    return shared_cluster
