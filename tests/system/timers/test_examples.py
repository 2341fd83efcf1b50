"""The examples show what they say, on a Redis and with processes of their own."""

from types import ModuleType

import pytest

from presence.timers.examples import locked_resource, reminders, unpaid_orders

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.mark.parametrize(
    ("example", "said"),
    [
        (locked_resource, "40 of 40 updates applied, put off "),
        (reminders, "1100 of 1100 reminders sent, 0 of them twice, 0 early"),
        (unpaid_orders, "40 orders: 20 paid, 20 lapsed, 0 open"),
    ],
)
def test_an_example_does_what_it_says(
    example: ModuleType, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    example.main()
    assert said in capsys.readouterr().out
