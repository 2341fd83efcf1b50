"""The order in which a shard's pending changes are sent: held back, cut, put back; a resync in slices.

The order is also tested in `tests/simulation`.
"""

from collections.abc import Iterable, Iterator

import pytest

from presence.core.changes import Change, Op
from presence.outbox.backlog import MAX_PLANNED_PER_CALL, MAX_SCANNED_PER_CALL, Backlog
from presence.outbox.queue import Outbox
from presence.outbox.steps import Item
from presence.protocol.constants import Code


def change(op: Op, uid: str, session: str = "", at: float = 0.0) -> Change:
    return Change(op, uid, "", session or f"s-{uid}", 2, at, 1000, 1000, 30_000)


class Shard:
    """The backlog of a shard, with its outbox."""

    def __init__(self, changes: Iterable[Change] = (), live: Iterable[Change] = ()) -> None:
        self.outbox = Outbox(lambda uid: 0, 1, max_items=100_000)
        self.live = live
        self.backlog = Backlog(0, self.outbox.logs[0], lambda _shard: self.live)
        self.outbox.extend(changes)

    def resync(self, *, lost: bool = False) -> int:
        """Resync and plan it; return in how many slices."""
        self.backlog.begin_resync(lost=lost)
        slices = 0
        while self.backlog.needs_another_slice:
            self.backlog.begin_slice()
            slices += 1
        return slices

    def items(self, limit: int = 100, *, with_ends: bool = True, with_queued: bool = True) -> list[Item]:
        return self.backlog.take(limit, with_ends=with_ends, with_queued=with_queued)

    def taken(self, limit: int = 100, *, with_ends: bool = True) -> list[tuple[Op, str]]:
        return [(each.change.op, each.change.session) for each in self.items(limit, with_ends=with_ends)]

    def sent(self, limit: int = 100, *, with_ends: bool = True) -> list[tuple[Op, str]]:
        """Take items and acknowledge them."""
        taken = self.taken(limit, with_ends=with_ends)
        self.backlog.acknowledge()
        return taken

    @property
    def pending(self) -> list[Change]:
        return self.outbox.logs[0].changes


def test_the_end_of_a_stale_session_restores_what_redis_lost_even_after_an_update() -> None:
    shard = Shard(live=[change(Op.STALE, "ada", "a")])
    shard.resync(lost=True)
    assert shard.items() == []
    shard.outbox.extend([change(Op.UPDATE, "ada", "a"), change(Op.END, "ada", "a")])
    items = shard.items()
    assert [(each.change.op, each.restores) for each in items] == [(Op.UPDATE, False), (Op.END, True)]
    shard.backlog.cut(0)
    assert shard.items() == items, "the same when it is taken again"


def test_a_resync_scans_the_sessions_in_slices() -> None:
    logins = [change(Op.LOGIN, f"u{n}", f"s{n}") for n in range(5 * MAX_SCANNED_PER_CALL)]
    scanned = []

    def live() -> Iterator[Change]:
        for each in [*logins, change(Op.REGISTER, "old", "s")]:
            scanned.append(each)
            yield each._replace(op=Op.REGISTER)

    shard = Shard(logins, live())
    shard.backlog.begin_resync(lost=False)
    most = 0
    while shard.backlog.needs_another_slice:
        before = len(scanned)
        shard.backlog.begin_slice()
        most = max(most, len(scanned) - before)
    assert most == MAX_SCANNED_PER_CALL
    assert shard.taken()[:2] == [(Op.REGISTER, "s"), (Op.LOGIN, "s0")]


def test_ends_are_held_back_in_slices_and_a_login_behind_them_is_sent() -> None:
    ends = [change(Op.END, f"u{n}", f"s{n}") for n in range(3 * MAX_SCANNED_PER_CALL)]
    shard = Shard([*ends, change(Op.LOGIN, "ada", "a")])
    for _ in range(3):
        assert shard.taken(with_ends=False) == []
        assert shard.backlog.needs_another_slice, "it has to be called again soon"
        shard.backlog.begin_slice()
    assert shard.sent(with_ends=False) == [(Op.LOGIN, "a")]
    assert not shard.backlog.needs_another_slice
    assert shard.pending == ends


def test_a_resync_that_begins_again_registers_each_session_once() -> None:
    shard = Shard(live=[change(Op.REGISTER, "ada", "a"), change(Op.REGISTER, "bob", "b")])
    shard.resync()
    assert shard.taken(1) == [(Op.REGISTER, "a")]
    shard.resync()
    assert shard.taken() == [(Op.REGISTER, "a"), (Op.REGISTER, "b")]
    assert not shard.backlog.is_replaying


def test_a_pending_update_is_covered_by_a_registration() -> None:
    logged_in = ((Op.LOGIN, "came"), (Op.UPDATE, "came"))
    ops = ((Op.UPDATE, "stands"), *logged_in, (Op.UPDATE, "gone"), (Op.END, "gone"))
    shard = Shard(
        (change(op, name, name) for op, name in ops),
        [change(Op.REGISTER, "stands", "stands"), change(Op.REGISTER, "came", "came")],
    )
    shard.resync()
    assert (shard.outbox.pending, shard.outbox.queued_total) == (3, 3)
    assert shard.taken() == [(Op.REGISTER, "stands"), *logged_in, ops[-1]]


def test_a_pending_update_of_what_the_user_hides_follows_the_registration() -> None:
    update = change(Op.UPDATE, "ada", "a")._replace(privacy="-i")
    shard = Shard([update], [change(Op.REGISTER, "ada", "a")])
    shard.resync()
    assert shard.taken() == [(Op.REGISTER, "a"), (Op.UPDATE, "a")]


