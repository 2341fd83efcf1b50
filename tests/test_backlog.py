"""What waits for a shard goes in slices, and a resync makes nothing before it is asked for.

In which order, and what is held back, is seen in `tests/simulation`.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import islice

from presence.backlog import MAX_SCANNED_PER_CALL, PLANNED_A_CALL, Backlog, Parted, Plan
from presence.changes import Change, Op
from presence.outbox import Outbox
from presence.store.batches import Item


def change(op: Op, uid: str, session: str = "", at: float = 0.0) -> Change:
    return Change(op, uid, "", session or f"s-{uid}", 2, at, 1000, 1000, 30_000)


def taken(outbox: Outbox, backlog: Backlog, *, settled: bool) -> list[tuple[Op, str]]:
    items = backlog.take(100, settled=settled, from_outbox=True)
    return [(each.change.op, each.change.session) for each in items]


def test_the_end_of_an_unheard_session_tells_what_redis_lost_though_an_update_went_before() -> None:
    outbox = Outbox(lambda uid: 0, 1, max_items=100)
    backlog = Backlog(0, outbox, lambda shard: (change(Op.UNHEARD, "ada", "a"),))
    backlog.begin((), lost=True)
    while backlog.is_planning:
        backlog.go_on_planning()
    assert taken(outbox, backlog, settled=True) == []
    outbox.extend([change(Op.UPDATE, "ada", "a"), change(Op.END, "ada", "a")])
    items = backlog.take(100, settled=True, from_outbox=True)
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
    backlog.begin((), lost=False)
    most = 0
    while backlog.is_planning:
        before = len(scanned)
        backlog.go_on_planning()
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
        assert backlog.is_planning, "it is to be called again before long"
        backlog.go_on_planning()
    assert taken(outbox, backlog, settled=False) == [(Op.LOGIN, "a")]
    assert not backlog.is_planning


def counted(uids: list[str], made: list[str]) -> Iterator[Change]:
    for uid in uids:
        made.append(uid)
        yield change(Op.REGISTER, uid)


def plan(
    waiting: list[Item],
    live: Iterable[Change] = (),
    queued: Iterable[Item] = (),
    *,
    lost: bool = False,
    skipped_from: float = math.inf,
) -> Plan:
    rest = iter(queued)
    return Plan(waiting, lambda limit: [*islice(rest, limit)], live, lost=lost, skipped_from=skipped_from)


def test_a_part_is_there_once() -> None:
    parted: Parted[str] = Parted(iter([]), int, 2)
    parted.of(1)
    assert (parted.has(0), parted.has(1)) == (True, False)


def test_a_part_is_looked_for_no_further_than_it_is_asked_for() -> None:
    found = iter(range(100))
    parted = Parted(found, lambda number: number % 2, 2)
    assert len(list(islice(parted.of(1), 5))) == 5
    assert len(list(found)) == 90


def test_a_plan_makes_the_standing_sessions_as_they_are_asked_for() -> None:
    made: list[str] = []
    waiting = [Item(change(Op.LOGIN, "c")), Item(change(Op.END, "gone"))]
    planned = plan(waiting, counted(list("abcd"), made))
    assert planned.work() == (True, [])
    assert made == []
    assert [(each.change.uid, each.snapshot) for each in planned.standing() if each] == [
        ("a", True),
        ("b", True),
        ("d", True),
    ], "c waits"
    assert [*planned.replayed] == waiting


def test_who_came_after_the_first_skipped_change_is_left_to_the_next_resync() -> None:
    live = [change(Op.REGISTER, "old", at=1.0), change(Op.REGISTER, "new", at=5.0)]
    planned = plan([], live, skipped_from=5.0)
    planned.work()
    assert [each.change.uid for each in planned.standing() if each] == ["old"]


def test_an_update_that_waited_is_no_arrival_and_a_registration_takes_its_place() -> None:
    waiting = [
        Item(change(Op.UPDATE, "stands")),
        Item(change(Op.LOGIN, "came")),
        Item(change(Op.UPDATE, "came")),
        Item(change(Op.UPDATE, "gone")),
        Item(change(Op.END, "gone")),
    ]
    live = [change(Op.REGISTER, "stands"), change(Op.REGISTER, "came")]
    planned = plan(waiting, live)
    assert planned.work() == (True, [item.change for item in (waiting[3], waiting[0])])
    assert [each.change.uid for each in planned.standing() if each] == ["stands"]
    assert [(each.change.op, each.change.uid) for each in planned.replayed] == [
        (Op.LOGIN, "came"),
        (Op.UPDATE, "came"),
        (Op.END, "gone"),
    ]


def test_a_plan_is_made_a_slice_at_a_time_and_loses_nothing_if_it_is_given_up() -> None:
    """Planned in one go, the changes of a long outage would stop the loop for a third of a second."""
    waiting = [Item(change(Op.LOGIN, f"w{n}")) for n in range(PLANNED_A_CALL)]
    queued = [Item(change(Op.END, f"q{n}")) for n in range(3 * PLANNED_A_CALL)]
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
        assert planned.unsent == taken, "whoever begins anew finds all of it"
    assert calls >= 2 * (len(waiting) + len(queued)) // PLANNED_A_CALL - 1
    assert max(asked) <= PLANNED_A_CALL
    assert [*planned.replayed] == waiting + queued
