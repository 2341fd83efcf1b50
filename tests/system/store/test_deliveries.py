"""Letters through a Redis Cluster."""

import json
from contextlib import closing

from presence import protocol
from presence.messaging.message_bus import RouteResult
from presence.store.control_channel import ControlChannel
from presence.store.keys import Keys
from presence.store.redis_store import Deliveries
from presence.store.script_arguments import Shape
from tests.store.test_deliveries import delivered, message
from tests.support.redis_cluster import Cluster


def test_in_a_cluster_letters_go_by_way_of_every_shard(redis_cluster: Cluster) -> None:
    keys = Keys(shards=16)
    shape = Shape(keys, maxlen=1000, seen_retention_ms=10**13)
    uids = [next(f"u{n}" for n in range(1000) if keys.shard(f"u{n}") == shard) for shard in range(16)]
    session = {"session": "s", "node": "b", "generation": 1}
    session |= dict.fromkeys(("login_ms", "arrived_ms", "idle_timeout_ms"), 1)
    record = {"id": "1-0", "since_ms": 1, "sessions": {"": session}}
    for uid in uids:
        key = keys.online(keys.shard(uid))
        redis_cluster.primary_of(key).client.hset(key, uid, json.dumps(record))
    channel = ControlChannel(redis_cluster.url, keys)
    with closing(Deliveries(redis_cluster.url, shape)) as post, closing(channel):
        channel.subscribe("b")
        letters = [message(uid, number) for number in range(3) for uid in uids]
        assert post.deliver("a", letters, {}) == [RouteResult(1, ("",))] * 48
        got: dict[str, list[int]] = {uid: [] for uid in uids}
        while sum(map(len, got.values())) < 48:
            for each in delivered(channel):
                got[each.uid].append(protocol.decode(each.frame[4:]).payload["body"])
        assert list(got.values()) == [[0, 1, 2]] * 16
