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


def test_the_plan_of_friend_lists_names_the_memory_to_grant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "1000000", "--friends", "150", "--changes", "3", "--websocket", "50"]) == 0
    printed = capsys.readouterr().out
    assert "each to 31.3 friends online" in printed
    assert "watch_memory" in printed
    assert all(len(line) < 90 for line in printed.splitlines())


def test_without_friends_the_plan_says_nothing_of_watches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "1000000"]) == 0
    assert "watch" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["0"], "must be above 0"),
        (["10", "--minutes", "-1"], "must be above 0"),
        (["10", "--peak", "nan"], "must be above 0"),
        (["ten"], "invalid int value"),
        (["10", "--friends", "-1"], "--friends must not be below 0"),
        (["10", "--websocket", "101"], "--websocket must not be above 100"),
        (["1000000", "--friends", "150", "--changes", "6000"], "more than a worker can follow"),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) == 2
    assert why in capsys.readouterr().err
