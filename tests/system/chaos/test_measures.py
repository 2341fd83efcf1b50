"""Made-up faults of a plan: what follows too late is noticed, what follows in time is not."""

import pytest

from loadtest.events import StreamEvent
from loadtest.servers import Setup
from presence.protocol import Code
from tests.system.chaos.faults import Injector
from tests.system.chaos.plan import CLUSTER_FAULTS, PLANS, ChaosFault, ChaosFaultKind
from tests.system.chaos.report import measure
from tests.system.chaos.truth import DeviceLogin, Trouble, User

SETUP = Setup(idle_timeout=3.0, lease=2.0, tick=0.5)  # dead after 7.5 s
BEGIN, END = 100.0, 110.0


def event(kind: str, code: Code, written_at: float, decided: float | None = None) -> StreamEvent:
    moment = written_at if decided is None else decided
    return StreamEvent("1-0", kind, "ann", "s1", code, 0, "", written_at, written_at, (moment, moment))


@pytest.mark.parametrize(
    ("kind", "cause", "settled_s", "broken"),
    [
        (ChaosFaultKind.KILL, event("offline", Code.NODE_DOWN, BEGIN + 7.0), None, ""),
        (ChaosFaultKind.KILL, event("offline", Code.NODE_DOWN, BEGIN + 8.0), None, "node_down 8.0 s"),
        (ChaosFaultKind.STOP_LONG, event("online", Code.RETURNED, END + 4.0), None, ""),
        (ChaosFaultKind.STOP_LONG, event("online", Code.RETURNED, END + 6.0), None, "back only 6.0 s"),
        (ChaosFaultKind.REDIS_STOP, event("online", Code.LOGIN, END + 4.0, BEGIN + 1.0), 4.0, ""),
        (
            ChaosFaultKind.REDIS_STOP,
            event("online", Code.LOGIN, END + 6.0, BEGIN + 1.0),
            4.0,
            "caught up only after 6.0",
        ),
        (ChaosFaultKind.REDIS_STOP, event("online", Code.LOGIN, END + 6.0, END + 5.9), 4.0, ""),
        (
            ChaosFaultKind.REDIS_STOP,
            event("online", Code.LOGIN, END + 6.0),
            6.0,
            "equal to the live sessions only",
        ),
        (ChaosFaultKind.FLUSH, event("online", Code.RETURNED, END + 6.0), 6.0, ""),
        (
            ChaosFaultKind.FLUSH,
            event("online", Code.RETURNED, END + 6.0),
            8.0,
            "equal to the live sessions only",
        ),
    ],
)
def test_what_comes_later_than_promised_is_noticed(
    kind: ChaosFaultKind, cause: StreamEvent, settled_s: float | None, broken: str
) -> None:
    user = User("ann")
    user.logins.append(DeviceLogin(0, False, 90.0, 90.1, "s1"))
    troubles = [Trouble(kind, 0, BEGIN, END)]
    row = measure(ChaosFault(0.0, kind, END - BEGIN), "done", troubles, [cause], [user], settled_s, SETUP)
    assert [broken in each for each in row.broken] == ([True] if broken else [])


def test_after_a_second_kill_the_rest_is_due_from_then_on() -> None:
    user = User("ann")
    user.logins.append(DeviceLogin(0, False, 90.0, 90.1, "s1"))
    troubles = [
        Trouble(ChaosFaultKind.SWEEPER, 0, BEGIN, END),
        Trouble(ChaosFaultKind.SWEEPER, 1, BEGIN + 5.0, END),
    ]
    late = event("offline", Code.NODE_DOWN, BEGIN + 12.0)
    row = measure(ChaosFault(0.0, ChaosFaultKind.SWEEPER, 7.5), "done", troubles, [late], [user], None, SETUP)
    assert "7.00 s after it began" in row.summary
    assert not row.broken


def test_who_was_at_another_node_is_not_counted() -> None:
    user = User("ann")
    user.logins.append(DeviceLogin(1, False, 90.0, 90.1, "s1"))
    down = event("offline", Code.NODE_DOWN, BEGIN + 50.0)
    row = measure(
        ChaosFault(0.0, ChaosFaultKind.KILL, 7.5),
        "done",
        [Trouble(ChaosFaultKind.KILL, 0, BEGIN, END)],
        [down],
        [user],
        None,
        SETUP,
    )
    assert not row.broken


def test_every_kind_of_a_plan_can_be_carried_out() -> None:
    for name, plan in PLANS.items():
        for kind in plan.kinds:
            assert (kind in CLUSTER_FAULTS) == (plan.replicas is not None), name
            assert kind in CLUSTER_FAULTS or Injector.supports(kind), kind


def test_every_kind_of_fault_is_in_a_plan_or_in_the_storms() -> None:
    assert {kind for plan in PLANS.values() for kind in plan.kinds} >= CLUSTER_FAULTS | {
        ChaosFaultKind.SWEEPER
    }


def test_no_fault_of_a_plan_lasts_longer_than_it_may() -> None:
    (storm,) = PLANS["stall"].storms(SETUP, 4.0)
    assert [fault.seconds for fault in storm] == [1.0, 4.0, 4.0, 4.0, 4.0]
