"""Calls of Redis that are cancelled at random points: none gets the answer of another call."""

import random

import pytest

from tests.system.interrupts import run


@pytest.mark.parametrize(
    ("count", "in_cluster"),
    [(200, False), (100, True), pytest.param(1000, False, marks=pytest.mark.nightly)],
)
def test_every_answer_is_that_of_its_own_call(count: int, in_cluster: bool) -> None:
    figures, lines = run(count, random.randrange(1000), in_cluster=in_cluster)
    print("interrupted calls" + (" in a cluster" if in_cluster else ""), *lines[:4], sep="\n")
    assert figures.interrupted >= count
    assert (figures.by_proxy == 0) is in_cluster
    assert figures.answers > count / 2
    assert figures.crossed == []
    assert figures.failed == []


def test_connections_that_are_kept_cross_answers() -> None:
    figures, _ = run(20, 1, guard_off=True)
    assert figures.crossed
