"""Users explained from a Redis Cluster whose slots move."""

from presence.ops.explain import Explainer
from presence.store.keys import Keys
from tests.store.driving import NOW_MS
from tests.support.redis_cluster import Cluster


def test_a_shard_that_moved_is_found(redis_cluster: Cluster) -> None:
    keys = Keys(shards=16)
    with Explainer(redis_cluster.url, wait_s=0.1) as explainer:
        redis_cluster.primary_of(keys.meta).client.hset(keys.meta, mapping={"v": 1, "shards": 16})
        key = keys.seen(keys.shard("ann"))
        redis_cluster.primary_of(key).client.zadd(key, {"ann": NOW_MS})
        assert explainer.explain("ann")["event_missing"] == "not_kept"
        source = redis_cluster.primary_of(key)
        redis_cluster.move(key, next(each for each in redis_cluster.members if each is not source)).run()
        assert explainer.explain("ann")["event_missing"] == "not_kept"
