"""The node protocol in the simulation: more seeds, and the fake Redis beside a real one for longer."""

import pytest

from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import open_client
from tests.simulation.test_fake_differential import PLAYS, compare
from tests.simulation.test_promises import simulation


def test_no_seed_breaks_a_promise() -> None:
    assert simulation("--first", "3", "--seeds", "3").returncode == 0  # two of them with rooms


@pytest.mark.nightly
def test_displacements_beyond_the_inbox_are_made_good_in_time() -> None:
    # A crowd moves on while its process is stopped, and shards are busy whenever it could compare.
    assert simulation("--first", "18799", "--seeds", "1").returncode == 0


@pytest.mark.nightly
@pytest.mark.parametrize("kind", PLAYS)
def test_the_fake_redis_does_as_a_real_one(kind: str, redis_server: EmbeddedRedis) -> None:
    with open_client(redis_server.url) as client:
        compare(client, kind, seed=1000, calls=50_000)
