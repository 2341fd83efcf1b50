"""A little of each case on a real server; `python -m tests.system.security` does as much as is promised."""

import pytest

from loadtest.outcome import table
from tests.system.security.__main__ import CASES
from tests.system.security.floods import offer
from tests.system.security.stage import attacked_server

LONG = {  # they take long, or measure times that a busy machine spoils
    *("silent", "flood", "flood-tokens", "flood-forged", "flooders", "cycles", "tls"),
}


@pytest.mark.parametrize("name", sorted({*CASES} - LONG))
def test_a_promise_is_kept(name: str) -> None:
    outcome = CASES[name][1]()
    print(table([outcome]))
    assert outcome.failures == []


def test_each_refusal_of_a_flood_names_a_time_to_return() -> None:
    with attacked_server("--login-rate", "50") as stage:
        load = offer(stage, "flood", 500.0, 2.0)
        print(load)
        assert load.refused_without_reason == 0
        assert len(load.ended) > load.count(0) > 0
        assert not stage.bystanders_hurt()
