"""What waits while a node may not judge others yet, and what announces it."""

from collections.abc import Iterator

from presence.backlog import MAX_SCANNED_PER_CALL, Backlog
from presence.changes import Change, Op
from presence.outbox import Outbox


def change(op: Op, uid: str, session: str) -> Change:
    return Change(op, uid, "", session, 2, 0.0, 1000, 1000, 30_000)


def taken(outbox: Outbox, backlog: Backlog, *, settled: bool) -> list[tuple[Op, str]]:
    items = backlog.take(100, settled=settled, from_outbox=True)
    return [(each.change.op, each.change.session) for each in items]


def backlog_of(*changes: Change) -> tuple[Outbox, Backlog]:
    outbox = Outbox(lambda uid: 0, 1, max_items=100)
    outbox.extend(changes)
    return outbox, Backlog(0, outbox, lambda shard: ())


def planned(backlog: Backlog) -> int:
    """Plan until something can be taken; return how many calls that took."""
    calls = 0
    while backlog.is_planning:
        backlog.go_on_planning()
        calls += 1
    return calls


def test_a_login_that_waits_behind_an_end_is_announced() -> None:
    outbox, backlog = backlog_of(change(Op.END, "ada", "a"), change(Op.LOGIN, "ada", "b"))
    assert taken(outbox, backlog, settled=False) == [(Op.HOLD, "b")]
    assert backlog.has_marks
    backlog.release()
    assert taken(outbox, backlog, settled=True) == [(Op.END, "a"), (Op.LOGIN, "b")]


def test_an_update_that_waits_behind_an_end_announces_nobody() -> None:
    outbox, backlog = backlog_of(change(Op.END, "ada", "a"), change(Op.UPDATE, "ada", "b"))
    assert taken(outbox, backlog, settled=False) == []
    assert not backlog.has_marks
    backlog.release()
    assert taken(outbox, backlog, settled=True) == [(Op.END, "a"), (Op.UPDATE, "b")]


def test_an_update_waits_for_nobody_elses_end() -> None:
    outbox, backlog = backlog_of(change(Op.END, "ada", "a"), change(Op.UPDATE, "bob", "b"))
    assert taken(outbox, backlog, settled=False) == [(Op.UPDATE, "b")]


def test_an_update_that_a_registration_covers_waits_no_more() -> None:
    outbox, backlog = backlog_of(change(Op.UPDATE, "ada", "a"), change(Op.LOGIN, "bob", "b"))
    backlog.begin((), lost=False)
    planned(backlog)
    assert taken(outbox, backlog, settled=True) == [(Op.LOGIN, "b")]
    assert outbox.held == 1


def test_the_end_of_an_unheard_session_tells_what_redis_lost_though_an_update_went_before() -> None:
    outbox = Outbox(lambda uid: 0, 1, max_items=100)
    backlog = Backlog(0, outbox, lambda shard: (change(Op.UNHEARD, "ada", "a"),))
    backlog.begin((), lost=True)
    planned(backlog)
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
