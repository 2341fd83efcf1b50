"""The model of the client for long, with other seeds each day: `-m nightly -s` prints what was done."""

import time
from collections import Counter

import pytest

from tests.client.test_client_model import STEPS
from tests.client.world import World

SEEDS = 150  # for a program with a token function, and for one without: 450,000 steps
DAY_S = 86_400


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_hundreds_of_thousands_of_steps_find_nothing() -> None:
    began, done = time.monotonic(), Counter[str]()
    first = int(time.time() // DAY_S) * SEEDS
    print(f"seeds from {first}")
    for seed in range(first, first + SEEDS):
        for fetches in (False, True):
            world = World(seed, fetches=fetches)
            world.run(STEPS)
            done += world.done
    print(f"{done.total()} steps in {time.monotonic() - began:.0f} s: {dict(done.most_common())}")
