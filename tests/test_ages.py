"""How old what waits is."""

import random

import pytest

from presence.ages import STEP_MS, Ages
from presence.changes import Change, Op
from presence.histograms import Histogram
from presence.outbox import Outbox

START_MS = 1_700_000_000_000


class Waiting:
    """An outbox of one shard whose time is set by hand."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.took = Histogram((0.1, 1.0))
        self.ages = Ages(lambda: self.now_ms, self.took)
        self.outbox = Outbox(lambda _uid: 0, 1, max_items=1000, ages=self.ages)

    def append(self, uid: str = "u") -> Change:
        change = Change(Op.LOGIN, uid, "", "s", 1, 0.0, self.now_ms, self.now_ms, 30_000)
        self.outbox.append(change)
        return change


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


def test_nothing_that_waits_has_no_age(waiting: Waiting) -> None:
    assert waiting.ages.oldest_s() == 0.0
    waiting.append()
    waiting.now_ms += 5000
    waiting.outbox.acknowledged(0, waiting.outbox.take(0, 1))
    assert waiting.ages.oldest_s() == 0.0


def test_what_was_taken_waits_until_redis_has_it(waiting: Waiting) -> None:
    waiting.append()
    waiting.outbox.take(0, 1)
    waiting.now_ms += 5000
    assert waiting.ages.oldest_s() == pytest.approx(5.0, abs=STEP_MS / 1000)


def test_ages_are_counted_when_redis_has_them(waiting: Waiting) -> None:
    for _ in range(3):
        waiting.append()
        waiting.now_ms += 500
    waiting.outbox.acknowledged(0, waiting.outbox.take(0, 3))
    assert waiting.took.report() == {"bounds": [0.1, 1.0], "counts": [0, 2, 1], "sum": 3.0}


def test_what_is_only_forgotten_has_no_age_and_waits_no_more(waiting: Waiting) -> None:
    waiting.append()
    waiting.now_ms += 500
    waiting.outbox.release(0, waiting.outbox.take(0, 1))
    assert sum(waiting.took.report()["counts"]) == 0
    assert waiting.ages.oldest_s() == 0.0


def test_what_was_skipped_does_not_wait() -> None:
    waiting = Waiting()
    full = Outbox(lambda _uid: 0, 1, max_items=0, ages=waiting.ages)
    full.append(Change(Op.LOGIN, "u", "", "s", 1, 0.0, START_MS, START_MS, 30_000))
    waiting.now_ms += 500
    assert waiting.ages.oldest_s() == 0.0


def test_the_oldest_is_found_in_whatever_order_changes_leave(waiting: Waiting) -> None:
    rng = random.Random(7)
    held: list[Change] = []
    for _ in range(2000):
        waiting.now_ms += rng.randrange(40)
        if rng.random() < 0.5 and len(held) < 900:
            held.append(waiting.append())
            waiting.outbox.take(0, 1)
        elif held:
            waiting.outbox.release(0, [held.pop(rng.randrange(len(held)))])
        oldest_s = max(((waiting.now_ms - each.at_ms) / 1000 for each in held), default=0.0)
        assert oldest_s <= waiting.ages.oldest_s() <= oldest_s + STEP_MS / 1000
