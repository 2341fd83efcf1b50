"""The outbox: order, bound, skipping, waking."""

import sys

import pytest

from presence.changes import Change, Op
from presence.outbox import Gap, Outbox, size_of


def change(uid: str, session: str = "s", *, at: float = 1.0, at_ms: int = 1000) -> Change:
    return Change(Op.LOGIN, uid, "", session, 1, at, at_ms, at_ms, 30_000)


def first_digit(uid: str) -> int:
    return int(uid[0])


@pytest.fixture
def outbox() -> Outbox:
    """Two shards by the uid's first digit; three changes fit."""
    return Outbox(first_digit, 2, max_items=3)


def test_each_shard_is_first_in_first_out(outbox: Outbox) -> None:
    outbox.extend([change("0a"), change("1a"), change("0b")])
    assert [c.uid for c in outbox.take(0, 10)] == ["0a", "0b"]
    assert [c.uid for c in outbox.take(1, 10)] == ["1a"]


def test_take_gives_no_more_than_asked(outbox: Outbox) -> None:
    outbox.extend([change("0a"), change("0b")])
    assert [c.uid for c in outbox.take(0, 1)] == ["0a"]
    assert outbox.queued(0) == 1


def test_what_was_taken_counts_until_it_is_released(outbox: Outbox) -> None:
    outbox.extend([change("0a"), change("0b")])
    taken = outbox.take(0, 2)
    assert outbox.held == 2
    outbox.release(0, taken)
    assert outbox.held == 0


def test_a_full_outbox_skips_and_counts(outbox: Outbox) -> None:
    outbox.extend(change(f"0{i}", at_ms=i, at=float(i)) for i in range(10))
    assert outbox.queued(0) == 3
    assert outbox.begin_resync(0) == Gap(dropped=7, from_ms=3, to_ms=9, from_at=3.0)


def test_skipping_goes_on_when_there_is_room_again(outbox: Outbox) -> None:
    outbox.extend(change("0a") for _ in range(4))
    outbox.release(0, outbox.take(0, 3))
    outbox.append(change("0late"))
    assert outbox.queued(0) == 0


def test_a_shard_that_fills_the_outbox_leaves_the_others_room() -> None:
    outbox = Outbox(lambda uid: int(uid[0]), 2, max_items=80)
    outbox.extend(change("0a") for _ in range(200))
    assert outbox.held == 80
    outbox.extend(change("1a") for _ in range(10))
    assert not outbox.is_skipping(1)
    assert outbox.queued(1) == 10
    outbox.append(change("1a"))
    assert outbox.is_skipping(1)


def test_others_go_on_for_ever_while_theirs_are_taken() -> None:
    outbox = Outbox(lambda uid: int(uid[0]), 2, max_items=80)
    outbox.extend(change("0a") for _ in range(200))
    for _ in range(500):
        outbox.append(change("1a"))
        outbox.release(1, outbox.take(1, 1))
    assert (outbox.is_skipping(0), outbox.is_skipping(1)) == (True, False)


def test_one_shard_has_no_room_beyond_the_bound() -> None:
    outbox = Outbox(lambda _uid: 0, 1, max_items=80)
    outbox.extend(change("0a") for _ in range(200))
    assert outbox.held == 80


def test_a_resync_ends_the_skipping_of_its_shard_alone(outbox: Outbox) -> None:
    outbox.extend(change("0a") for _ in range(4))
    outbox.extend(change("1a") for _ in range(4))
    outbox.begin_resync(0)
    assert (outbox.is_skipping(0), outbox.is_skipping(1)) == (False, True)


def test_without_a_skip_there_is_no_gap(outbox: Outbox) -> None:
    outbox.append(change("0a"))
    assert outbox.begin_resync(0) is None


def test_a_gap_is_given_once(outbox: Outbox) -> None:
    outbox.extend(change("0a") for _ in range(4))
    outbox.begin_resync(0)
    assert outbox.begin_resync(0) is None


def test_gaps_merge_into_the_one_that_covers_both() -> None:
    assert Gap(2, 10, 20, 5.0).merged(Gap(3, 5, 15, 6.0)) == Gap(5, 5, 20, 5.0)


def test_statistics_count_what_happened(outbox: Outbox) -> None:
    outbox.extend(change("0a") for _ in range(5))
    outbox.release(0, outbox.take(0, 2))
    statistics = outbox.statistics()
    assert (statistics.held, statistics.queued, statistics.high_water) == (1, 1, 3)
    assert (statistics.appended_total, statistics.dropped_total) == (3, 2)
    assert (statistics.skipping_shards, statistics.max_items) == (1, 3)


def test_bytes_are_a_bound_too() -> None:
    outbox = Outbox(lambda _uid: 0, 1, max_items=100, max_bytes=2 * size_of(change("0a")))
    outbox.extend(change("0a") for _ in range(3))
    assert (outbox.held, outbox.statistics().dropped_total) == (2, 1)
    outbox.release(0, outbox.take(0, 2))
    assert outbox.statistics().held_bytes == 0


def test_the_size_of_a_change_is_about_what_it_takes() -> None:
    each = change("0a" * 20)
    texts = (each.uid, each.session)  # the empty text of the default device is one for all
    numbers = (each.at, each.at_ms, each.last_seen_ms, each.idle_timeout_ms)
    assert size_of(each) == pytest.approx(sum(map(sys.getsizeof, (each, *texts, *numbers))), rel=0.1)


class Ring:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


def test_it_calls_at_once_when_there_is_enough(outbox: Outbox) -> None:
    ring = Ring()
    outbox.append(change("0a"))
    outbox.call_at(1, ring)
    assert ring.times == 1


def test_it_calls_once_with_the_change_that_makes_it_enough(outbox: Outbox) -> None:
    ring = Ring()
    outbox.call_at(2, ring)
    outbox.append(change("0a"))
    assert ring.times == 0
    outbox.append(change("1a"))
    outbox.append(change("1a"))
    assert ring.times == 1


def test_a_wish_can_be_taken_back(outbox: Outbox) -> None:
    ring = Ring()
    outbox.call_at(1, ring)
    outbox.call_at(0, ring)
    outbox.append(change("0a"))
    assert ring.times == 0
