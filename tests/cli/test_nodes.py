"""``presence nodes`` against a real table of leases."""

import json

import pytest

from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.redis_client import Redis
from presence.store.redis_store import RedisLeaseTable
from tests.cli.conftest import Command

pytestmark = pytest.mark.usefixtures("clean_environment")
NODE = "node-0123abcd-0123456789ab"
INFO = {
    "readiness": "ready",
    "address": "127.0.0.1:7400",
    "host": "web",
    "pid": 4321,
    "sessions": 19_500,
    "connections": 19_502,
}


def renew(redis_server: EmbeddedRedis, node: str, **info: object) -> RedisLeaseTable:
    table = RedisLeaseTable(redis_server.url, Keys(), lease_s=10)
    table.renew(node, 1, json.dumps(INFO | info), [])
    table.close()
    return table


def test_each_node_is_one_line(redis_server: EmbeddedRedis, command: Command) -> None:
    assert command("nodes").out.startswith("no nodes: no server has a lease")
    renew(redis_server, NODE, host="a-pod-of-some-deployment-7d9f8b6c5-x2x4z")
    renew(redis_server, "node-b", readiness="draining", sessions=0)
    heading, first, second = command("nodes").out.splitlines()
    assert heading.split("  ")[0] == "NODE"
    assert first.split()[:2] == [NODE, "127.0.0.1:7400"]
    assert first.split()[2].startswith("4321@a-pod-")
    assert first.split()[3:6] == ["19500", "19502", "ready,"]
    assert second.split()[2:6] == ["4321@web", "0", "19502", "draining,"]
    assert 5 < float(second.split()[6]) <= 10
    nodes = json.loads(command("nodes", "--json").out)
    assert (
        nodes["node-b"].items() >= {"status": "alive", "pid": 4321, "sweeper": None, "version": None}.items()
    )


@pytest.mark.parametrize(
    ("left", "state", "swept"),
    [
        ({}, "  silent for ", "  dead: being swept by node-c, its users go offline"),
        (
            {"left_ms": 1_700_000_000_000},
            "  left at 2023-11-14 22:13:20 UTC",
            "  being swept by node-c: users who have not returned go offline",
        ),
    ],
)
def test_nodes_that_left_are_silent_or_dead_are_distinguished(
    redis_server: EmbeddedRedis, client: Redis, command: Command, left: dict[str, int], state: str, swept: str
) -> None:
    for node in ("node-a", "node-b"):
        table = renew(redis_server, node, **left)
        client.zadd("presence:nodes", {node: 1000})
    table.claim("node-b", "1", "1 node-c 1")
    table.close()
    _, first, second, third = command("nodes").out.splitlines()
    assert state in first
    assert state in second
    assert third == swept
