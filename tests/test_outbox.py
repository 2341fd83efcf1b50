"""The outbox: order, bound, skipping, waking."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from presence.changes import Change, Op
from presence.outbox import Gap, Outbox


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
    outbox.take(0, 2)
    assert outbox.held == 2
    outbox.release(2)
    assert outbox.held == 0


def test_a_full_outbox_skips_and_counts(outbox: Outbox) -> None:
    outbox.extend(change(f"0{i}", at_ms=i, at=float(i)) for i in range(10))
    assert outbox.queued(0) == 3
    assert outbox.begin_resync(0) == Gap(dropped=7, from_ms=3, to_ms=9, from_at=3.0)


def test_skipping_goes_on_when_there_is_room_again(outbox: Outbox) -> None:
    outbox.extend(change("0a") for _ in range(4))
    outbox.release(len(outbox.take(0, 3)))
    outbox.append(change("0late"))
    assert outbox.queued(0) == 0


def test_a_full_outbox_skips_in_every_shard(outbox: Outbox) -> None:
    outbox.extend(change("0a") for _ in range(4))
    outbox.release(len(outbox.take(0, 3)))
    outbox.append(change("1a"))
    assert outbox.is_skipping(1)
    assert outbox.queued(1) == 0


def test_a_resync_ends_the_skipping_of_its_shard_alone(outbox: Outbox) -> None:
    outbox.extend(change("0a") for _ in range(4))
    outbox.release(len(outbox.take(0, 3)))
    outbox.begin_resync(0)
    outbox.extend([change("0b"), change("1b")])
    assert (outbox.queued(0), outbox.queued(1)) == (1, 0)
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
    outbox.release(len(outbox.take(0, 2)))
    statistics = outbox.statistics()
    assert (statistics.held, statistics.queued, statistics.high_water) == (1, 1, 3)
    assert (statistics.appended_total, statistics.dropped_total) == (3, 2)
    assert (statistics.skipping_shards, statistics.max_items) == (2, 3)


async def test_wait_returns_at_once_when_there_is_enough(outbox: Outbox, autojump_clock: MockClock) -> None:
    outbox.append(change("0a"))
    with trio.fail_after(1):
        await outbox.wait(1)
    assert trio.current_time() == 0


async def test_wait_ends_with_the_change_that_makes_it_enough(outbox: Outbox, nursery: trio.Nursery) -> None:
    woken = trio.Event()

    async def waiter() -> None:
        await outbox.wait(2)
        woken.set()

    nursery.start_soon(waiter)
    await wait_all_tasks_blocked()
    outbox.append(change("0a"))
    await wait_all_tasks_blocked()
    assert not woken.is_set()
    outbox.append(change("1a"))
    await wait_all_tasks_blocked()
    assert woken.is_set()
