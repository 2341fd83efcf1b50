"""What a node costs Redis, measured small, and the arithmetic that follows."""

from loadtest.bench.redis_cost import measure
from presence.cluster.membership import RENEWALS_PER_LEASE
from presence.config.settings import Settings
from presence.outbox.relay import PROBE_INTERVAL_S
from presence.store.embedded import embedded_redis
from presence.store.keys import Keys


async def test_a_node_at_rest_probes_and_transitions_cost() -> None:
    keys = Keys("bench", 4)
    with embedded_redis() as redis:
        cost = await measure(redis.url, keys, 500, 3, rest_s=PROBE_INTERVAL_S)
    beats_s = RENEWALS_PER_LEASE / Settings().lease
    comparison_s = 2 * 4 / PROBE_INTERVAL_S  # of each shard, or not yet; its script is loaded
    expected = 4 / PROBE_INTERVAL_S + beats_s
    assert expected * 0.8 <= cost.scripts <= 1.2 * expected + comparison_s, "a probe each, and beats"
    assert cost.commands > cost.scripts, "the scripts call commands too"
    assert cost.online_us > 0
    assert 100 < cost.user_bytes < 2000
    assert 20 < cost.entry_bytes < 1000
    assert 15 < cost.seen_bytes < cost.user_bytes
