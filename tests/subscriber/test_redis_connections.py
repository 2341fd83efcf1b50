"""Connections of subscribers: a closed one, and polling where no read can wait."""

from types import SimpleNamespace
from typing import cast

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from presence.store.shard_clients import ShardClients
from presence.subscriber.redis_connections import PollInterval, RedisConnections


def test_a_call_while_another_thread_closes_the_connection_fails_as_closed() -> None:
    link = RedisConnections("redis://127.0.0.1:1")
    with pytest.raises(TypeError), link.borrow():
        raise TypeError

    def read() -> None:
        with link.borrow():
            link.close()
            raise TypeError  # like redis-py with a socket that is None by now

    with pytest.raises(RedisConnectionError, match="closed"):
        read()


def test_polling_lasts_as_long_as_given_or_until_something_comes() -> None:
    pauses_s: list[float] = []
    clients = cast(ShardClients, SimpleNamespace(pause=pauses_s.append))
    interval = PollInterval()
    assert interval.wait(0.5, clients, list[str]) == []
    assert sum(pauses_s) == pytest.approx(0.5)
    pauses_s.clear()
    assert interval.wait(0.5, clients, lambda: ["event"]) == ["event"]
    assert len(pauses_s) == 1
