"""A little of each case on a real server; `python -m loadtest.security` does as much as is promised."""

from collections.abc import Iterator

import pytest

from loadtest.hostile.stage import Stage, staged
from loadtest.nodes.outcome import Outcome, table
from loadtest.security import bombs, emfile, flood
from loadtest.security.attempts import Plain


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged("--login-rate", "50", "--login-burst", "300", login_timeout=60) as stage:
        yield stage


def assert_kept(outcome: Outcome) -> None:
    print(table([outcome]))
    assert outcome.failures == []


def test_bombs_that_wait_side_by_side_cost_little(stage: Stage) -> None:
    assert_kept(bombs.bombs(stage, 200))


def test_without_descriptors_nobody_is_lost(stage: Stage) -> None:
    outcome = emfile.emfile(stage, 60, 1.5)
    print(table([outcome]))
    assert outcome.injected
    assert not stage.others_hurt()


def test_each_refusal_of_a_flood_names_a_time_to_return(stage: Stage) -> None:
    load = flood.offer(stage, Plain("flood"), 500.0, 2.0)
    print(load)
    assert load.unread == 0
    assert len(load.ended) > load.number(0) > 0
    assert not stage.others_hurt()
