"""The examples print what they should."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.mark.parametrize(
    ("example", "printed"),
    [
        ("locked_resource", "40 of 40 updates applied: {'ann': 273, 'bob': 247, 'cy': 260}"),
        ("reminders", "1000 of 1000 reminders sent, 0 of them twice"),
        ("unpaid_orders", "40 orders: 20 paid, 20 lapsed, 0 open"),
    ],
)
def test_an_example_does_what_it_should(example: str, printed: str) -> None:
    command = [sys.executable, "-m", f"presence.timers.examples.{example}"]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert (outcome.stdout, outcome.stderr) == (f"{printed}\n", "")
