"""`presence plan`."""

import json

import pytest

from presence.cli.main import main

pytestmark = pytest.mark.usefixtures("clean_environment")


def test_the_plan_names_what_to_provide(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "1000000", "--visits", "10", "--minutes", "10"]) == 0
    printed = capsys.readouterr().out
    assert "users online            208,334" in printed
    assert "one per 12 s" in printed
    assert "1,000,000           for 0.40 to 1.20 h" in printed
    assert all(len(line) < 90 for line in printed.splitlines())


def test_the_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "1000", "--idle-timeout", "60", "--no-tls", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["demand"]["users"] == 1000
    assert found["need"]["workers"] == 1


@pytest.mark.parametrize("words", [["0"], ["10", "--minutes", "-1"], ["10", "--peak", "nan"], ["ten"]])
def test_what_makes_no_sense_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 2
    assert "must be above 0" in (error := capsys.readouterr().err) or "invalid int value" in error
