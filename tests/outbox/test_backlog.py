"""A shard's queued changes are sent in slices, and a resync makes nothing before it is needed.

The order, and which changes are held back, are tested in `tests/simulation`.
"""

import math
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from presence.core.changes import Change, Op
from presence.outbox.backlog import MAX_PLANNED_PER_CALL, MAX_SCANNED_PER_CALL, Backlog, ByShard, Plan
from presence.outbox.peer_barrier import RECOVERY_SETTLE_TIMEOUT_S, SETTLE_TIMEOUT_S, PeerBarrier
from presence.outbox.queue import Outbox
from presence.outbox.replies import PeerTrace
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


BEFORE, REGISTERING, REGISTERED = (
    PeerTrace(3, True, False),
    PeerTrace(4, False, False),
    PeerTrace(4, True, False),
)
FENCED = PeerTrace(3, True, True)
Step = Callable[[PeerBarrier], object]


def resync(at: float) -> Step:
    """It resyncs on its own account."""
    return lambda barrier: barrier.start(at, {"b": BEFORE}, first=False, concerns_all=False)


def loss(at: float, replication_id: str = "", **traces: PeerTrace) -> Step:
    """It resyncs because Redis has lost data, or continues with another replication id."""
    return lambda barrier: barrier.start(
        at, traces, first=False, concerns_all=True, replication_id=replication_id
    )


def back(at: float) -> Step:
    """Redis answers again after an outage."""
    return lambda barrier: barrier.redis_recovered(at)


def see(at: float, **traces: PeerTrace) -> Step:
    """A probe finds no problem here, and these traces of peers."""

    def saw(barrier: PeerBarrier) -> None:
        barrier.traces = traces
        barrier.observe(at)

    return saw


@pytest.mark.parametrize(
    ("steps", "at"),
    [
        ([resync(5)], 5 + SETTLE_TIMEOUT_S),
        ([resync(5), see(6, b=REGISTERED)], 5 + SETTLE_TIMEOUT_S),  # its own wait runs out
        ([resync(5), resync(12)], 5 + SETTLE_TIMEOUT_S),  # another one during a wait does not restart it
        ([resync(5), resync(12), resync(16)], 16 + SETTLE_TIMEOUT_S),
        ([resync(5), loss(12)], 12 + SETTLE_TIMEOUT_S),  # a loss does
        ([loss(5)], 5 + SETTLE_TIMEOUT_S),  # peers that Redis has forgotten are waited for
        ([loss(5), see(6, b=BEFORE)], 5 + SETTLE_TIMEOUT_S),
        ([loss(5), see(6, b=REGISTERING)], 5 + SETTLE_TIMEOUT_S),
        ([loss(5), see(6, b=FENCED)], 5 + SETTLE_TIMEOUT_S),
        ([loss(5), see(6, b=REGISTERED)], 6),  # the wait ends when all have registered again
        # After a restart only later registrations count: Redis may have gone back to a later state.
        ([loss(5, "new"), see(6, b=PeerTrace(7, True, False, "new"))], 6),
        ([loss(5, "new"), see(6, b=PeerTrace(7, True, False, "old"))], 5 + SETTLE_TIMEOUT_S),
        ([back(50)], 50 + RECOVERY_SETTLE_TIMEOUT_S),
        (
            [back(50), see(51, b=REGISTERED)],
            50 + RECOVERY_SETTLE_TIMEOUT_S,
        ),  # that does not mean that nothing is queued
        ([back(50), loss(50.1, b=REGISTERED), see(50.5, b=REGISTERED)], 50 + RECOVERY_SETTLE_TIMEOUT_S),
        ([see(2), loss(5)], 5 + RECOVERY_SETTLE_TIMEOUT_S),  # users who were swept may be reconnecting
    ],
)
def test_with_a_live_peer(steps: list[Step], at: float) -> None:
    barrier = PeerBarrier(lambda node: node != "x")
    for step in [see(1, b=BEFORE), *steps]:
        step(barrier)
    assert barrier.open_at == at


@pytest.mark.parametrize("step", [loss(5), loss(5, x=BEFORE), loss(5, b=FENCED), back(50)])
def test_without_live_peers_there_is_no_wait(step: Step) -> None:
    barrier = PeerBarrier(lambda node: node != "x")
    step(barrier)
    assert barrier.open_at == -math.inf


def test_the_first_generation_does_not_wait() -> None:
    barrier = PeerBarrier(lambda _node: True)
    barrier.start(1.0, {"b": BEFORE}, first=True, concerns_all=False)
    assert barrier.open_at == -math.inf


def test_a_peer_with_only_a_lease_is_waited_for_even_if_the_lease_was_lost() -> None:
    leases = ["c"]
    barrier = PeerBarrier(lambda _node: True, lambda: leases)
    barrier.observe(1.0)
    leases.clear()
    loss(5)(barrier)
    assert barrier.open_at == 5 + SETTLE_TIMEOUT_S
    see(6, c=REGISTERED)(barrier)
    assert barrier.open_at == 6
    barrier.peer_gone("c")
    assert barrier.recent_lease_holders == set()
