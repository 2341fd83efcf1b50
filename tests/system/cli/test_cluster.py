"""Commands for operators on a Redis Cluster, over all its servers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from presence.cli.main import main
from presence.store.redis_store import RedisLeaseTable
from presence.store.shard_clients import ShardClients
from tests.store.nodes import ManualNode
from tests.support.redis_cluster import Cluster

pytestmark = pytest.mark.usefixtures("clean_environment")
SHARDS = 16
USERS = [f"user-{n}" for n in range(64)]  # of all shards
Said = pytest.CaptureFixture[str]


@pytest.fixture
def url(redis_cluster: Cluster) -> str:
    return redis_cluster.url


@pytest.fixture
def node(url: str) -> Iterator[ManualNode]:
    """A live node, with users in all shards, that ignores notices."""
    node = ManualNode(url, shards=SHARDS)
    node.store.check_meta()
    table = RedisLeaseTable(url, node.keys, lease_s=60)
    table.renew(node.node, 1, '{"sessions": 64}', [])
    table.close()
    for uid in USERS:
        node.login(uid)
    exchange(node)
    yield node
    node.store.close()


def exchange(node: ManualNode) -> None:
    while node.round():
        node.now += 0.001


def test_a_kick_reaches_the_node_through_its_inbox(url: str, node: ManualNode, capsys: Said) -> None:
    assert main(["kick", *USERS, "--wait", "0", "--redis", url]) == 1
    assert "user-63  0 of 1 session ended" in capsys.readouterr().out
    with ShardClients(url) as access:
        inboxes = []
        for shard in range(SHARDS):
            key = node.keys.node(shard, node.node)
            news: Any = access.at(key).hget(key, "inbox")
            inboxes += json.loads(news)
    assert sorted(news["uid"] for news in inboxes) == sorted(USERS)


def test_nothing_of_users_who_were_forgotten_is_left(url: str, node: ManualNode, capsys: Said) -> None:
    for uid in USERS[1:]:
        node.end(uid)
    exchange(node)
    assert main(["forget", *USERS, "--redis", url]) == 1, "one is online"
    assert "users forgotten: 63; erased: last seen 63, events 126," in capsys.readouterr().out
    with ShardClients(url) as access:
        left = access.ask(node.keys, range(SHARDS), lambda pipe, shard: pipe.xlen(node.keys.events(shard)))
    assert sum(entries for (entries,) in left.values()) == 1
