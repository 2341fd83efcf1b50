"""One examination: every check has its place, and what fails keeps others from being tried."""

from pathlib import Path

import pytest

from presence.cli import main
from presence.config import ConfigError, Loaded
from presence.doctor.examination import Patient, examine
from presence.doctor.findings import CHECKS, Finding, Status, worst
from presence.doctor.machine import Wanted
from presence.doctor.redis_checks import redis
from presence.doctor.redis_facts import RedisFacts
from presence.settings import Settings
from tests.doctor.patients import NODE, SERVER, cluster


def sources(**others: str) -> dict[str, str]:
    return {"admin": "default", **others}


def test_every_check_has_its_place_in_the_catalogue_and_every_place_a_check(tmp_path: Path) -> None:
    told = examine(Patient(lambda: Loaded(Settings(), sources()), root=tmp_path))
    told += redis(Settings(), cluster((0, 16383, 1)), Wanted(1, 1, is_asked=True))
    assert {each.check for each in told} == set(CHECKS)


def test_what_fails_keeps_the_rest_from_being_tried_and_nothing_is_left_unsaid(tmp_path: Path) -> None:
    def bad() -> Loaded:
        raise ConfigError(["tick: must be …"])

    told = examine(Patient(bad, root=tmp_path))
    assert {each.check for each in told} == set(CHECKS)
    assert told[0].status is Status.FAIL


def test_a_redis_that_is_away_is_one_failure() -> None:
    away = RedisFacts(url="redis://a", is_cluster=False, failure="Connection refused")
    told = list(redis(Settings(redis="redis://a"), away, Wanted(1, 1, is_asked=True)))
    assert [each.check for each in told if each.status is Status.FAIL] == ["redis"]
    assert {each.status for each in told[1:]} == {Status.NOT_TRIED}


@pytest.mark.parametrize(
    ("failure", "mend"),
    [
        ("Error 111 connecting to h:1. Connection refused.", "start it, or name another"),
        ("Authentication required.", "put user and password into the URL"),
        ("invalid username-password pair or user is disabled.", "put user and password into the URL"),
        ("this user has no permissions to run the 'ping' command", "let the user +ping"),
        ("TLS with h:1: its certificate is refused: self-signed", "?ssl_ca_certs=FILE"),
    ],
)
def test_whom_redis_does_not_answer_is_helped(failure: str, mend: str) -> None:
    away = RedisFacts(url="redis://a", is_cluster=False, failure=failure)
    first = next(redis(Settings(redis="redis://a"), away, Wanted(1, 1, is_asked=True)))
    assert mend in first.mend


def test_a_sound_redis_and_its_nodes_are_found_so() -> None:
    sound = RedisFacts(
        url="redis://a", is_cluster=False, failure="", servers=[SERVER], data=("1", "1"), nodes=[NODE]
    )
    told = list(redis(Settings(redis="redis://a"), sound, Wanted(9, 9, is_asked=True)))
    assert worst(told) is Status.OK


def test_what_is_not_tried_is_better_than_a_warning() -> None:
    def of(status: Status) -> Finding:
        return Finding("ports", status, "", "")

    assert worst([of(Status.OK), of(Status.NOT_TRIED)]) is Status.NOT_TRIED
    assert worst([of(Status.NOT_TRIED), of(Status.WARN), of(Status.OK)]) is Status.WARN
    assert worst([of(Status.WARN), of(Status.FAIL)]) is Status.FAIL


def test_help_lists_what_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name:<20}  {about}\n" in out for name, about in CHECKS.items())
