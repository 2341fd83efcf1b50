"""When ends may be sent to a shard."""

import math
from collections.abc import Callable

import pytest

from presence.common.circuit_breaker import CircuitBreaker
from presence.outbox.end_gate import (
    CATCH_UP_DELAY_S,
    FRESH_S,
    IDLE_GAP_S,
    MIN_OUTAGE_S,
    RECOVERY_SETTLE_TIMEOUT_S,
    SETTLE_TIMEOUT_S,
    SLOW_CALL_S,
    EndGate,
)
from presence.outbox.relay import PROBE_INTERVAL_S, SHORT_GATHER_S
from presence.outbox.replies import PeerTrace

# Waits for peers to register


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
    return lambda gate: gate.answered(at, at, at - MIN_OUTAGE_S)


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
        ([loss(5), back(6)], 5 + SETTLE_TIMEOUT_S),  # the longer wait holds
        # A resync of this node alone, during a wait for all, changes nothing; after it, it waits alone.
        ([loss(5), resync(6), see(7, b=REGISTERED)], 7),
        ([loss(5), resync(16), see(17, b=REGISTERED)], 16 + SETTLE_TIMEOUT_S),
        (
            [loss(5, "new"), resync(6), see(7, b=PeerTrace(7, True, False, "old"))],
            5 + SETTLE_TIMEOUT_S,
        ),
        ([loss(5, "new"), loss(16), see(17, b=PeerTrace(7, True, False, "old"))], 17),
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


def test_peers_that_were_swept_during_a_wait_may_be_about_to_return() -> None:
    gate = EndGate(lambda _node: True)
    for step in (loss(5, b=BEFORE), loss(16)):
        step(gate)
    assert gate.opens_at == 16 + RECOVERY_SETTLE_TIMEOUT_S


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


# Answers: pauses, and outages


def test_answers_are_fresh_for_a_moment() -> None:
    gate = EndGate(lambda _node: True)
    gate.answered(1.0, 1.0, None)
    assert (gate.is_fresh(1.0 + 0.9 * FRESH_S), gate.is_fresh(1.0 + 1.1 * FRESH_S)) == (True, False)


def test_ends_wait_longer_than_a_few_logins_gather_on_another_node() -> None:
    assert CATCH_UP_DELAY_S > SHORT_GATHER_S


def test_a_node_that_probes_as_usual_was_not_stopped() -> None:
    assert IDLE_GAP_S >= PROBE_INTERVAL_S


def outages(gate: EndGate, calls: str) -> list[bool]:
    """Call: `+` answered, `-` failed, with sent and now; return which answers followed an outage."""
    breaker, followed = CircuitBreaker(), []
    for call in calls.split():
        sent_at, now = (float(at) for at in (*call[1:].split(","), call[1:])[:2])
        if call[0] == "+":
            followed.append(gate.answered(sent_at, now, breaker.unavailable_since))
        else:
            breaker.record_failure(sent_at, now, 1.0)
    return followed


SLOWER = f"+8,{8 + 2 * SLOW_CALL_S} +9.1,{9.1 + 2.5 * SLOW_CALL_S}"
RESTED = f"+10,10.01 +{9.91 + IDLE_GAP_S},{10 + IDLE_GAP_S} +20,20.01"

# The calls; which answers followed an outage; when it is asked and when a step with ends may go then.
ANSWERS: dict[str, tuple[str, list[bool], tuple[float, float] | None]] = {
    "failed calls for a while were an outage": ("+9 -10 -11 +12", [False, True], None),
    "also if no call was answered before": ("-10 +11", [True], None),
    "until the recovery is confirmed, each answer follows it": ("-10 +11 -11.1 +11.3", [True, True], None),
    "a short outage does not count": ("+9 -9.1 +9.4,9.5", [False, False], None),
    "a slow answer was an outage": ("+7 +9,10", [False, True], None),
    "but not repeatedly": ("+7 +10,11.5 +12,13.5 +14,15.5", [False, True, False, False], None),
    "the first answer does not follow one, but ends wait": ("+1", [False], (1.0, 1.0 + CATCH_UP_DELAY_S)),
    "ends do not wait longer for an answer soon after it": (
        f"+1 +{1 + 0.9 * FRESH_S}",
        [False, False],
        (1.1, 1.0 + CATCH_UP_DELAY_S),
    ),
    "nor at all after they have waited": (f"+1 +{1 + 0.9 * FRESH_S}", [False, False], (1.36, 1.36)),
    "ends wait after a late answer": (
        "+1 +1.3 +9,9.5",
        [False, False, True],
        (9.5, 9.5 + CATCH_UP_DELAY_S),
    ),
    "calls as slow as earlier ones are no outage": (SLOWER, [True, False], (9.0, 9.0 + CATCH_UP_DELAY_S)),
    "a stall may hide one": (
        f"{SLOWER} +10.5,31",
        [True, False, True],
        (31.0, 31.0 + CATCH_UP_DELAY_S),
    ),
    "so may an idle time longer than any probe interval": (RESTED, [False, False, True], None),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_with_a_live_peer(name: str) -> None:
    calls, followed, due = ANSWERS[name]
    gate = EndGate(lambda _node: True, lambda: ("b",))
    assert outages(gate, calls) == followed
    if due:
        asked_at, due_at = due
        assert gate.ends_due_at(asked_at) == pytest.approx(due_at)


def test_without_peers_no_step_waits_and_an_outage_takes_no_ends_out_of_a_batch() -> None:
    gate = EndGate(lambda _node: True)
    assert outages(gate, "+9 -10 -11 +12") == [False, False]
    assert gate.ends_due_at(12.0) == 12.0
    assert gate.is_open(12.0)
