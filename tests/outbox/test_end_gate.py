"""When ends may be sent to a shard."""

import math
from collections.abc import Callable

import pytest

from presence.outbox.end_gate import RECOVERY_SETTLE_TIMEOUT_S, SETTLE_TIMEOUT_S, EndGate
from presence.outbox.replies import PeerTrace

BEFORE, REGISTERING, REGISTERED = (
    PeerTrace(3, True, False),
    PeerTrace(4, False, False),
    PeerTrace(4, True, False),
)
FENCED = PeerTrace(3, True, True)
Step = Callable[[EndGate], object]


def resync(at: float) -> Step:
    """It resyncs on its own account."""
    return lambda gate: gate.generation_opened(at, {"b": BEFORE}, first=False, concerns_all=False)


def loss(at: float, replication_id: str = "", **traces: PeerTrace) -> Step:
    """It resyncs because Redis has lost data, or continues with another replication id."""
    return lambda gate: gate.generation_opened(
        at, traces, first=False, concerns_all=True, replication_id=replication_id
    )


def back(at: float) -> Step:
    """Redis answers again after an outage."""
    return lambda gate: gate.redis_recovered(at)


def see(at: float, **traces: PeerTrace) -> Step:
    """A probe finds no problem here, and these traces of peers."""

    def saw(gate: EndGate) -> None:
        gate.peers.traces = traces
        gate.probed(at)

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
    gate = EndGate(lambda node: node != "x")
    for step in [see(1, b=BEFORE), *steps]:
        step(gate)
    assert gate.opens_at == at


@pytest.mark.parametrize("step", [loss(5), loss(5, x=BEFORE), loss(5, b=FENCED), back(50)])
def test_without_live_peers_there_is_no_wait(step: Step) -> None:
    gate = EndGate(lambda node: node != "x")
    step(gate)
    assert gate.opens_at == -math.inf


def test_the_first_generation_does_not_wait() -> None:
    gate = EndGate(lambda _node: True)
    gate.generation_opened(1.0, {"b": BEFORE}, first=True, concerns_all=False)
    assert gate.opens_at == -math.inf


def test_a_peer_with_only_a_lease_is_waited_for_even_if_the_lease_was_lost() -> None:
    leases = ["c"]
    gate = EndGate(lambda _node: True, lambda: leases)
    gate.probed(1.0)
    leases.clear()
    loss(5)(gate)
    assert gate.opens_at == 5 + SETTLE_TIMEOUT_S
    see(6, c=REGISTERED)(gate)
    assert gate.opens_at == 6
    gate.peers.forget("c")
    assert gate.peers.recent_lease_holders == set()
