"""Calls of Redis that are cancelled at random points: nobody gets the answer of another call."""

import random

import pytest

from loadtest.interrupts.__main__ import Figures, run

COUNT = 1000


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    count, guard_off = request.param
    figures, lines = run(count, random.randrange(1000), guard_off=guard_off)
    print(f"{request.node.name}:", *lines[:4], sep="\n")
    return figures


@pytest.mark.parametrize("figures", [(COUNT, False)], indirect=True, ids=["closed"])
def test_every_answer_is_that_of_its_own_call(figures: Figures) -> None:
    assert figures.interrupted >= COUNT
    assert figures.by_proxy > 0
    assert figures.answers > COUNT / 2
    assert figures.crossed == []
    assert figures.failed == []


@pytest.mark.parametrize("figures", [(20, True)], indirect=True, ids=["kept"])
def test_connections_that_are_kept_cross_answers(figures: Figures) -> None:
    assert figures.crossed
