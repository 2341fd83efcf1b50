"""Fixtures that many tests share. Every server a test needs is started by the test."""

from collections.abc import Iterator

import pytest

from presence.embedded import EmbeddedRedis, embedded_redis


@pytest.fixture
def redis_server() -> Iterator[EmbeddedRedis]:
    """A real, empty Valkey (or Redis) of this test's own; `.url` connects to it."""
    with embedded_redis() as server:
        yield server
