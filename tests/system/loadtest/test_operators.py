"""What operators' tools cost: a short run on a real server, and the judgement of given figures."""

import pytest

from loadtest.operators.__main__ import MAX_EXTRA_COST, OperatorsPlan, Stretch, judge, measure
from loadtest.operators.lookers import KINDS, SCRAPE, STUCK, VIEWERS, Seen

PLAN = OperatorsPlan(connections=50, rate=500.0, seconds=2.0, pairs=1, viewers=3)


def stretches(without: float, beside: float, *complaints: str) -> tuple[Stretch, Stretch]:
    return Stretch(without), Stretch(beside, Seen(1, 1, 0), list(complaints))


@pytest.mark.nightly
def test_each_kind_of_looker_sees_what_it_came_for() -> None:
    found = measure(PLAN, list(KINDS))
    seen = {kind: pairs[0][1].seen for kind, pairs in found.items()}
    print(f"test_each_kind_of_looker_sees_what_it_came_for: {seen}")
    assert all(side.cpu_us > 0 for pairs in found.values() for side in pairs[0])
    assert {kind: each is not None and (each.failed, each.answers > 0) for kind, each in seen.items()} == {
        SCRAPE: (0, True),
        VIEWERS: (0, False),
        STUCK: (0, True),
    }
    viewed = seen[VIEWERS]
    assert viewed is not None
    assert viewed.samples > 0


def test_the_median_of_the_pairs_is_judged() -> None:
    pairs = [stretches(4.0, 4.0), stretches(4.0, 4.1), stretches(4.0, 8.0)]
    report = judge(PLAN, {SCRAPE: pairs})
    assert report.broken == []
    assert report.rows["a scrape a second"] == "4.00 without, 4.10 with: +2.5% (+0.0%, +2.5%, +100.0%)"


def test_more_than_is_allowed_is_told() -> None:
    assert judge(PLAN, {VIEWERS: [stretches(4.0, 4.0 * (1 + 2 * MAX_EXTRA_COST))]}).broken == [
        "3 viewers: +6.0%"
    ]


def test_a_pair_that_measured_something_else_counts_as_broken() -> None:
    broken = judge(PLAN, {STUCK: [stretches(4.0, 4.0, "the generator was late")]}).broken
    assert broken == ["stuck clients, pair 1: not valid: the generator was late"]
