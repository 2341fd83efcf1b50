"""Data of version 1 in a Redis Cluster."""

from contextlib import closing

from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from presence.store.shard_clients import ShardClients
from tests.store.driving import online_sessions, owned, write_former_data
from tests.support.redis_cluster import Cluster

KEYS = Keys(shards=2)


def test_the_shards_of_a_cluster_are_converted(redis_cluster: Cluster) -> None:
    store = RedisStore(redis_cluster.url, Shape(KEYS, maxlen=1000, seen_retention_ms=10**13))
    with ShardClients(redis_cluster.url) as clients, closing(store):
        write_former_data(clients.at)
        store.check_meta(range(KEYS.shards))
        for shard in range(KEYS.shards):
            client = clients.at(KEYS.events(shard))
            assert client.hget(KEYS.shard_meta(shard), "version") == b"2"
            found = owned(client, "node-a", shard) | owned(client, "node-b", shard)
            assert found == online_sessions(client, shard)
            assert len(found) == 6
