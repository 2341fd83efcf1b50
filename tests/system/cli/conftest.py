"""The fixtures of tests/cli."""

from tests.cli.conftest import client, hand, redis_server, shared_redis

__all__ = ["client", "hand", "redis_server", "shared_redis"]
