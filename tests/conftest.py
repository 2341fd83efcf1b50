"""Fixtures that many tests share. Every server a test needs is started by the test."""

import logging
import os
from collections.abc import Iterator

import pytest
import structlog

from presence.embedded import EmbeddedRedis, embedded_redis


@pytest.fixture
def redis_server() -> Iterator[EmbeddedRedis]:
    """A real, empty Valkey (or Redis) of this test's own; `.url` connects to it."""
    with embedded_redis() as server:
        yield server


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings from outside, and no logging set up by a command once the test is over."""
    for name in [name for name in os.environ if name.startswith("PRESENCE_")]:
        monkeypatch.delenv(name)
    level = logging.root.level
    yield
    structlog.reset_defaults()
    logging.root.setLevel(level)
    for handler in [h for h in logging.root.handlers if type(h).__module__ == "presence.logs"]:
        logging.root.removeHandler(handler)
