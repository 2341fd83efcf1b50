"""One way to open a connection to Redis, for the server, the readers and the commands alike."""

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

# For the readers, so that redis-py is imported below `presence.store` only.
Redis = redis.Redis
RedisError = redis.RedisError

CONNECT_TIMEOUT_S = 2.0  # a LAN answers in milliseconds; several attempts must fit into 10 s at start
CALL_TIMEOUT_S = 2.0  # far above any script of ours, far below what an outage may delay


def open_client(
    url: str,
    *,
    call_timeout_s: float | None = CALL_TIMEOUT_S,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    **connection: Any,
) -> "redis.Redis":
    """Return a redis-py client for `url`; nothing is sent yet.

    Retries are off: redis-py would replay a whole pipeline, and what may be sent again is ours to decide.
    Answers are bytes.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        call_timeout_s: how long one call may wait for its answer; a blocking read needs more or None.
        connect_timeout_s: how long connecting may take.
        connection: further arguments of redis-py's class for that kind of URL.

    Raises:
        ValueError: the URL's scheme or form is not known.
    """
    return redis.Redis.from_url(
        url,
        socket_timeout=call_timeout_s,
        socket_connect_timeout=connect_timeout_s,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
        protocol=2,
        decode_responses=False,
        **connection,
    )


def forget_prefix(url: str, prefix: str) -> int:
    """Delete every key that begins with `prefix` and a colon; return how many there were.

    Raises:
        RedisError: Redis cannot be reached.
    """
    with open_client(url) as client:
        names = list(client.scan_iter(match=f"{prefix}:*", count=1000))
        for start in range(0, len(names), 1000):
            client.unlink(*names[start : start + 1000])
        return len(names)
