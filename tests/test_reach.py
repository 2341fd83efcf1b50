"""When a shard that failed is asked again."""

import pytest

from presence.reach import BACKOFF_FIRST_S, BACKOFF_LIMIT_S, Reach, backoff_s


def test_pauses_double_up_to_a_bound() -> None:
    assert [backoff_s(n) for n in (0, 1, 3, 5000)] == [
        BACKOFF_FIRST_S,
        2 * BACKOFF_FIRST_S,
        8 * BACKOFF_FIRST_S,
        BACKOFF_LIMIT_S,
    ]


def test_one_that_never_failed_may_be_sent_to_and_is_not_asked() -> None:
    reach = Reach()
    assert reach.may_be_sent_to
    assert not reach.is_due(1e9)


def test_one_that_failed_is_asked_when_its_pause_is_over() -> None:
    reach = Reach()
    reach.failed(10.0, 1.0)
    assert not reach.may_be_sent_to
    assert not reach.is_due(10.0 + BACKOFF_FIRST_S / 2)
    assert reach.is_due(10.0 + BACKOFF_FIRST_S)


def test_it_is_back_when_what_there_was_to_send_was_taken() -> None:
    reach = Reach()
    reach.answered(9.0)
    reach.failed(10.0, 1.0)
    reach.failed(11.0, 1.0)
    assert reach.answered(12.0) == 9.0
    assert reach.may_be_sent_to
    assert reach.away_since == 10.0
    assert reach.settle()
    assert reach.away_since is None


def test_one_that_answers_a_probe_and_takes_nothing_is_still_away() -> None:
    reach = Reach()
    reach.failed(10.0, 1.0)
    reach.answered(11.0)
    reach.failed(11.1, 1.0)
    assert not reach.settle()
    assert reach.away_since == 10.0
    assert reach.retry_at == pytest.approx(11.1 + 2 * BACKOFF_FIRST_S)


def test_an_answer_without_a_failure_settles_nothing() -> None:
    reach = Reach()
    reach.answered(1.0)
    assert not reach.settle()
