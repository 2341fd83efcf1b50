"""Long runs of the model of a consumer group."""

import logging
import time
from collections import Counter

import pytest

from presence.store.redis_client import Redis
from tests.subscriber.group_model import run

STEPS, RUNS = 1000, 100


@pytest.mark.nightly
@pytest.mark.timeout(1200)  # some seven minutes
def test_the_promises_of_a_group_hold_in_long_runs(
    url: str, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "presence.subscriber")
    began = time.monotonic()
    done: Counter[str] = Counter()
    for seed in range(1000, 1000 + RUNS):
        with pytest.MonkeyPatch.context() as patch:
            done += run(url, client, patch, seed=seed, steps=STEPS)
    print(f"model of a group: {done.total():,} steps in {time.monotonic() - began:.0f} s: {dict(done)}")
