"""The storms that are drawn from a seed."""

from collections import Counter
from itertools import combinations, pairwise
from random import Random

from tests.system.chaos.plan import GAP_S, ChaosFault, ChaosFaultKind, Place, draw, rounds_in, times_each

STORMS = draw(Random(7), rounds=22, times=11, nodes=3, kinds=[*ChaosFaultKind])


def things(fault: ChaosFault) -> set[tuple[Place, int]]:
    place = fault.kind.value.place
    if place is Place.ALL_NODES:
        return {(Place.NODE, node) for node in range(3)}
    return {(place, fault.place)}


def test_a_seed_is_always_the_same_storms() -> None:
    assert draw(Random(7), rounds=22, times=11, nodes=3, kinds=[*ChaosFaultKind]) == STORMS


def test_half_an_hour_has_ten_of_each_kind() -> None:
    counts = Counter(fault.kind for storm in STORMS for fault in storm)
    assert {*counts} == {*ChaosFaultKind}
    assert min(counts.values()) >= 10
    assert times_each(30.0) >= 10
    assert rounds_in(30.0, 27.0) >= 20


def test_two_faults_of_one_thing_do_not_overlap() -> None:
    for storm in STORMS:
        for one, other in combinations(storm, 2):
            if things(one) & things(other):
                first, second = sorted((one, other), key=lambda fault: fault.at)
                assert first.at + first.seconds + GAP_S <= second.at + 1e-6


def test_faults_of_different_things_overlap() -> None:
    assert any(second.at < first.at + first.seconds for storm in STORMS for first, second in pairwise(storm))
