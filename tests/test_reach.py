"""When a shard that failed is asked again."""

import pytest

from presence.reach import (
    BACKOFF_BRIEF_S,
    BACKOFF_FIRST_S,
    BACKOFF_LIMIT_S,
    BRIEF_S,
    FRESH_S,
    GLANCE_S,
    REST_S,
    SLOW_CALL_S,
    Reach,
    backoff_s,
)
from presence.relay import PROBE_INTERVAL_S


def test_pauses_double_up_to_a_bound() -> None:
    assert [backoff_s(n) for n in (0, 1, 3, 5000)] == [0.05, 0.1, 0.4, BACKOFF_LIMIT_S]


def test_they_are_brief_until_nodes_at_rest_have_noticed() -> None:
    assert BRIEF_S >= PROBE_INTERVAL_S
    reach, now, pauses = Reach(), 10.0, []
    while now < 20.0:
        reach.failed(now, now, 1.0)
        pauses.append(reach.retry_at - now)
        now = reach.retry_at
    assert pauses[0] == pytest.approx(BACKOFF_FIRST_S)
    brief = round((BRIEF_S - BACKOFF_FIRST_S) / BACKOFF_BRIEF_S)
    assert pauses[1:brief] == pytest.approx([BACKOFF_BRIEF_S] * (brief - 1))
    assert pauses[-3:] == pytest.approx([BACKOFF_LIMIT_S] * 3)


def test_one_that_holds_others_up_gives_them_their_turn() -> None:
    reach = Reach()
    reach.failed(9.6, 10.0, 1.0, held_up=True)
    assert reach.retry_at == pytest.approx(10.8)
    reach.failed(8.0, 10.0, 1.0, held_up=True)
    assert reach.retry_at == pytest.approx(10.0 + BACKOFF_LIMIT_S)


def test_one_that_never_failed_may_be_sent_to_and_is_not_asked() -> None:
    reach = Reach()
    assert reach.may_be_sent_to
    assert not reach.is_due(1e9)


def test_one_that_failed_is_asked_when_its_pause_is_over() -> None:
    reach = Reach()
    reach.failed(10.0, 10.0, 1.0)
    assert not reach.may_be_sent_to
    assert not reach.is_due(10.0 + BACKOFF_FIRST_S / 2)
    assert reach.is_due(10.0 + BACKOFF_FIRST_S)


def test_it_is_back_when_what_there_was_to_send_was_taken() -> None:
    reach = Reach()
    reach.answered(9.0, 9.0)
    reach.failed(10.0, 10.0, 1.0)
    reach.failed(11.0, 11.0, 1.0)
    assert reach.answered(12.0, 12.0)
    assert reach.may_be_sent_to
    assert reach.away_since == 10.0
    assert reach.settle()
    assert reach.away_since is None


def test_one_that_answers_a_probe_and_takes_nothing_is_still_away() -> None:
    reach = Reach()
    reach.failed(10.0, 10.0, 1.0)
    reach.answered(11.0, 11.0)
    reach.failed(11.1, 11.1, 1.0)
    assert not reach.settle()
    assert reach.away_since == 10.0
    assert reach.retry_at == pytest.approx(11.1 + 2 * BACKOFF_FIRST_S)


def test_an_answer_without_a_failure_settles_nothing() -> None:
    reach = Reach()
    reach.answered(1.0, 1.0)
    assert not reach.settle()


def test_a_short_absence_is_none() -> None:
    reach = Reach()
    reach.answered(9.0, 9.0)
    reach.failed(9.1, 9.1, 1.0)
    assert not reach.answered(9.4, 9.5)


def test_one_that_was_slow_was_away() -> None:
    reach = Reach()
    reach.answered(7.0, 7.0)
    assert reach.answered(9.0, 10.0)


def test_one_that_is_always_slow_is_not_away_for_ever() -> None:
    reach = Reach()
    reach.answered(7.0, 7.0)
    assert [reach.answered(at, at + 1.5) for at in (10.0, 12.0, 14.0)] == [True, False, False]


def test_it_is_fresh_for_a_moment() -> None:
    reach = Reach()
    reach.answered(1.0, 1.0)
    assert reach.is_fresh(1.0 + 0.9 * FRESH_S)
    assert not reach.is_fresh(1.0 + 1.1 * FRESH_S)


def test_the_first_answer_in_a_while_makes_not_sure_yet() -> None:
    reach = Reach()
    for at in (1.0, 1.0 + 0.9 * FRESH_S):
        reach.answered(at, at)
    assert reach.sure_at == 1.0 + GLANCE_S
    reach.answered(9.0, 9.5)
    assert reach.sure_at == 9.5 + GLANCE_S


def test_it_is_away_since_the_call_that_failed_was_sent() -> None:
    reach = Reach()
    reach.failed(8.0, 10.0, 1.0)
    reach.failed(10.0, 12.0, 1.0)
    assert reach.away_since == 8.0


def test_an_answer_that_a_stop_kept_waiting_may_hide_an_outage_though_calls_were_slow_before() -> None:
    reach = Reach()
    reach.answered(8.0, 8.0 + 2 * SLOW_CALL_S)
    assert not reach.answered(9.1, 9.1 + 2.5 * SLOW_CALL_S), "as slow as before"
    assert reach.sure_at == pytest.approx(9.0 + GLANCE_S), "the first of all"
    assert reach.answered(10.5, 31.0), "sent before the stop, read after it"
    assert reach.sure_at == pytest.approx(31.0 + GLANCE_S)


def test_a_rest_longer_than_any_probe_allows_may_hide_an_outage() -> None:
    assert REST_S > PROBE_INTERVAL_S
    reach = Reach()
    assert not reach.answered(10.0, 10.01), "the first answer of all"
    assert not reach.answered(10.01 + REST_S - 0.1, 10.0 + REST_S)
    assert reach.answered(20.0, 20.01)
