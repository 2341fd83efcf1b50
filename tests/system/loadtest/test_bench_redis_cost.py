"""What a node costs Redis, measured small, and the arithmetic that follows."""

import pytest

from loadtest.bench.inprocess import redis_for
from loadtest.bench.redis_cost import Cost, Plan, Rest, measure, table
from presence.cluster import BEATS_A_LEASE
from presence.relay import PROBE_INTERVAL_S
from presence.settings import Settings
from presence.store.keys import Keys


async def test_a_node_at_rest_probes_and_transitions_cost() -> None:
    keys = Keys("bench", 4)
    with redis_for("", keys) as url:
        cost = await measure(url, keys, 500, 3, rest_s=PROBE_INTERVAL_S)
    beats_s = BEATS_A_LEASE / Settings().lease
    comparison_s = 2 * 4 / PROBE_INTERVAL_S  # of each shard, or not yet; its script is loaded
    expected = 4 / PROBE_INTERVAL_S + beats_s
    assert expected * 0.8 <= cost.rest.scripts <= 1.2 * expected + comparison_s, "a probe each, and beats"
    assert cost.rest.commands > cost.rest.scripts, "the scripts call commands too"
    assert cost.online_us > 0
    assert 100 < cost.user_bytes < 2000
    assert 20 < cost.entry_bytes < 1000
    assert 20 < cost.seen_bytes < cost.user_bytes


def test_needs_follow_from_costs_and_plan() -> None:
    cost = Cost(1, Rest(0.4, 4.0, 100.0), 10.0, 12.0, 50.0, 150.0, 400.0, 100.0, 100.0)
    plan = Plan(users=1_000_000, nodes=10, visits=4.32, peak=10, entries_kept=1_000_000)
    assert plan.transitions_s == pytest.approx(1000)
    text = table([cost], plan)
    assert "each transition alone in its batch | 0.10 |" in text  # 1000 * 100 µs, and 10 nodes at 100 µs
    assert "end in one tick | 1.20 |" in text  # 100,000 * 12 µs
    assert "the streams full | 0.5 |" in text  # 0.4 GB and 0.1 GB
