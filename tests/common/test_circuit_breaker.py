"""When a failed shard is tried again, and how long pauses are."""

import pytest

from presence.common.backoff import backoff_s, jittered
from presence.common.circuit_breaker import (
    BACKOFF_BRIEF_S,
    BACKOFF_FIRST_S,
    BACKOFF_LIMIT_S,
    BRIEF_OUTAGE_S,
    FRESH_S,
    IDLE_GAP_S,
    SETTLE_DELAY_S,
    SLOW_CALL_S,
    CircuitBreaker,
)
from presence.outbox.relay import PROBE_INTERVAL_S


def test_answers_are_fresh_for_a_moment_and_backoff_is_short_until_idle_nodes_have_noticed() -> None:
    assert min(BRIEF_OUTAGE_S, IDLE_GAP_S) >= PROBE_INTERVAL_S
    breaker, now, pauses = CircuitBreaker(), 10.0, list[float]()
    breaker.record_success(1.0, 1.0)
    assert (breaker.is_fresh(1.0 + 0.9 * FRESH_S), breaker.is_fresh(1.0 + 1.1 * FRESH_S)) == (True, False)
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


def ask(breaker: CircuitBreaker, calls: str) -> list[bool]:
    """Call: `+` answered, `-` failed, `!` failed and held others up, with sent and now; `=`: settle."""
    recoveries = []
    for call in calls.split():
        sent, _, now = call[1:].partition(",")
        if call == "=":
            recoveries.append(breaker.confirm_recovery())
        elif call[0] == "+":
            recoveries.append(breaker.record_success(float(sent), float(now or sent)))
        else:
            breaker.record_failure(float(sent), float(now or sent), 1.0, held_up=call[0] == "!")
    return recoveries


SLOWER = f"+8,{8 + 2 * SLOW_CALL_S} +9.1,{9.1 + 2.5 * SLOW_CALL_S}"
RESTED = f"+10,10.01 +{9.91 + IDLE_GAP_S},{10 + IDLE_GAP_S} +20,20.01"

# The calls; which of them report a recovery or its confirmation; the state afterwards.
CASES: dict[str, tuple[str, list[bool], dict[str, object]]] = {
    "a shard that never failed is available": ("", [], {"is_available": True}),
    "a slow failure delays the next attempt": ("!9.6,10", [], {"retry_at": 10.8}),
    "but only up to a limit": ("!8,10", [], {"retry_at": 10.0 + BACKOFF_LIMIT_S}),
    "unavailable since the failed call was sent": ("-8,10 -10,12", [], {"unavailable_since": 8.0}),
    "a shard that failed is not available": ("-10", [], {"is_available": False}),
    "available once it answers": (
        "+9 -10 -11 +12",
        [False, True],
        {"is_available": True, "unavailable_since": 10},
    ),
    "recovered once pending changes were accepted": (
        "+9 -10 -11 +12 =",
        [False, True, True],
        {"unavailable_since": None},
    ),
    "a shard that accepts nothing is still unavailable": (
        "-10 +11 -11.1 =",
        [True, False],
        {"retry_at": 11.2},
    ),
    "an answer without a failure confirms nothing": ("+1 =", [False, False], {}),
    "a short outage does not count": ("+9 -9.1 +9.4,9.5", [False, False], {}),
    "a slow answer was an outage": ("+7 +9,10", [False, True], {}),
    "but not repeatedly": ("+7 +10,11.5 +12,13.5 +14,15.5", [False, True, False, False], {}),
    "not settled yet": (f"+1 +{1 + 0.9 * FRESH_S}", [False, False], {"settled_at": 1.0 + SETTLE_DELAY_S}),
    "nor after a late answer": (
        "+1 +1.3 +9,9.5",
        [False, False, True],
        {"settled_at": 9.5 + SETTLE_DELAY_S},
    ),
    "calls as slow as earlier ones are no outage": (
        SLOWER,
        [True, False],
        {"settled_at": 9.0 + SETTLE_DELAY_S},
    ),
    "a stall may hide one": (
        f"{SLOWER} +10.5,31",
        [True, False, True],
        {"settled_at": 31.0 + SETTLE_DELAY_S},
    ),
    "so may an idle time longer than any probe interval": (RESTED, [False, False, True], {}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_state_after_calls(name: str) -> None:
    calls, recoveries, holds = CASES[name]
    breaker = CircuitBreaker()
    assert ask(breaker, calls) == recoveries
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
