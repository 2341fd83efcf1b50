"""The outbox: order, limits, skipping, notification."""

import sys

import pytest

from presence.core.changes import Change, Op
from presence.core.profiles import Profile
from presence.outbox.overflow import SkippedChanges
from presence.outbox.queue import Outbox, size_of


def change(uid: str, session: str = "s", *, at: float = 1.0, at_ms: int = 1000) -> Change:
    return Change(Op.LOGIN, uid, "", session, 1, at, at_ms, at_ms, 30_000)


def two_shards(max_items: int) -> Outbox:
    """Two shards by the uid's first digit."""
    return Outbox(lambda uid: int(uid[0]), 2, max_items=max_items)


def test_a_full_outbox_skips_and_counts_until_a_resync_of_that_shard() -> None:
    outbox = two_shards(3)
    overflows = [log.overflow for log in outbox.logs]
    assert overflows[0].open(0.0, all_written=True) is None
    outbox.extend(change(f"0{i}", at_ms=i, at=float(i)) for i in range(9))
    outbox.logs[0].take(3)
    outbox.logs[0].acknowledge(0)
    outbox.append(change("0late", at_ms=9))  # there is room again, but it must not overtake
    assert outbox.queued(0) == 0
    outbox.extend(change("1a") for _ in range(4))
    assert [each.is_skipping for each in overflows] == [True, True]
    statistics = outbox.statistics()
    assert (statistics.pending, statistics.queued, statistics.high_water, statistics.max_items) == (
        3,
        3,
        3,
        3,
    )
    assert (statistics.appended_total, statistics.skipped_total, statistics.skipping_shards) == (6, 8, 2)
    skipped = SkippedChanges(number=7, from_ms=3, to_ms=9, from_at=1.0)
    assert overflows[0].open(5.0, all_written=True) == skipped
    assert overflows[0].opening_accepted() == skipped
    assert overflows[0].open(5.0, all_written=True) is None
    assert [each.is_skipping for each in overflows] == [False, True]


def test_a_shard_that_fills_the_outbox_leaves_the_others_room() -> None:
    outbox = two_shards(80)
    outbox.extend(change("0a") for _ in range(200))
    for _ in range(500):
        outbox.append(change("1a"))
        outbox.logs[1].take(1)
        outbox.logs[1].acknowledge(0)
    outbox.extend(change("1a") for _ in range(10))
    assert [log.overflow.is_skipping for log in outbox.logs] == [True, False]
    assert outbox.pending == 90
    outbox.append(change("1a"))
    assert outbox.logs[1].overflow.is_skipping
    alone = Outbox(lambda _uid: 0, 1, max_items=80)
    alone.extend(change("0a") for _ in range(200))
    assert alone.pending == 80


def test_it_notifies_once_when_enough_is_queued() -> None:
    outbox, rung = two_shards(9), list[str]()
    outbox.notify_at(2, lambda: rung.append("two"))
    outbox.append(change("0a"))
    assert rung == []
    outbox.append(change("1a"))
    outbox.append(change("1a"))
    outbox.notify_at(3, lambda: rung.append("immediately"))
    assert rung == ["two", "immediately"]
    outbox.notify_at(4, lambda: rung.append("four"))
    outbox.notify_at(0, lambda: rung.append("never"))
    outbox.append(change("0a"))
    assert len(rung) == 2


def test_bytes_are_limited_too() -> None:
    outbox = Outbox(lambda _uid: 0, 1, max_items=100, max_bytes=2 * size_of(change("0a")))
    outbox.extend(change("0a") for _ in range(3))
    assert (outbox.pending, outbox.statistics().skipped_total) == (2, 1)
    outbox.logs[0].take(2)
    outbox.logs[0].acknowledge(0)
    assert outbox.statistics().pending_bytes == 0


@pytest.mark.parametrize("text", ["x" * 250, "é" * 120, "\U0001f600" + "x" * 246, "中" * 80])
def test_the_declared_size_counts_the_width_of_characters(text: str) -> None:
    each = change("0a")._replace(profile=Profile(meta=text, private=text, rooms=text))
    assert size_of(each) >= 3 * sys.getsizeof(text)


def test_the_declared_size_of_a_change_is_close_to_its_real_size() -> None:
    each = change("0a" * 20)
    texts = (each.uid, each.session)  # the empty text of the default device is shared
    numbers = (each.at, each.at_ms, each.last_seen_ms, each.idle_timeout_ms)
    assert size_of(each) == pytest.approx(sum(map(sys.getsizeof, (each, *texts, *numbers))), rel=0.1)


def test_the_reserve_of_a_shard_is_bounded_by_bytes_too() -> None:
    large = change("0a")._replace(profile=Profile(meta="x" * 500))
    outbox = Outbox(lambda uid: int(uid[0]), 2, max_items=1000, max_bytes=16 * size_of(large))
    outbox.extend([large] * 100)
    outbox.extend([large._replace(uid="1a")] * 100)
    assert [outbox.queued(shard) for shard in (0, 1)] == [16, 2]


def test_the_reserve_of_a_shard_is_free_again_when_redis_has_its_changes() -> None:
    each = change("0a")
    outbox = Outbox(lambda uid: int(uid[0]), 2, max_items=1000, max_bytes=16 * size_of(each))
    outbox.extend([each] * 100)
    for _ in range(10):
        outbox.extend([change("1a")] * 2)
        assert len(outbox.logs[1].take(2)) == 2
        outbox.logs[1].acknowledge(0)
