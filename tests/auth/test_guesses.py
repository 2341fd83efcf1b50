"""Who has tokens refused too often waits for the answers, and the tables stay small."""

from statistics import median
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presence.auth.guesses import Debts, Guesses

ADDRESS = "192.0.2.1"


def guesses(*, rate: float = 1.0, burst: int = 3, delay_s: float = 3.0, holding_max: int = 100) -> Guesses:
    return Guesses(rate, burst, delay_s, holding_max=holding_max)


def test_a_burst_is_answered_at_once_and_then_ever_later() -> None:
    table = guesses()
    assert [table.refused(ADDRESS, "", 0.0) for _ in range(8)] == [0, 0, 0, 1, 2, 3, 3, 3]


def test_who_waits_for_each_answer_gets_no_more_than_the_rate() -> None:
    table, now, answers = guesses(rate=2.0), 0.0, 0
    while now < 1000:
        now += 0.01 + table.refused(ADDRESS, "", now)
        answers += 1
    assert answers == pytest.approx(2000, rel=0.02)


def test_refusals_are_forgiven_at_the_rate() -> None:
    table = guesses(burst=3, rate=0.5)
    for _ in range(3):
        table.refused(ADDRESS, "", 0.0)
    assert not table.is_over(ADDRESS, 0.0)
    table.refused(ADDRESS, "", 0.0)
    assert table.is_over(ADDRESS, 1.9)
    assert not table.is_over(ADDRESS, 2.0)


def test_however_long_an_address_has_guessed_it_is_forgiven_soon() -> None:
    table = guesses()
    for _ in range(10_000):
        table.refused(ADDRESS, "", 0.0)
    assert table.is_over(ADDRESS, 2.9)
    assert not table.is_over(ADDRESS, 3.0)


def test_a_user_is_guarded_from_whichever_address_he_is_guessed() -> None:
    table = guesses()
    holds = [table.refused(f"192.0.2.{number}", "ann", 0.0) for number in range(6)]
    assert holds == [0, 0, 0, 1, 2, 3]
    assert table.refused("192.0.2.99", "bob", 0.0) == 0
    assert not table.is_over("192.0.2.1", 0.0), "no address is"


def test_an_address_that_is_not_known_is_none() -> None:
    table = guesses()
    assert [table.refused("", "", 0.0) for _ in range(10)] == [0] * 10
    assert not table.is_over("", 0.0)
    assert table.statistics(0.0).addresses == 0


def test_a_delay_of_none_holds_nothing() -> None:
    table = guesses(delay_s=0.0)
    assert {table.refused(ADDRESS, "ann", 0.0) for _ in range(100)} == {0.0}
    assert table.is_over(ADDRESS, 0.0), "it is a guesser all the same"


def test_no_more_answers_are_held_than_may_be() -> None:
    table = guesses(burst=1, holding_max=5)
    table.refused(ADDRESS, "", 0.0)
    holds = [table.refused(ADDRESS, "", 0.0) for _ in range(20)]
    assert [hold > 0 for hold in holds] == [True] * 5 + [False] * 15
    figures = table.statistics(0.0)
    assert (figures.holding, figures.held, figures.not_held) == (5, 5, 15)
    assert table.statistics(10.0).holding == 0
    assert table.refused(ADDRESS, "", 2.5) > 0, "some have been given"


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, 5)), max_size=60))
def test_a_table_forgets_who_was_refused_the_longest_ago(story: list[tuple[str, float]]) -> None:
    debts, now = Debts(0.001, 100.0, size=3), 0.0
    latest: dict[str, float] = {}
    for debtor, later in story:
        now += later
        debts.add(debtor, now)
        latest.pop(debtor, None)
        latest[debtor] = now
        assert list(debts._debts) == list(latest)[-3:] or len(debts) < 3
        for forgotten in list(latest)[:-3]:
            assert debts.of(forgotten, now) == 0.0
            del latest[forgotten]


def test_the_table_is_bounded_and_counts_what_it_forgets() -> None:
    debts = Debts(0.001, 10.0, size=100)
    for number in range(250):
        debts.add(str(number), 0.0)
    assert len(debts) == 100
    assert debts.forgotten == 150


def test_a_full_table_takes_one_more_about_as_fast_as_a_small_one() -> None:
    """Though each takes the place of the oldest: with a plain dict it takes some 35 times as long."""
    small, full = Debts(0.001, 10.0, size=100), Debts(0.001, 10.0, size=170_000)
    for number in range(170_000):
        full.add(str(number), 0.0)
    taken: dict[Debts, list[float]] = {small: [], full: []}
    for turn in range(100):
        for debts, times in taken.items():
            begun = process_time()
            for number in range(1000):
                debts.add(f"{turn}-{number}", 0.0)
            times.append(process_time() - begun)
    assert median(taken[full]) < 12 * median(taken[small])


def test_who_owes_nothing_any_more_has_no_place_in_the_table() -> None:
    debts = Debts(1.0, 10.0)
    for number in range(1000):
        debts.add(str(number), 0.0)
    for number in range(1000):
        debts.add("one", 100.0 + number)
    assert len(debts) == 1
    assert debts.forgotten == 0
