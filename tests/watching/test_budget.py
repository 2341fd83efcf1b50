"""How much one session may ask."""

import pytest

from presence.watching.budget import Budget
from tests.watching.fakes import session

ANN, _ = session("ann")
BOB, _ = session("bob")


def test_so_much_at_once_and_then_so_much_a_second() -> None:
    budget = Budget(100, 10)
    assert budget.spend(ANN, 60, 0.0) == 0
    assert budget.spend(ANN, 40, 0.0) == 0
    assert budget.spend(ANN, 1, 0.0) == pytest.approx(0.1)
    assert budget.spend(ANN, 10, 1.0) == 0
    assert budget.spend(ANN, 20, 2.0) == pytest.approx(1.0)


def test_what_is_refused_costs_nothing() -> None:
    budget = Budget(100, 10)
    assert budget.spend(ANN, 200, 0.0) == 10
    assert budget.spend(ANN, 100, 0.0) == 0


def test_what_is_never_refused_is_paid_for_all_the_same() -> None:
    budget = Budget(100, 10)
    budget.charge(ANN, 90, 0.0)
    assert budget.spend(ANN, 20, 0.0) == pytest.approx(1.0)
    budget.charge(ANN, 10**6, 0.0)
    assert budget.spend(ANN, 10, 10.0) > 0
    assert budget.spend(ANN, 10, 11.0) == 0, "a debt has a bound"


def test_one_does_not_pay_for_another() -> None:
    budget = Budget(100, 10)
    budget.spend(ANN, 100, 0.0)
    assert budget.spend(BOB, 100, 0.0) == 0
    budget.left(ANN)
    assert len(budget) == 1
