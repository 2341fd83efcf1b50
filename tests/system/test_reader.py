"""The reader of presence on a Redis Cluster."""

import json
from collections.abc import Iterator

import pytest

from presence.reader import PresenceReader
from presence.store.redis_store import RedisLeaseTable
from presence.store.shard_clients import ShardClients
from tests.subscriber.test_reader import KEYS, set_lease
from tests.support.redis_cluster import Cluster


@pytest.fixture
def cluster_reader(redis_cluster: Cluster) -> Iterator[PresenceReader]:
    with PresenceReader(redis_cluster.url) as reader:
        yield reader


def put_into_cluster(cluster: Cluster, uids: list[str]) -> None:
    session = {"session": "s", "node": "n1", "login_ms": 1000}
    record = json.dumps({"id": "5-1", "since_ms": 1000, "sessions": {"": session}})
    with ShardClients(cluster.url) as access:
        access.at(KEYS.meta).hset(KEYS.meta, "shards", KEYS.shards)
        set_lease(access.at(KEYS.nodes), "n1")
        for uid in uids:
            key = KEYS.online(KEYS.shard(uid))
            access.at(key).hset(key, uid, record)


def test_a_cluster_is_read_as_one_redis_is(redis_cluster: Cluster, cluster_reader: PresenceReader) -> None:
    uids = [f"user-{n}" for n in range(200)]
    put_into_cluster(redis_cluster, uids)
    states = cluster_reader.states([*uids, "nobody"])
    assert [state["status"] for state in states.values()] == ["online"] * 200 + ["offline"]
    assert cluster_reader.count() == 200
    assert {uid for page in cluster_reader.pages(size=20) for uid in page.states} == set(uids)


def test_the_nodes_of_a_cluster_are_told(redis_cluster: Cluster, cluster_reader: PresenceReader) -> None:
    table = RedisLeaseTable(redis_cluster.url, KEYS, lease_s=10)
    table.renew("n1", 1, "{}", [])
    table.close()
    assert [(node.node, node.status) for node in cluster_reader.nodes()] == [("n1", "alive")]


def test_a_reader_finds_a_shard_that_moved(redis_cluster: Cluster, cluster_reader: PresenceReader) -> None:
    put_into_cluster(redis_cluster, ["ann"])
    assert cluster_reader.count() == 1
    key = KEYS.online(KEYS.shard("ann"))
    source = redis_cluster.primary_of(key)
    redis_cluster.move(key, next(each for each in redis_cluster.members if each is not source)).run()
    assert (cluster_reader.state("ann")["status"], cluster_reader.count()) == ("online", 1)
