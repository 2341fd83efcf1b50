"""The channels of watched users on a Redis Cluster whose slots move."""

import pytest

from presence.common.errors import StoreUnavailable
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from tests.store.driving import Hand, login
from tests.store.test_watch_connection import entries
from tests.support.redis_cluster import Cluster
from tests.support.shard_channel import ShardChannel


async def test_a_shard_that_has_moved_is_heard_where_it_is(redis_cluster: Cluster) -> None:
    keys = Keys(shards=1)
    store = RedisStore(redis_cluster.url, Shape(keys, maxlen=1000, seen_retention_ms=10**13))
    channel = ShardChannel(redis_cluster.url, keys)
    node = Hand(store, "node")
    node.open()
    await channel.open()
    await channel.subscribe("ann")
    await channel.check()
    source = redis_cluster.primary_of(keys.events(0))
    target = next(each for each in redis_cluster.members if each is not source)
    redis_cluster.move(keys.events(0), target).run()
    with pytest.raises(StoreUnavailable):
        await channel.check()
    channel.close()
    await channel.open()
    await channel.subscribe("ann")
    store.check_meta()
    store.apply([node.batch([], node.n + 1)])  # finds out where to go
    node.open(2)
    node.apply(login("ann", "s1"))
    assert entries(await channel.hear(1)) == [("ann", "online")]
    channel.close()
    store.close()
