"""What is held against a server that does not keep its promises to those who behave."""

import math
from collections import Counter

import pytest

from loadtest.nodes.outcome import Outcome
from loadtest.security import cycles, flood, flooders, silent, silent_tls, tls
from loadtest.security.__main__ import status
from loadtest.security.attempts import GRANTED, LOST, Attempt
from loadtest.security.cycles import Rest
from loadtest.security.flood import Load
from loadtest.security.flooders import Flooded
from loadtest.security.silent import Found
from loadtest.security.strangers import Stranger
from loadtest.security.tls import Cost
from protocol import Code

SIZES = silent.Sizes(strangers=2, pairs=1)
GONE = Stranger(5.1, Code.LOGIN_TIMEOUT, 5)
KEPT = {"sessions": 0, "transport.connections": 0, "outbox.queued": 0, "admission.uid_logins_kept": 0}
BASE = Rest(50_000_000, 20)
FLOOD = flood.Sizes(capacity=10, loads=(1.0, 10.0), seconds=1.0)


def found(*come: Stranger, beside: float = 0.010, elsewhere: float = 0.010) -> Found:
    return Found(list(come), [[beside] * 10], [[elsewhere] * 10], [0.009] * 10)


def test_strangers_who_are_gone_in_time_are_no_fault() -> None:
    assert silent.judge(found(GONE, GONE), SIZES).failures == []


@pytest.mark.parametrize(
    ("stranger", "words"),
    [
        (GONE._replace(lived_s=math.inf), "1 of 2 were open at 5.5 s"),
        (GONE._replace(lived_s=5.51), "1 of 2 were open at 5.5 s"),
        (GONE._replace(lived_s=4.9), "1 were closed too early"),
        (GONE._replace(code=0), "1 were not told why"),
    ],
)
def test_a_stranger_who_was_treated_otherwise_is(stranger: Stranger, words: str) -> None:
    assert silent.judge(found(GONE, stranger), SIZES).failures == [words]


def test_slower_logins_are_a_fault() -> None:
    assert silent.judge(found(GONE, beside=0.0109), SIZES).failures == []
    assert "1.110 times as long" in silent.judge(found(GONE, beside=0.0111), SIZES).failures[0]


def test_a_login_that_was_refused_is_a_fault() -> None:
    seen = found(GONE)
    seen.refused = 1
    assert silent.judge(seen, SIZES).failures == ["1 logins of users were not granted"]


def test_without_slow_senders_nothing_was_injected() -> None:
    assert not silent.judge(found(GONE._replace(sent=0)), SIZES).injected


def test_a_server_back_at_its_base_is_no_fault() -> None:
    rests = {10: Rest(50_400_000, 20), 100: Rest(50_499_000, 20)}
    assert cycles.judge(BASE, rests, KEPT, Counter({GRANTED: 110}), 1.0).failures == []


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        (Rest(50_510_000, 20), "1.02% away"),
        (Rest(49_400_000, 20), "1.20% away"),
        (Rest(50_000_000, 21), "5.00% away"),
    ],
)
def test_one_that_is_not_is(rest: Rest, words: str) -> None:
    assert words in cycles.judge(BASE, {100: rest}, KEPT, Counter({GRANTED: 100}), 1.0).failures[0]


def test_what_is_left_in_a_table_is_told() -> None:
    kept = {**KEPT, "addresses_kept": 3}
    broken = cycles.judge(BASE, {100: BASE}, kept, Counter({GRANTED: 100}), 1.0).failures
    assert broken == ["3 addresses_kept are left"]


def test_a_table_that_nobody_tells_of_is_a_fault() -> None:
    broken = cycles.judge(BASE, {100: BASE}, {}, Counter({GRANTED: 100}), 1.0).failures
    assert len(broken) == len(cycles.TABLES)


def test_sizes_are_found_by_their_names_and_counters_are_not() -> None:
    figures = {"core": {"sessions": 3, "logins": 9}, "addresses": {"addresses_kept": 2}, "queued": 0}
    assert cycles.sizes(figures) == {"core.sessions": 3, "addresses.addresses_kept": 2, "queued": 0}


def load(offered: int, granted: int, busy: int, *others: Attempt) -> Load:
    ended = [Attempt(0.0, 0.01, GRANTED, 0.0)] * granted + [Attempt(0.0, 0.01, Code.BUSY, 1.5)] * busy
    return Load(offered, [*ended, *others], 1.0, 0.5)


def test_as_many_logins_as_ever_are_no_fault() -> None:
    assert flood.judge([load(10, 10, 0), load(100, 9, 91)], FLOOD, [], "flood").failures == []


def test_fewer_are() -> None:
    broken = flood.judge([load(10, 10, 0), load(100, 8, 92)], FLOOD, [], "flood").failures
    assert broken == ["8 logins a second were granted, 10 with less load"]


@pytest.mark.parametrize(
    "other", [Attempt(0.0, 0.01, LOST, 0.0), Attempt(0.0, 0.01, Code.BUSY, 0.0), Attempt(0.0, 9.0, 304, 1.0)]
)
def test_a_refusal_that_does_not_say_when_to_return_is_a_fault(other: Attempt) -> None:
    broken = flood.judge([load(10, 10, 0), load(100, 10, 89, other)], FLOOD, [], "flood").failures
    assert broken[0].startswith("1 refusals without a time to return")


def test_nothing_refused_is_no_flood() -> None:
    assert not flood.judge([load(10, 10, 0), load(100, 100, 0)], FLOOD, [], "flood").injected


def test_the_exit_status_tells_what_was_broken_from_what_shows_nothing() -> None:
    kept, broken = Outcome("a", "x", ""), Outcome("b", "x", "", ["no"])
    assert [status([kept]), status([kept, broken]), status([kept, Outcome("c", "", "")])] == [0, 1, 2]


@pytest.mark.parametrize(
    ("stranger", "words"),
    [(GONE._replace(lived_s=5.6), "1 of 2 were open"), (GONE._replace(lived_s=1.0), "1 were closed")],
)
def test_strangers_who_stay_on_the_port_for_tls_are_a_fault(stranger: Stranger, words: str) -> None:
    assert silent_tls.judge([GONE, GONE], []).failures == []
    assert words in silent_tls.judge([GONE, stranger], []).failures[0]


def test_costs_are_told_by_their_medians_and_lost_connections_are_a_fault() -> None:
    costs = [Cost(17_000.0, 14.0, 900.0, 0), Cost(18_000.0, 15.0, 901.0, 0), Cost(16_000.0, 13.0, 899.0, 0)]
    plain = [Cost(500.0, 5.0, 200.0, 0)] * 3
    outcome = tls.judge(costs, plain, tls.Sizes(), [])
    assert outcome.failures == []
    assert "17,000.0, plain 500.0 (34.0 times)" in outcome.measured
    assert tls.judge(costs, [Cost(500.0, 5.0, 200.0, 1)], tls.Sizes(), []).failures == [
        "1 connections were lost"
    ]


def test_answers_that_take_too_long_beside_a_flooder_are_a_fault() -> None:
    seen = flooders.Found([[0.02] * 9], [[0.01] * 9], [Flooded(100, 1, 0)])
    assert flooders.judge({"queries": seen}, flooders.Sizes()).failures == []
    seen.beside = [[0.3] * 9]
    seen.floods = [Flooded(100, 1, 2)]
    assert len(flooders.judge({"queries": seen}, flooders.Sizes()).failures) == 2
