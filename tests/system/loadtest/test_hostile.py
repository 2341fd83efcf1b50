"""Clients that do what they should not, a few of them; `python -m loadtest.hostile` lets many do it."""

from collections.abc import Iterator

import pytest

from loadtest.events import Event
from loadtest.hostile.mistakes import mistakes
from loadtest.hostile.races import Answered, races, told_wrongly
from loadtest.hostile.stage import Stage, staged
from loadtest.hostile.strangers import bombs, names, refusals, slow_logins
from loadtest.hostile.unread import unread
from loadtest.nodes.outcome import Outcome, table

KINDS = ("online", "offline")


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged(login_timeout=1.2, unsent_timeout=1.0) as stage:
        yield stage


def assert_kept(outcome: Outcome) -> None:
    print(table([outcome]))
    assert outcome.failures == []


def test_a_frame_that_claims_4_gib_costs_nothing(stage: Stage) -> None:
    assert_kept(bombs(stage, 400))


def test_a_refusal_is_read_whatever_is_behind_it(stage: Stage) -> None:
    assert_kept(refusals(stage, 200))


def test_a_name_with_a_control_character_is_refused(stage: Stage) -> None:
    assert_kept(names(stage, 130))


def test_without_a_login_the_time_is_up(stage: Stage) -> None:
    assert_kept(slow_logins(stage, 200))


def test_what_waits_for_who_never_reads_is_bounded(stage: Stage) -> None:
    assert_kept(unread(stage, 40))


def test_a_mistake_concerns_one_connection_and_tells_no_secret() -> None:
    assert_kept(mistakes(200))


def test_a_beat_at_the_end_of_its_time_wins_or_is_a_clean_return() -> None:
    assert_kept(races(200, 2.0))


def test_an_answer_behind_an_offline_event_is_found() -> None:
    online, offline = (Event(f"{n}-0", kind, "ann", "s1", 0, n, "", n, n) for n, kind in enumerate(KINDS, 10))
    answered = {"s1": Answered("ann", 15.0)}
    assert told_wrongly([online], answered) == ([], 0)
    assert told_wrongly([online, offline], answered) == (["ann"], 0)
    assert told_wrongly([online, online], answered) == ([], 1)