def test_a_plan_is_made_in_slices_and_loses_nothing_if_it_is_abandoned() -> None:
    """Planned in one go, the changes of a long outage would block the loop for a third of a second."""
    changes = [change(Op.LOGIN, f"w{n}") for n in range(MAX_PLANNED_PER_CALL)]
    changes += [change(Op.END, f"q{n}") for n in range(3 * MAX_PLANNED_PER_CALL)]
    shard = Shard(changes)
    shard.taken()
    for planned in range(5):
        shard.backlog.begin_resync(lost=True)
        for _ in range(planned):
            shard.backlog.begin_slice()
        assert shard.pending == changes, "a new plan would find all of it"
    assert shard.resync() >= len(changes) // MAX_PLANNED_PER_CALL
    assert [each.change for each in shard.items(100_000)] == changes


UPDATE, HELD_LOGIN = (Op.UPDATE, "ada"), (Op.LOGIN, "ada-2")
HELD = [(Op.END, "ada"), HELD_LOGIN]


def with_held() -> Shard:
    """A login of Bob behind changes of Ada that are held back, and one of Cy."""
    shard = Shard([change(UPDATE[0], "ada", UPDATE[1])])
    shard.outbox.extend(change(op, "ada", session) for op, session in HELD)
    shard.outbox.extend([change(Op.LOGIN, "bob", "bob"), change(Op.LOGIN, "cy", "cy")])
    return shard


def test_a_login_behind_a_held_end_is_announced_and_stays() -> None:
    shard = with_held()
    assert shard.sent(3, with_ends=False) == [UPDATE, (Op.PENDING_LOGIN, "ada-2"), (Op.LOGIN, "bob")]
    assert shard.backlog.has_held_changes
    assert [each.session for each in shard.pending] == ["ada", "ada-2", "cy"]
    assert shard.outbox.queued_total == 1


def test_held_changes_come_first_once_the_gate_is_open() -> None:
    shard = with_held()
    shard.sent(3, with_ends=False)
    assert [(each.change.op, each.change.session) for each in shard.items(with_queued=False)] == HELD
    assert not shard.backlog.has_held_changes
    shard.backlog.acknowledge()
    assert shard.sent() == [(Op.LOGIN, "cy")]
    assert shard.backlog.is_empty


@pytest.mark.parametrize("with_ends", [True, False])
@pytest.mark.parametrize("fitting", range(5))
def test_what_does_not_fit_comes_next_and_in_order(fitting: int, with_ends: bool) -> None:
    """Two registrations, then changes of which some are held back."""
    live = [change(Op.REGISTER, "dee", "dee"), change(Op.REGISTER, "eve", "eve")]

    def all_sent(*, cut: bool) -> list[tuple[Op, str]]:
        shard = with_held()
        shard.live = live
        shard.resync()
        sent = shard.taken(5, with_ends=with_ends)
        assert len(sent) == 5
        if cut:
            shard.backlog.cut(fitting)
            sent = sent[:fitting]
            assert shard.backlog.is_replaying
        shard.backlog.acknowledge()
        while more := shard.sent(2, with_ends=with_ends):
            sent += more
        held_count = 0 if with_ends else 2
        assert shard.backlog.has_held_changes == (not with_ends)
        assert len(shard.pending) == held_count
        return sent

    assert all_sent(cut=True) == all_sent(cut=False)


def test_a_change_before_a_held_end_is_not_held_when_it_is_taken_again() -> None:
    shard = Shard([change(Op.LOGIN, "ada", "ada"), change(Op.END, "ada", "ada")])
    assert shard.taken(with_ends=False) == [(Op.LOGIN, "ada")]
    shard.backlog.cut(0)
    assert not shard.backlog.has_held_changes
    assert shard.taken(with_ends=False) == [(Op.LOGIN, "ada")]


@pytest.mark.parametrize("with_ends", [True, False])
def test_a_resync_puts_back_what_is_in_flight_and_what_is_held(with_ends: bool) -> None:
    shard = with_held()
    before = [*shard.pending]
    shard.sent(1, with_ends=with_ends)
    shard.taken(2, with_ends=with_ends)
    shard.resync()
    assert shard.pending == before[1:], "all that was not acknowledged, in order"
    assert not shard.backlog.has_held_changes
    assert [each.change for each in shard.items()] == before[1:]


def test_the_last_of_the_ends_that_redis_forgot_restores() -> None:
    ends = [change(Op.END, "ada", "s1"), change(Op.END, "ada", "s2"), change(Op.END, "bob", "b")]
    replaced = change(Op.END, "ada", "s3")._replace(code=Code.REPLACED)
    came = [change(Op.LOGIN, "cy", "c"), change(Op.END, "cy", "c")]
    shard = Shard([*ends, replaced, *came])
    shard.resync(lost=True)
    assert [each.change.session for each in shard.items() if each.restores] == ["s2", "b"]
    shard.resync(lost=False)
    assert [each.change.session for each in shard.items() if each.restores] == ["s2", "b"], "as before"


def test_sessions_that_logged_in_after_a_skipped_change_are_left_to_the_next_resync() -> None:
    shard = Shard(live=[change(Op.REGISTER, "old", "old", 1.0), change(Op.REGISTER, "new", "new", 3.0)])
    shard.outbox.logs[0].overflow.skip(change(Op.LOGIN, "skipped", at=2.0))
    shard.resync()
    assert shard.taken() == [(Op.REGISTER, "old")]
