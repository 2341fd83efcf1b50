"""Fixtures of the cluster tests: a cluster with a dead node, and virtual time."""

import pytest
from trio.testing import MockClock

from tests.cluster.dying_cluster import (
    Redis,
)


@pytest.fixture
def redis() -> Redis:
    return Redis()


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)
