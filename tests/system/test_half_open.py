"""Clients whose network goes away unnoticed are reported in time; needs root, for a network."""

import os

import pytest

from loadtest.stream_events import StreamEvent
from presence.protocol import Code
from tests.system.half_open import SLACK_S, judge, missing_requirement, own_host, run

CLIENTS = 200
T_S = 5.0
TICK_S = 1.0


@pytest.fixture
def host() -> str:
    """An address for the server; skips on machines without one."""
    if missing := missing_requirement():
        if os.environ.get("TESTS_SKIP_NOTHING"):
            pytest.fail(f"{missing} is not to be had")
        pytest.skip(f"{missing} is not to be had")
    return own_host()


@pytest.mark.nightly
@pytest.mark.alone
def test_200_half_open_clients_are_offline_in_time(host: str) -> None:
    result = run(host, CLIENTS, T_S, TICK_S)
    print(f"half-open, T = {T_S:g} s, tick {TICK_S:g} s:", *result.lines(), sep="\n")
    assert result.broken == []
    assert len(result.delays_s) == CLIENTS
    assert min(result.delays_s) >= T_S
    assert max(result.delays_s) <= T_S + TICK_S + SLACK_S + result.stolen_s
    assert result.unacknowledged == result.established == CLIENTS
    assert result.steady > 0


@pytest.mark.parametrize(
    ("written_at", "code", "wrong"),
    [
        (15.5, Code.IDLE_TIMEOUT, ""),
        (14.9, Code.IDLE_TIMEOUT, "ann early"),
        (16.3, Code.IDLE_TIMEOUT, "ann late"),
        (15.5, Code.CLOSED, "nobody should"),
    ],
)
def test_events_too_early_too_late_or_of_another_reason_are_seen(
    written_at: float, code: Code, wrong: str
) -> None:
    event = StreamEvent("1-0", "offline", "ann", "s", code, 0, "0-1", written_at, written_at)
    _, broken = judge([event], {"ann": 10.0}, T_S, T_S + TICK_S + SLACK_S)
    assert bool(broken) is bool(wrong)
    assert not wrong or broken[0].startswith(wrong)


def test_a_client_of_whom_nothing_is_told_is_seen() -> None:
    assert judge([], {"ann": 10.0}, T_S, T_S + TICK_S) == ([], ["ann is not offline"])
