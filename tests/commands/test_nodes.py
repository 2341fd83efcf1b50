"""``presence nodes`` against a real table of leases."""

import json

import pytest

from presence.cli import main
from presence.embedded import EmbeddedRedis
from presence.store.client import Redis
from presence.store.keys import Keys
from presence.store.lease_table import RedisLeaseTable

pytestmark = pytest.mark.usefixtures("clean_environment")
NODE = "node-0123abcd-0123456789ab"
TOLD = {
    "readiness": "ready",
    "address": "127.0.0.1:7400",
    "host": "web",
    "pid": 4321,
    "sessions": 19_500,
    "connections": 19_502,
}


def renew(redis_server: EmbeddedRedis, node: str, **told: object) -> RedisLeaseTable:
    table = RedisLeaseTable(redis_server.url, Keys(), lease_s=10)
    table.renew(node, 1, json.dumps(TOLD | told), [])
    table.close()
    return table


def test_each_node_has_a_line(redis_server: EmbeddedRedis, capsys: pytest.CaptureFixture[str]) -> None:
    renew(redis_server, NODE)
    renew(redis_server, "node-b", readiness="draining", sessions=0)
    assert main(["nodes", "--redis", redis_server.url]) == 0
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split("  ")[0] == "NODE"
    assert first.split()[:6] == [NODE, "127.0.0.1:7400", "4321@web", "19500", "19502", "ready,"]
    assert second.split()[3:6] == ["0", "19502", "draining,"]
    assert 5 < float(second.split()[6]) <= 10


def test_silent_and_dead_nodes_are_told_apart(
    redis_server: EmbeddedRedis, client: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    for node in ("node-a", "node-b"):
        table = renew(redis_server, node)
        client.zadd("presence:nodes", {node: 1000})
    table.claim("node-b", "1", "1 node-c 1")
    table.close()
    assert main(["nodes", "--redis", redis_server.url]) == 0
    _, first, second, third = capsys.readouterr().out.splitlines()
    assert "  silent for " in first
    assert "  silent for " in second
    assert third == "  dead: its users go offline, swept by node-c"


def test_a_node_that_left_is_shown_so_also_while_it_is_swept(
    redis_server: EmbeddedRedis, client: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    for node in ("node-a", "node-b"):
        table = renew(redis_server, node, left_ms=1_700_000_000_000)
        client.zadd("presence:nodes", {node: 1000})
    table.claim("node-b", "1", "1 node-c 1")
    table.close()
    assert main(["nodes", "--redis", redis_server.url]) == 0
    _, first, second, third = capsys.readouterr().out.splitlines()
    assert first.endswith("  left at 2023-11-14 22:13:20 UTC")
    assert second.endswith("  left at 2023-11-14 22:13:20 UTC")
    assert third == "  swept by node-c: users who have not returned go offline"


def test_lines_fit_a_terminal(redis_server: EmbeddedRedis, capsys: pytest.CaptureFixture[str]) -> None:
    renew(
        redis_server, NODE, host="a-pod-of-some-deployment-7d9f8b6c5-x2x4z", address="192.168.100.200:65535"
    )
    assert main(["nodes", "--redis", redis_server.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == 100
    assert " 4321@a-pod-" in lines[1]


def test_nodes_as_json_are_one_object(
    redis_server: EmbeddedRedis, capsys: pytest.CaptureFixture[str]
) -> None:
    renew(redis_server, NODE)
    assert main(["nodes", "--json", "--redis", redis_server.url]) == 0
    nodes = json.loads(capsys.readouterr().out)
    assert nodes[NODE].items() >= {**TOLD, "status": "alive", "sweeper": None, "version": None}.items()


def test_that_there_are_none_is_said(redis_server: EmbeddedRedis, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes", "--redis", redis_server.url, "--prefix", "other"]) == 0
    assert capsys.readouterr().out.startswith("no nodes: no server has a lease")
