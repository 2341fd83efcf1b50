"""How long a node waits for others, in time by hand."""

import math
from collections.abc import Callable

import pytest

from presence.settling import RETURN_SETTLE_S, SETTLE_S, Settling
from presence.store.replies import Trace

BEFORE, REGISTERING, REGISTERED = Trace(3, True, False), Trace(4, False, False), Trace(4, True, False)
FENCED = Trace(3, True, True)
Step = Callable[[Settling], object]


def resync(at: float) -> Step:
    """It begins anew for its own sake."""
    return lambda settling: settling.begin(at, {"b": BEFORE}, first=False, concerns_all=False)


def loss(at: float, history: str = "", **others: Trace) -> Step:
    """It begins anew because Redis has lost data, or goes on with another history."""
    return lambda settling: settling.begin(at, others, first=False, concerns_all=True, history=history)


def back(at: float) -> Step:
    """Redis answers again after an outage."""
    return lambda settling: settling.returned(at)


def see(at: float, **others: Trace) -> Step:
    """A probe finds all well here, and this of the others."""

    def saw(settling: Settling) -> None:
        settling.others = others
        settling.saw(at)

    return saw


@pytest.mark.parametrize(
    ("steps", "at"),
    [
        ([resync(5)], 5 + SETTLE_S),
        ([resync(5), see(6, b=REGISTERED)], 5 + SETTLE_S),  # its own is waited out
        ([resync(5), resync(12)], 5 + SETTLE_S),  # another one during a wait does not begin it anew
        ([resync(5), resync(12), resync(16)], 16 + SETTLE_S),
        ([resync(5), loss(12)], 12 + SETTLE_S),  # a loss does
        ([loss(5)], 5 + SETTLE_S),  # those are waited for whom Redis has forgotten
        ([loss(5), see(6, b=BEFORE)], 5 + SETTLE_S),
        ([loss(5), see(6, b=REGISTERING)], 5 + SETTLE_S),
        ([loss(5), see(6, b=FENCED)], 5 + SETTLE_S),
        ([loss(5), see(6, b=REGISTERED)], 6),  # the wait is over when all have registered anew
        # After a restart only what was registered since counts: Redis may have gone back to a later moment.
        ([loss(5, "new"), see(6, b=Trace(7, True, False, "new"))], 6),
        ([loss(5, "new"), see(6, b=Trace(7, True, False, "old"))], 5 + SETTLE_S),
        ([back(50)], 50 + RETURN_SETTLE_S),
        ([back(50), see(51, b=REGISTERED)], 50 + RETURN_SETTLE_S),  # that does not say that nothing waits
        ([back(50), loss(50.1, b=REGISTERED), see(50.5, b=REGISTERED)], 50 + RETURN_SETTLE_S),
        ([see(2), loss(5)], 5 + RETURN_SETTLE_S),  # who was swept may be on its way back
    ],
)
def test_where_a_peer_was_seen_at_work(steps: list[Step], at: float) -> None:
    settling = Settling(lambda node: node != "x")
    for step in [see(1, b=BEFORE), *steps]:
        step(settling)
    assert settling.at == at


@pytest.mark.parametrize("step", [loss(5), loss(5, x=BEFORE), loss(5, b=FENCED), back(50)])
def test_with_nobody_at_work_it_does_not_wait(step: Step) -> None:
    settling = Settling(lambda node: node != "x")
    step(settling)
    assert settling.at == -math.inf


def test_who_is_new_waits_for_nobody() -> None:
    settling = Settling(lambda _node: True)
    settling.begin(1.0, {"b": BEFORE}, first=True, concerns_all=False)
    assert settling.at == -math.inf


def test_a_peer_that_only_holds_a_lease_is_waited_for_though_the_lease_was_lost_with_all_data() -> None:
    leases = ["c"]
    settling = Settling(lambda _node: True, lambda: leases)
    settling.saw(1.0)
    leases.clear()
    loss(5)(settling)
    assert settling.at == 5 + SETTLE_S
    see(6, c=REGISTERED)(settling)
    assert settling.at == 6
    settling.swept("c")
    assert settling.known == set()
