"""What a resync sends, in which order, and that nothing is made before it is asked for."""

import math
from collections.abc import Iterable, Iterator
from itertools import islice

from presence.changes import Change, Op
from presence.resync import PLANNED_A_CALL, Parted, Plan
from presence.store.batches import Item


def change(op: Op, uid: str, at: float = 0.0) -> Change:
    return Change(op, uid, "", f"s-{uid}", 2, at, 1000, 1000, 30_000)


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


def test_parts_are_in_order_and_whole_whoever_asks_first() -> None:
    uids = [f"{number % 3}-{number}" for number in range(30)]
    parted = Parted(iter(uids), lambda uid: int(uid[0]), 4)
    readers = [parted.of(shard) for shard in range(4)]
    begun = [*islice(readers[2], 3)]
    rest = [[*reader] for reader in readers]
    assert rest[0] == uids[0::3]
    assert rest[1] == uids[1::3]
    assert begun + rest[2] == uids[2::3]
    assert rest[3] == []


def test_a_part_is_looked_for_no_further_than_it_is_asked_for() -> None:
    found = iter(range(100))
    parted = Parted(found, lambda number: number % 2, 2)
    assert len(list(islice(parted.of(1), 5))) == 5
    assert len(list(found)) == 90


def test_a_part_is_there_once() -> None:
    parted: Parted[str] = Parted(iter([]), int, 2)
    parted.of(1)
    assert (parted.has(0), parted.has(1)) == (True, False)


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
