"""How long a node waits for others, in time by hand."""

import pytest

from presence.settling import RETURN_SETTLE_S, SETTLE_S, Settling
from presence.store.replies import Trace

BEFORE, REGISTERING, REGISTERED = Trace(3, True, False), Trace(4, False, False), Trace(4, True, False)
FENCED = Trace(3, True, True)


@pytest.fixture
def settling() -> Settling:
    """One that has seen peer `b` at work; `x` is known to be dead."""
    settling = Settling(lambda node: node != "x")
    settling.others = {"b": BEFORE}
    settling.saw(1.0)
    return settling


def test_who_is_new_waits_for_nobody() -> None:
    settling = Settling(lambda _node: True)
    settling.begin(1.0, {"b": BEFORE}, first=True, concerns_all=False)
    assert settling.at < 1.0


def test_after_a_resync_it_waits_for_peers(settling: Settling) -> None:
    settling.begin(5.0, {"b": BEFORE}, first=False, concerns_all=False)
    assert settling.at == 5.0 + SETTLE_S


@pytest.mark.parametrize("others", [{}, {"x": BEFORE}, {"b": FENCED}])
def test_with_nobody_at_work_it_does_not_wait(others: dict[str, Trace]) -> None:
    settling = Settling(lambda node: node != "x")
    settling.begin(5.0, others, first=False, concerns_all=True)
    assert settling.at < 5.0


def test_a_peer_that_only_holds_a_lease_is_waited_for() -> None:
    settling = Settling(lambda _node: True, lambda: ["c"])
    settling.begin(5.0, {}, first=False, concerns_all=True)
    assert settling.at == 5.0 + SETTLE_S
    settling.others = {"c": REGISTERED}
    settling.saw(6.0)
    assert settling.at == 6.0


def test_a_lease_that_was_lost_with_all_data_is_remembered() -> None:
    leases = {"c"}
    settling = Settling(lambda _node: True, lambda: leases)
    settling.saw(1.0)
    leases.clear()
    settling.begin(5.0, {}, first=False, concerns_all=True)
    assert settling.at == 5.0 + SETTLE_S


def test_one_that_was_swept_is_not_waited_for() -> None:
    settling = Settling(lambda _node: True, lambda: ())
    settling._steady_known = frozenset({"c"})
    settling.swept("c")
    settling.begin(5.0, {}, first=False, concerns_all=True)
    assert settling.at < 5.0


def test_peers_that_redis_has_forgotten_are_waited_for(settling: Settling) -> None:
    settling.begin(5.0, {}, first=False, concerns_all=True)
    assert settling.at == 5.0 + SETTLE_S


@pytest.mark.parametrize(
    ("trace", "over"), [(BEFORE, False), (REGISTERING, False), (REGISTERED, True), (FENCED, False)]
)
def test_the_wait_is_over_when_all_have_registered_anew(settling: Settling, trace: Trace, over: bool) -> None:
    settling.begin(5.0, {}, first=False, concerns_all=True)
    settling.others = {"b": trace}
    settling.saw(6.0)
    assert (settling.at == 6.0) is over


def test_a_resync_of_its_own_is_waited_out(settling: Settling) -> None:
    settling.begin(5.0, {"b": BEFORE}, first=False, concerns_all=False)
    settling.others = {"b": REGISTERED}
    settling.saw(6.0)
    assert settling.at == 5.0 + SETTLE_S


def test_a_resync_of_its_own_during_a_wait_does_not_begin_it_anew(settling: Settling) -> None:
    settling.begin(5.0, {"b": BEFORE}, first=False, concerns_all=False)
    settling.begin(12.0, {"b": BEFORE}, first=False, concerns_all=False)
    assert settling.at == 5.0 + SETTLE_S
    settling.begin(16.0, {"b": BEFORE}, first=False, concerns_all=False)
    assert settling.at == 16.0 + SETTLE_S


def test_a_loss_during_a_wait_does(settling: Settling) -> None:
    settling.begin(5.0, {"b": BEFORE}, first=False, concerns_all=False)
    settling.begin(12.0, {}, first=False, concerns_all=True)
    assert settling.at == 12.0 + SETTLE_S


def test_after_an_outage_it_waits_a_little(settling: Settling) -> None:
    settling.returned(50.0)
    assert settling.at == 50.0 + RETURN_SETTLE_S
    settling.others = {"b": REGISTERED}
    settling.saw(51.0)
    assert settling.at == 50.0 + RETURN_SETTLE_S, "who has registered does not say that nothing waits"


def test_alone_it_does_not_wait_after_an_outage() -> None:
    settling = Settling(lambda _node: True)
    settling.returned(50.0)
    assert settling.at < 50.0


def test_a_peer_that_was_swept_may_be_on_its_way_back(settling: Settling) -> None:
    settling.others = {}
    settling.saw(2.0)
    settling.begin(5.0, {}, first=False, concerns_all=True)
    assert settling.at == 5.0 + RETURN_SETTLE_S


def test_who_registered_before_an_outage_may_have_more_to_tell_after_it(settling: Settling) -> None:
    settling.returned(50.0)
    settling.begin(50.1, {"b": REGISTERED}, first=False, concerns_all=True)
    settling.others = {"b": REGISTERED}
    settling.saw(50.5)
    assert settling.at == 50.0 + RETURN_SETTLE_S


@pytest.mark.parametrize(("history", "over"), [("new", True), ("old", False)])
def test_after_a_restart_only_what_was_registered_since_counts(
    settling: Settling, history: str, over: bool
) -> None:
    # Redis has gone back to a moment after the one at which this node has looked last.
    settling.begin(5.0, {}, first=False, concerns_all=True, history="new")
    settling.others = {"b": Trace(7, True, False, history)}
    settling.saw(6.0)
    assert (settling.at == 6.0) is over
