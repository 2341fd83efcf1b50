"""Changes that a full outbox skips, until everything before them is written."""

import math

from presence.core.changes import Change, Op
from presence.outbox.overflow import RESYNC_PAUSE_S, Overflow, SkippedChanges


def change(at: float, at_ms: int) -> Change:
    return Change(Op.LOGIN, "u", "", "s", 1, at, at_ms, at_ms, 30_000)


def skipped(*changes: Change) -> Overflow:
    overflow = Overflow()
    for each in changes:
        overflow.skip(each)
    return overflow


def test_skipped_changes_are_counted_with_their_earliest_and_latest_time() -> None:
    overflow = skipped(change(5.0, 50), change(3.0, 70), change(4.0, 40))
    assert overflow.skipped_from == 3.0
    assert overflow.open(0.0, all_written=True) == SkippedChanges(3, 40, 70, 3.0)


def test_while_others_are_pending_an_opening_leaves_them_to_a_later_one() -> None:
    overflow = skipped(change(5.0, 50))
    assert overflow.open(10.0, all_written=False) is None
    assert overflow.is_skipping
    assert overflow.resync_at == 10.0 + RESYNC_PAUSE_S


def test_every_opening_carries_them_until_one_is_accepted() -> None:
    overflow = skipped(change(5.0, 50))
    first = overflow.open(10.0, all_written=True)
    assert (overflow.is_skipping, overflow.resync_at, overflow.skipped_from) == (False, math.inf, math.inf)
    overflow.skip(change(6.0, 60))
    assert overflow.open(11.0, all_written=False) == first
    both = overflow.open(12.0, all_written=True)
    assert both == SkippedChanges(2, 50, 60, 5.0)
    assert overflow.opening_accepted() == both
    assert overflow.open(13.0, all_written=True) is None
