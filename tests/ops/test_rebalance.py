"""What is planned and ordered, with balancers of two kinds."""

import math
import random
from typing import Any

import pytest

from presence.ops.rebalance import Plan, excess, forecast, make_plan, mean, serves, spread
from presence.store.node_states import NodeState

LOADED = {"a": 3000, "b": 3000, "new": 0}


def node(name: str, connections: int | None = 0, **more: Any) -> NodeState:
    ready = {"status": "alive", "readiness": "ready", "sent_away": 0, "settings": "lease=10.0"}
    values: dict[str, Any] = {"lease_left_s": 5.0, "sweeper": None, **ready, **more}
    return NodeState(node=name, connections=connections, **values)


def plan(counts: dict[str, int], rate: float = 20, tolerance: float = 0.1) -> Plan:
    return make_plan([node(name, count) for name, count in counts.items()], rate, tolerance)


@pytest.mark.parametrize(
    ("counts", "middle", "expected", "above"),
    [
        ({}, 0, 0, {}),
        ({"a": 5}, 5, 0, {}),
        ({"a": 0, "b": 0}, 0, 0, {}),
        (LOADED, 2000, 1.0, {"a": 1000, "b": 1000}),
        ({"a": 11, "b": 10, "c": 9}, 10, 0.1, {"a": 1}),
        ({"a": 2, "b": 1}, 1.5, 1 / 3, {"a": 1}),
    ],
)
def test_how_even_counts_are(
    counts: dict[str, int], middle: float, expected: float, above: dict[str, int]
) -> None:
    assert (mean(counts), excess(counts)) == (middle, above)
    assert spread(counts) == pytest.approx(expected)


@pytest.mark.parametrize(
    "more",
    [{"status": "silent"}, {"status": "left"}, {"readiness": "draining"}, {"connections": None}],
)
def test_only_nodes_that_take_clients_count(more: dict[str, Any]) -> None:
    assert not serves(node("a", **more))


def test_a_plan_names_the_nodes_of_older_versions() -> None:
    found = make_plan([node("old", 100, sent_away=None), node("a", 100), node("b", 10)], 20, 0.1)
    assert (found.unable, found.counts, found.least) == ({"old": 100}, {"a": 100, "b": 10}, {"a": 45})


def test_a_step_is_no_shorter_than_two_renewals_of_a_lease() -> None:
    assert make_plan([node("a", 1, settings="lease=60.0")], 20, 0.1).step_s == 15
    assert make_plan([node("a", 1, settings=None)], 20, 0.1).step_s == 5


@pytest.mark.parametrize(("count", "is_needed"), [(2000, False), (2400, False), (2500, True)])
def test_within_the_tolerance_there_is_nothing_to_do(count: int, *, is_needed: bool) -> None:
    assert plan({"a": count, "b": 2000}).is_needed is is_needed


def test_without_a_node_there_is_nothing_to_do() -> None:
    assert not plan({}).is_needed


def test_a_forecast_for_clients_that_return_at_random() -> None:
    found = forecast(LOADED, 100, 0.05)
    assert 2 * 1900 * 1.5 <= sum(found.sent.values()) <= 2 * 3000  # two thirds come back to loaded nodes
    assert found.steps * 100 >= max(found.sent.values())


@pytest.mark.parametrize("balancer", ["random", "least"])
@pytest.mark.parametrize(
    ("counts", "rate"),
    [
        (LOADED, 20),
        (LOADED, 200),
        ({"a": 3000, "new": 0}, 20),
        ({"a": 9000, "b": 3000, "c": 3000}, 50),
        ({**{f"n{n}": 2000 for n in range(10)}, "new": 0}, 20),
    ],
)
def test_clients_are_even_within_the_announced_time(
    counts: dict[str, int], rate: float, balancer: str
) -> None:
    choose, found, now = random.Random(5), plan(counts, rate), dict(counts)
    old, seen = dict(counts), dict(counts)  # not sent away yet; the counts of the step before
    steps = math.floor(found.longest_s / found.step_s) - 1
    for step in range(steps + 1):
        if spread(now) <= found.tolerance / 2:
            break
        assert step < steps, f"{now} after {step} steps"
        gone = {
            name: min(clients, math.ceil(rate * found.step_s), old[name])
            for name, clients in excess(seen if step % 2 else now).items()
        }
        seen = dict(now)
        for name, clients in gone.items():
            now[name] -= clients
            old[name] -= clients
        for _ in range(sum(gone.values())):
            name = choose.choice([*now]) if balancer == "random" else min(now, key=now.__getitem__)
            now[name] += 1
    assert sum(now.values()) == sum(counts.values())
