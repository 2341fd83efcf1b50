"""The ages of pending changes: of the oldest, and of each when it is acknowledged."""

import random

from presence.common.histogram import Histogram
from presence.core.changes import Change, Op
from presence.outbox.pending_ages import BUCKET_MS, PendingAges
from presence.outbox.queue import Outbox


class Waiting:
    """An outbox of one shard whose time is set by the test."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.took = Histogram((0.1, 1.0))
        self.ages = PendingAges(lambda: self.now_ms, self.took)
        self.outbox = Outbox(lambda _uid: 0, 1, max_items=1000, ages=self.ages)
        self.log = self.outbox.logs[0]

    def append(self) -> Change:
        each = Change(Op.LOGIN, "u", "", "s", 1, 1.0, self.now_ms, self.now_ms, 30_000)
        self.outbox.append(each)
        return each


def test_ages_are_counted_when_redis_has_the_changes() -> None:
    waiting = Waiting()
    waiting.append()  # two at the same time
    for _ in range(4):
        waiting.append()
        waiting.now_ms += 500
    waiting.log.take(4)
    waiting.log.acknowledge(0)
    assert waiting.log.drop(0, 1, ()) == 1, "without an answer"
    assert waiting.took.report() == {"bounds": [0.1, 1.0], "counts": [0, 1, 3], "sum": 6.5}
    assert (waiting.outbox.pending, waiting.ages.oldest_s()) == (0, 0.0)


def test_the_oldest_age_is_correct_in_any_order_of_removal() -> None:
    waiting, rng = Waiting(), random.Random(7)
    pending: list[Change] = []
    for _ in range(2000):
        waiting.now_ms += rng.randrange(40)
        if rng.random() < 0.5 and len(pending) < 900:
            pending.append(waiting.append())
        elif pending:
            index = rng.randrange(len(pending))
            pending.pop(index)
            waiting.log.drop(index, index + 1, ())
        oldest_s = max(((waiting.now_ms - each.at_ms) / 1000 for each in pending), default=0.0)
        assert oldest_s <= waiting.ages.oldest_s() <= oldest_s + BUCKET_MS / 1000
