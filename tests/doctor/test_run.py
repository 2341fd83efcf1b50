"""A whole run: every check is in the catalogue, and a failure skips the checks that depend on it."""

from dataclasses import replace
from pathlib import Path

import pytest

from presence.cli.main import main
from presence.config.loader import ConfigError, Loaded
from presence.config.settings import Settings
from presence.doctor.machine_checks import ConnectionCounts
from presence.doctor.redis_checks import redis
from presence.doctor.redis_facts import RedisFacts
from presence.doctor.results import CHECKS, CheckResult, CheckStatus, worst
from presence.doctor.run import CheckContext, run_checks
from tests.doctor.contexts import NODE, SENTINEL, SERVER, cluster


def sources(**others: str) -> dict[str, str]:
    return {"admin": "default", **others}


def test_the_catalogue_has_every_check_and_no_other(tmp_path: Path) -> None:
    results = run_checks(CheckContext(lambda: Loaded(Settings(), sources()), root=tmp_path))
    found = replace(cluster((0, 16383, 1)), sentinels=[SENTINEL])
    results += redis(Settings(), found, ConnectionCounts(1, 1, is_asked=True))
    assert {each.check for each in results} == set(CHECKS)


def test_a_failure_skips_dependent_checks_and_all_are_reported(tmp_path: Path) -> None:
    def bad() -> Loaded:
        raise ConfigError(["tick: must be …"])

    results = run_checks(CheckContext(bad, root=tmp_path))
    assert {each.check for each in results} == set(CHECKS)
    assert results[0].status is CheckStatus.FAIL


@pytest.mark.parametrize(
    ("failure", "fix"),
    [
        ("Error 111 connecting to h:1. Connection refused.", "start it, or name another"),
        ("Authentication required.", "put user and password into the URL"),
        ("invalid username-password pair or user is disabled.", "put user and password into the URL"),
        ("this user has no permissions to run the 'ping' command", "give the user +ping"),
        ("TLS with h:1: its certificate is refused: self-signed", "?ssl_ca_certs=FILE"),
    ],
)
def test_a_redis_that_does_not_answer_is_one_failure_with_its_fix(failure: str, fix: str) -> None:
    away = RedisFacts(url="redis://a", is_cluster=False, failure=failure)
    first, *others = redis(Settings(redis="redis://a"), away, ConnectionCounts(1, 1, is_asked=True))
    assert (first.check, first.status) == ("redis", CheckStatus.FAIL)
    assert fix in first.fix
    assert {each.status for each in others} == {CheckStatus.NOT_TRIED}


def test_a_valid_redis_and_its_nodes_pass() -> None:
    sound = RedisFacts(
        url="redis://a", is_cluster=False, failure="", servers=[SERVER], data=("2", "1"), nodes=[NODE]
    )
    results = list(redis(Settings(redis="redis://a"), sound, ConnectionCounts(9, 9, is_asked=True)))
    assert worst(results) is CheckStatus.OK


def test_the_worst_status_counts_and_not_tried_is_better_than_a_warning() -> None:
    rising = [CheckResult("ports", status, "", "") for status in CheckStatus]
    assert list(CheckStatus) == [CheckStatus.OK, CheckStatus.NOT_TRIED, CheckStatus.WARN, CheckStatus.FAIL]
    for count, status in enumerate(CheckStatus, 1):
        assert worst(rising[:count][::-1]) is status


def test_help_lists_all_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name:<20}  {about}\n" in out for name, about in CHECKS.items())
