"""Connections to Redis whose descriptor is above 1,024, which is more than select(2) can take."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from presence.outbox.replies import NodeNotice, NodeNoticeKind
from presence.store.control_channel import ControlChannel
from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.redis_client import open_client
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from presence.subscriber import Online, subscribe_sync
from tests.store.driving import Hand, login
from tests.subscriber.streams import Streams

KEYS = Keys()
OPEN = 1100
KICK = '{"type": "kicked", "uid": "u", "device": "", "session": "s", "by": "", "return_allowed": false}'


@pytest.fixture(autouse=True)
def _many_open(redis_server: EmbeddedRedis) -> Iterator[None]:
    """No descriptor below 1,100 is free; all are closed again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    null = os.open(os.devnull, os.O_RDONLY)
    opened = [null, *(os.dup(null) for _ in range(OPEN))]
    assert opened[-1] > 1024
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def store(url: str) -> None:
    with closing(RedisStore(url, Shape(KEYS, maxlen=1000, seen_retention_ms=10**13))) as store:
        store.check_meta()
        hand = Hand(store, "a")
        hand.open()
        assert hand.apply(login("u", "s")).last_id


def control_channel(url: str) -> None:
    with closing(ControlChannel(url, KEYS)) as channel, open_client(url) as client:
        channel.subscribe("a")
        client.publish(KEYS.control_channel("a"), KICK)
        assert channel.next() == [NodeNotice(NodeNoticeKind.KICKED, "u", "", "s")]


def subscriber(url: str) -> None:
    with open_client(url) as client:
        Streams(client).write("u")
    with subscribe_sync(url, after="0") as events:
        assert isinstance(next(events), Online)
        assert events.poll() is None  # after a read that has blocked


@pytest.mark.parametrize("use", [store, control_channel, subscriber])
def test_a_connection_with_a_descriptor_above_1024_works(
    redis_server: EmbeddedRedis, use: Callable[[str], None]
) -> None:
    use(redis_server.url)
