"""The HTTP interface beside a Redis Cluster."""

import json

from loadtest.redis_cluster import Cluster
from presence.store.access import Access
from tests.admin.asking import operators, until
from tests.subscriber.streams import Streams

USERS = [f"u{number}" for number in range(60)]


async def test_events_of_all_primaries_and_how_they_are(redis_cluster: Cluster) -> None:
    with Access(redis_cluster.url) as access:
        streams = Streams(access, 16)
        streams.write(*USERS[:20])
        async with operators(redis_cluster.url) as running:
            viewer = running.look("/v1/events?from=0")
            seen = [await viewer.message() for _ in range(20)]
            viewer.leave()
            streams.write(*USERS[20:])
            viewer = running.look("/v1/events", last_event_id=seen[-1]["id"])
            seen += [await viewer.message() for _ in range(40)]
            assert sorted(json.loads(each["data"])["uid"] for each in seen) == sorted(USERS)
            viewer.leave()
            assert (await running.ask("/v1/online")).json()["count"] == 0
            await until(lambda: running.app.sources.sampler.cluster.redis is not None)
            redis = running.app.sources.sampler.cluster.redis
            assert redis is not None
            assert (redis.status, redis.servers, redis.shards) == ("ok", 3, 16)
