"""Commands for operators on a Redis Cluster, over all its servers."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from loadtest.redis_cluster import Cluster
from presence.cli import main
from presence.store.access import Access
from presence.store.lease_table import RedisLeaseTable
from tests.store.nodes import ManualNode

pytestmark = pytest.mark.usefixtures("clean_environment")
SHARDS = 16
USERS = [f"user-{n}" for n in range(64)]  # of all shards
Said = pytest.CaptureFixture[str]


@pytest.fixture
def url(redis_cluster: Cluster) -> str:
    return redis_cluster.url


@pytest.fixture
def node(url: str) -> Iterator[ManualNode]:
    """A node that lives, with users in all shards, and obeys nobody."""
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


@pytest.mark.usefixtures("node")
def test_status_tells_counts_and_lists_users(url: str, capsys: Said) -> None:
    assert main(["status", "--count", "--redis", url]) == 0
    assert capsys.readouterr().out == "64\n"
    assert main(["status", "user-7", "nobody", "--json", "--redis", url]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {uid: state["status"] for uid, state in told.items()} == {"user-7": "online", "nobody": "offline"}
    assert main(["status", "--list", "--json", "--redis", url]) == 0
    assert json.loads(capsys.readouterr().out).keys() == set(USERS)


@pytest.mark.usefixtures("node")
def test_nodes_are_told(url: str, capsys: Said) -> None:
    assert main(["nodes", "--json", "--redis", url]) == 0
    assert json.loads(capsys.readouterr().out)["a"]["sessions"] == 64


def test_a_kick_reaches_the_node_through_its_inbox(url: str, node: ManualNode, capsys: Said) -> None:
    assert main(["kick", *USERS, "--wait", "0", "--redis", url]) == 1
    assert "user-63  0 of 1 session ended" in capsys.readouterr().out
    with Access(url) as access:
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
    with Access(url) as access:
        left = access.ask(node.keys, range(SHARDS), lambda pipe, shard: pipe.xlen(node.keys.events(shard)))
    assert sum(entries for (entries,) in left.values()) == 1


@pytest.mark.usefixtures("node")
def test_tail_prints_events_of_all_shards(url: str) -> None:
    command = [sys.executable, "-m", "presence", "tail", "--json", "--from", "0", "--redis", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        lines = [json.loads(tail.stdout.readline()) for _ in USERS]
        tail.send_signal(signal.SIGTERM)
        assert tail.wait(10) == 0
    assert {line["uid"] for line in lines} == set(USERS)
    assert len({line["shard"] for line in lines}) == SHARDS
