"""A shard's queued changes are sent in slices, and a resync makes nothing before it is needed.

The order, and which changes are held back, are tested in `tests/simulation`.
"""

import math
from collections.abc import Iterator
from itertools import islice

from presence.core.changes import Change, Op
from presence.outbox.backlog import MAX_PLANNED_PER_CALL, MAX_SCANNED_PER_CALL, Backlog, ByShard, Plan
from presence.outbox.queue import Outbox
from presence.outbox.steps import Item


def change(op: Op, uid: str, session: str = "", at: float = 0.0) -> Change:
    return Change(op, uid, "", session or f"s-{uid}", 2, at, 1000, 1000, 30_000)


def taken(outbox: Outbox, backlog: Backlog, *, settled: bool) -> list[tuple[Op, str]]:
    items = backlog.next_items(100, settled=settled, from_outbox=True)
    return [(each.change.op, each.change.session) for each in items]


def test_the_end_of_a_stale_session_restores_what_redis_lost_even_after_an_update() -> None:
    outbox = Outbox(lambda uid: 0, 1, max_items=100)
    backlog = Backlog(0, outbox, lambda shard: (change(Op.STALE, "ada", "a"),))
    backlog.begin_resync((), lost=True)
    while backlog.is_planning:
        backlog.continue_planning()
    assert taken(outbox, backlog, settled=True) == []
    outbox.extend([change(Op.UPDATE, "ada", "a"), change(Op.END, "ada", "a")])
    items = backlog.next_items(100, settled=True, from_outbox=True)
    assert [(each.change.op, each.restores) for each in items] == [(Op.UPDATE, False), (Op.END, True)]


def test_a_resync_scans_the_sessions_in_slices() -> None:
    outbox = Outbox(lambda uid: 0, 1, max_items=10_000)
    logins = [change(Op.LOGIN, f"u{n}", f"s{n}") for n in range(5 * MAX_SCANNED_PER_CALL)]
    outbox.extend(logins)
    scanned = []

    def live(_shard: int) -> Iterator[Change]:
        for each in [*logins, change(Op.REGISTER, "old", "s")]:
            scanned.append(each)
            yield each._replace(op=Op.REGISTER)

    backlog = Backlog(0, outbox, live)
    backlog.begin_resync((), lost=False)
    most = 0
    while backlog.is_planning:
        before = len(scanned)
        backlog.continue_planning()
        most = max(most, len(scanned) - before)
    assert most == MAX_SCANNED_PER_CALL
    assert taken(outbox, backlog, settled=True)[:2] == [(Op.REGISTER, "s"), (Op.LOGIN, "s0")]


def test_ends_are_held_back_in_slices_and_a_login_behind_them_is_sent() -> None:
    outbox = Outbox(lambda uid: 0, 1, max_items=10_000)
    outbox.extend(change(Op.END, f"u{n}", f"s{n}") for n in range(3 * MAX_SCANNED_PER_CALL))
    outbox.extend([change(Op.LOGIN, "ada", "a")])
    backlog = Backlog(0, outbox, lambda shard: ())
    for _ in range(3):
        assert taken(outbox, backlog, settled=False) == []
        assert backlog.is_planning, "it has to be called again soon"
        backlog.continue_planning()
    assert taken(outbox, backlog, settled=False) == [(Op.LOGIN, "a")]
    assert not backlog.is_planning


def test_items_are_split_by_shard_once_and_read_no_further_than_needed() -> None:
    found = iter(range(100))
    parted = ByShard(found, lambda number: number % 2, 2)
    assert len(list(islice(parted.items_of(1), 5))) == 5
    assert len(list(found)) == 90
    assert (parted.is_untaken(0), parted.is_untaken(1)) == (True, False)


def test_a_pending_update_is_covered_by_a_registration() -> None:
    logged_in = ((Op.LOGIN, "came"), (Op.UPDATE, "came"))
    ops = ((Op.UPDATE, "stands"), *logged_in, (Op.UPDATE, "gone"), (Op.END, "gone"))
    waiting = [Item(change(*each)) for each in ops]
    live = [change(Op.REGISTER, "stands"), change(Op.REGISTER, "came")]
    planned = Plan(waiting, lambda _limit: [], live, lost=False, skipped_from=math.inf)
    assert planned.work() == (True, [item.change for item in (waiting[3], waiting[0])])
    assert [each.change.uid for each in planned.registrations() if each] == ["stands"]
    assert [(each.change.op, each.change.uid) for each in planned.replayed] == [*logged_in, ops[-1]]


def test_a_plan_is_made_in_slices_and_loses_nothing_if_it_is_abandoned() -> None:
    """Planned in one go, the changes of a long outage would block the loop for a third of a second."""
    waiting = [Item(change(Op.LOGIN, f"w{n}")) for n in range(MAX_PLANNED_PER_CALL)]
    queued = [Item(change(Op.END, f"q{n}")) for n in range(3 * MAX_PLANNED_PER_CALL)]
    asked: list[int] = []
    rest = iter(queued)

    def more(limit: int) -> list[Item]:
        asked.append(limit)
        return [*islice(rest, limit)]

    planned = Plan(waiting, more, (), lost=False, skipped_from=math.inf)
    calls, taken = 0, [*waiting]
    while not planned.work()[0]:
        calls += 1
        taken = [*waiting, *queued[: sum(asked)]]
        assert planned.unsent == taken, "a new plan would find all of it"
    assert calls >= 2 * (len(waiting) + len(queued)) // MAX_PLANNED_PER_CALL - 1
    assert max(asked) <= MAX_PLANNED_PER_CALL
    assert [*planned.replayed] == waiting + queued
