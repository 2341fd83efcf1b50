"""Numbers of batches, and what may happen to the one in flight."""

import pytest

from presence.core.changes import Change, Op
from presence.outbox.batches import BATCH_ITEMS, BatchInFlight, BatchNumbers
from presence.outbox.replies import CounterSnapshot
from presence.outbox.steps import Batch, Counter, Item, Opening


def numbers(generation: int, n: int) -> BatchNumbers:
    found = BatchNumbers("a")
    found.acknowledged = Counter("a", generation, n)
    return found


@pytest.mark.parametrize(
    ("history", "lost", "unanswered"),
    [
        ([], True, 0),
        ([("a", 2, 7)], False, 0),
        ([("a", 2, 6)], True, 0),
        ([("a", 2, 8)], False, 1),  # the answer to a batch was lost
        ([("a", 3, 1), ("a", 2, 7)], False, 1),  # the answer to an opening was lost
        ([("a", 3, 1)], True, 1),
        ([("b", 2, 7)], True, 0),
    ],
)
def test_the_history_shows_lost_batches_and_lost_answers(
    history: list[tuple[str, int, int]], lost: bool, unanswered: int
) -> None:
    snapshots = [CounterSnapshot(Counter(*each)) for each in history]
    known = numbers(2, 7)
    assert known.is_lost(snapshots) == lost
    assert len(known.unanswered(snapshots)) == unanswered


@pytest.mark.parametrize(
    ("found", "in_flight", "expected"),
    [
        ((2, 7), False, True),
        ((2, 8), False, False),
        ((2, 8), True, True),
        ((2, 6), True, False),
        ((3, 7), True, False),
    ],
)
def test_a_probe_finds_the_acknowledged_number_or_that_of_the_batch_in_flight(
    found: tuple[int, int], in_flight: bool, expected: bool
) -> None:
    assert numbers(2, 7).is_expected(Counter("a", *found), in_flight=in_flight) == expected


def test_a_generation_is_above_all_that_were_seen_until_the_node_has_another_id() -> None:
    known = BatchNumbers("a")
    known.note_generation(4)
    assert known.open() == Counter("a", 5, 1)
    known.rename("a2")
    assert known.open() == Counter("a2", 1, 1)


@pytest.mark.parametrize(("generation", "before"), [(0, "a2"), (3, "a")])
def test_the_acknowledged_number_keeps_its_node_id_after_a_rename(generation: int, before: str) -> None:
    known = numbers(generation, 1)
    known.rename("a2")
    assert known.acknowledged.node == before


def batch(n: int, items: int = 4, opening: Opening | None = None) -> Batch:
    change = Change(Op.LOGIN, "u", "", "s", 1, 0.0, 0, 0, 30_000)
    return Batch(0, Counter("a", 1, n), "", (Item(change),) * items, 0.0, opening, complete=True)


def test_a_heavy_batch_keeps_its_number_and_loses_its_last_items() -> None:
    flight = BatchInFlight()
    flight.send(batch(7))
    assert flight.cut(1)
    assert flight.batch is not None
    assert (flight.batch.counter.n, len(flight.batch.items), flight.batch.complete) == (7, 1, False)


def test_a_batch_of_which_redis_may_get_a_copy_is_not_cut() -> None:
    flight = BatchInFlight()
    flight.send(batch(7))
    flight.note_lost_answer()
    assert not flight.cut(1)
    flight.send(batch(8))
    assert flight.cut(1)


def test_batches_grow_again_after_a_heavy_one() -> None:
    flight = BatchInFlight()
    flight.send(batch(7))
    flight.cut(1)
    limits = []
    for _ in range(3):
        flight.accept(has_rest=True)
        limits.append(flight.limit)
    flight.accept(has_rest=False)
    assert (limits, flight.limit) == ([2, 4, 8], BATCH_ITEMS)


@pytest.mark.parametrize("applied", [True, False])
def test_a_batch_of_a_generation_that_was_left_is_unconfirmed_until_the_history_is_known(
    applied: bool,
) -> None:
    flight = BatchInFlight()
    flight.send(batch(7))
    flight.leave()
    flight.send(batch(1, 0, Opening("a")))
    flight.leave()
    assert flight.batch is None
    assert flight.unconfirmed == Counter("a", 1, 7), "an opening never is"
    history = [CounterSnapshot(Counter("a", 1, 7 if applied else 6))]
    assert flight.resolve(history) == (history[0] if applied else None)
    assert flight.unconfirmed is None
