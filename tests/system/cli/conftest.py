"""What the room of the same name in the fast tier shares."""

from tests.cli.conftest import client, hand, redis_server, shared_redis

__all__ = ["client", "hand", "redis_server", "shared_redis"]
