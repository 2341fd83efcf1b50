"""``presence rebalance`` with nodes that obey its orders in a Redis of the test."""

import json
import random
from collections import Counter
from typing import Any

import pytest

from presence.ops import rebalance
from presence.ops.rebalance import Mover
from presence.store.control_messages import read_rebalance
from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.redis_client import Redis
from presence.store.redis_store import RedisLeaseTable
from presence.store.shard_clients import ShardClients
from tests.cli.conftest import Command
from tests.store.driving import listen

pytestmark = pytest.mark.usefixtures("clean_environment")
KEYS = Keys()


class Nodes:
    """Nodes that obey orders while the command waits; clients that are sent away return at random."""

    def __init__(self, url: str, client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table = RedisLeaseTable(url, KEYS, lease_s=60)
        self.stats: dict[str, dict[str, Any]] = {}
        self.orders: Counter[str] = Counter()
        self.commands: set[str] = set()
        self.deaf = False  # whether they ignore orders
        self.movable = 10**6  # clients that they may send away
        self._client = client
        self._listeners: dict[str, Any] = {}
        self._choose = random.Random(7)
        self._n = 0
        monkeypatch.setattr(ShardClients, "pause", lambda *_: self.obey())

    def put(self, node: str, connections: int, **more: Any) -> None:
        stats = {"connections": connections, "readiness": "ready", "sent_away": 0, "rebalance": None, **more}
        self.stats[node] = {name: value for name, value in stats.items() if value is not ...}
        self._listeners[node] = listen(self._client, KEYS.control_channel(node))
        self.renew()

    def renew(self) -> None:
        self._n += 1
        for node, stats in self.stats.items():
            self.table.renew(node, self._n, json.dumps(stats), [])

    def obey(self) -> None:
        for node, listener in self._listeners.items():
            while message := listener.get_message():
                order = read_rebalance(json.loads(message["data"]))
                assert order is not None
                self.commands.add(order.command)
                if order.clients and not self.deaf:
                    self.orders[node] += 1
                    self._send_away(node, order.clients, order.command)
                elif not order.clients:
                    self.stats[node]["rebalance"] = None
        self.renew()

    def _send_away(self, node: str, clients: int, command: str) -> None:
        clients = min(clients, self.movable)
        self.movable -= clients
        mine = self.stats[node]
        mine |= {"rebalance": command, "sent_away": mine["sent_away"] + clients}
        mine["connections"] -= clients
        for _ in range(clients):
            self.stats[self._choose.choice([*self.stats])]["connections"] += 1

    def counts(self) -> list[int]:
        return [stats["connections"] for stats in self.stats.values()]


@pytest.fixture
def nodes(redis_server: EmbeddedRedis, client: Redis, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    nodes = Nodes(redis_server.url, client, monkeypatch)
    nodes.put("n1", 3000)
    nodes.put("n2", 3000)
    return nodes


def test_clients_are_spread_within_the_tolerance(command: Command, nodes: Nodes) -> None:
    nodes.put("new", 0)
    status, out, err = command("rebalance")
    assert status == 0, err
    assert all(abs(count - 2000) <= 200 for count in nodes.counts())
    assert "n1       3,000 connections  sends away 1,000 to 2,8" in out
    assert "20 per second and server at most, until all are within 10 % of the mean, or for 3." in out
    assert out.splitlines()[-1].endswith("% of the mean")
    assert "clients sent away; connections" in err
    assert [each["rebalance"] for each in nodes.stats.values()] == [None] * 3, "they were stopped"
    assert nodes.orders.keys() == {"n1", "n2"}
    (name,) = nodes.commands
    assert "(presence rebalance) " in name


def test_the_outcome_as_json(command: Command, nodes: Nodes) -> None:
    nodes.put("new", 0)
    found = json.loads(command("rebalance", "--json").out)
    assert found["plan"]["counts"] == {"n1": 3000, "n2": 3000, "new": 0}
    assert found["plan"]["unable"] == {}
    assert found["done"]["sent_away"] == sum(each["sent_away"] for each in nodes.stats.values())
    assert found["done"]["counts"] == dict(zip(nodes.stats, nodes.counts(), strict=True))
    assert found["done"]["spread"] <= 0.05


def test_a_dry_run_orders_nothing(command: Command, nodes: Nodes) -> None:
    nodes.put("new", 0)
    status, out, _ = command("rebalance", "--dry-run")
    assert (status, nodes.commands) == (0, set())
    assert "sends away" in out


def test_even_servers_are_left_alone(command: Command, nodes: Nodes) -> None:
    status, out, _ = command("rebalance")
    assert (status, nodes.commands) == (0, set())
    assert out.splitlines()[-1] == "all are within 10 % of the mean, 3,000: nothing to do"


def test_without_a_server_there_is_nothing_to_do(command: Command) -> None:
    assert command("rebalance") == (0, "no server is ready that can send clients away\n", "")


def test_a_server_of_an_older_version_keeps_its_clients(command: Command, nodes: Nodes) -> None:
    nodes.put("old", 3000, sent_away=...)
    nodes.put("new", 0)
    out = command("rebalance").out
    assert "old      3,000 connections  keeps its clients: its version cannot send any away" in out
    assert "old" not in nodes.orders
    assert rebalance.spread({node: nodes.stats[node]["connections"] for node in ("n1", "n2", "new")}) < 0.1


def test_another_call_is_refused_and_can_be_stopped(command: Command, nodes: Nodes) -> None:
    nodes.put("new", 0, rebalance="ann@host 7")
    status, _, err = command("rebalance")
    assert (status, nodes.commands) == (1, set())
    assert err == (
        "presence: rebalance: another is under way: ann@host 7; presence rebalance --stop ends it\n"
    )
    assert command("rebalance", "--stop") == (0, "stopped: ann@host 7\n", "")
    nodes.obey()
    assert command("rebalance", "--stop").out == "no rebalance is under way\n"
    assert command("rebalance").status == 0


def test_a_call_that_is_stopped_says_so(command: Command, nodes: Nodes) -> None:
    nodes.put("new", 0)
    nodes.deaf = True
    status, _, err = command("rebalance")
    assert status == 1
    assert "no node obeys it any more" in err


def test_a_call_ends_when_its_time_is_over(
    command: Command, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.put("new", 0)
    monkeypatch.setattr(rebalance, "SPARE", 0)
    monkeypatch.setattr(rebalance, "SPARE_STEPS", 1)
    status, out, _ = command("rebalance")
    assert status == 1
    assert out.splitlines()[-1].endswith(f"within {100 * spread(nodes):.1f} % of the mean")


def test_a_call_ends_when_all_clients_have_moved(command: Command, nodes: Nodes) -> None:
    nodes.put("new", 0)
    nodes.movable = 500
    status, out, err = command("rebalance")
    assert status == 1
    assert len(err.splitlines()) == 500 // 200 + 1 + rebalance.MAX_IDLE_STEPS
    assert ": 500 clients sent away" in out.splitlines()[-1]


def spread(nodes: Nodes) -> float:
    return rebalance.spread(dict(zip(nodes.stats, nodes.counts(), strict=True)))


def test_an_interrupted_call_stops_the_servers(
    command: Command, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.put("new", 0)

    def interrupt(*_: object) -> None:
        nodes.obey()
        raise KeyboardInterrupt

    monkeypatch.setattr(ShardClients, "pause", interrupt)
    assert command("rebalance").status == 1
    nodes.obey()
    assert [each["rebalance"] for each in nodes.stats.values()] == [None] * 3
    assert nodes.orders == {"n1": 1, "n2": 1}


def test_each_call_has_a_name_of_its_own(redis_server: EmbeddedRedis) -> None:
    with Mover(redis_server.url, by="ann") as first, Mover(redis_server.url, by="ann") as second:
        assert first.command != second.command


@pytest.mark.parametrize(
    "words",
    [
        ("--rate", "0.1"),
        ("--rate", "1000"),
        ("--rate", "nan"),
        ("--tolerance", "0.5"),
        ("--tolerance", "101"),
    ],
)
def test_what_makes_no_sense_is_refused(command: Command, words: tuple[str, ...]) -> None:
    assert command("rebalance", *words).status == 2
