"""When a failed shard is tried again, and how long pauses are."""

import pytest

from presence.common.backoff import backoff_s, jittered
from presence.common.circuit_breaker import (
    BACKOFF_BRIEF_S,
    BACKOFF_FIRST_S,
    BACKOFF_LIMIT_S,
    BRIEF_OUTAGE_S,
    CircuitBreaker,
)
from presence.outbox.relay import PROBE_INTERVAL_S


def test_backoff_is_short_until_idle_nodes_have_noticed() -> None:
    assert BRIEF_OUTAGE_S >= PROBE_INTERVAL_S
    breaker, now, pauses = CircuitBreaker(), 10.0, list[float]()
    breaker.record_answer()
    assert not breaker.is_due(1e9)
    while now < 20.0:
        breaker.record_failure(now, now, 1.0)
        assert (breaker.is_due(breaker.retry_at - 0.001), breaker.is_due(breaker.retry_at)) == (False, True)
        pauses.append(breaker.retry_at - now)
        now = breaker.retry_at
    assert pauses[0] == pytest.approx(BACKOFF_FIRST_S)
    brief = round((BRIEF_OUTAGE_S - BACKOFF_FIRST_S) / BACKOFF_BRIEF_S)
    assert pauses[1:brief] == pytest.approx([BACKOFF_BRIEF_S] * (brief - 1))
    assert pauses[-3:] == pytest.approx([BACKOFF_LIMIT_S] * 3)


def confirmations(breaker: CircuitBreaker, calls: str) -> list[bool]:
    """Call: `+` answered, `-` failed, `!` failed and held others up, with sent and now; `=`: confirm."""
    confirmed = []
    for call in calls.split():
        sent, _, now = call[1:].partition(",")
        if call == "=":
            confirmed.append(breaker.confirm_recovery())
        elif call == "+":
            breaker.record_answer()
        else:
            breaker.record_failure(float(sent), float(now or sent), 1.0, held_up=call[0] == "!")
    return confirmed


# The calls; which of them confirm a recovery; the state afterwards.
CASES: dict[str, tuple[str, list[bool], dict[str, object]]] = {
    "a shard that never failed is available": ("", [], {"is_available": True}),
    "a slow failure delays the next attempt": ("!9.6,10", [], {"retry_at": 10.8}),
    "but only up to a limit": ("!8,10", [], {"retry_at": 10.0 + BACKOFF_LIMIT_S}),
    "unavailable since the failed call was sent": ("-8,10 -10,12", [], {"unavailable_since": 8.0}),
    "a shard that failed is not available": ("-10", [], {"is_available": False}),
    "available once it answers": ("+ -10 -11 +", [], {"is_available": True, "unavailable_since": 10}),
    "recovered once pending changes were accepted": (
        "+ -10 -11 + =",
        [True],
        {"unavailable_since": None},
    ),
    "a shard that accepts nothing is still unavailable": ("-10 + -11.1 =", [False], {"retry_at": 11.2}),
    "an answer without a failure confirms nothing": ("+ =", [False], {}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_state_after_calls(name: str) -> None:
    calls, confirmed, holds = CASES[name]
    breaker = CircuitBreaker()
    assert confirmations(breaker, calls) == confirmed
    for attribute, value in holds.items():
        expected = pytest.approx(value) if isinstance(value, float) else value
        assert getattr(breaker, attribute) == expected, attribute


# Backoff


@pytest.mark.parametrize(("failures", "pause_s"), [(0, 0.5), (1, 1.0), (3, 4.0), (10, 30.0), (5000, 30.0)])
def test_backoff_doubles_up_to_a_limit(failures: int, pause_s: float) -> None:
    assert backoff_s(failures, 0.5, 30.0) == pause_s


def test_jitter_removes_at_most_half() -> None:
    drawn = [jittered(1.0) for _ in range(1000)]
    assert 0.5 <= min(drawn) < max(drawn) <= 1.0
