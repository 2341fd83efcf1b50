"""When a subscriber retries, and what is logged."""

import logging

import pytest
from redis import RedisError
from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError as RedisConnectionError

from presence.subscriber.retry import Retry


@pytest.fixture
def retry() -> Retry:
    retry = Retry("redis")
    retry.succeeded()
    return retry


def parsed(reply: str) -> RedisError:
    """Return redis-py's exception for an error reply."""
    error: RedisError = BaseParser.parse_error(reply)  # type: ignore[no-untyped-call]  # redis-py's
    return error


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records]


def test_a_connection_that_never_worked_is_given_up() -> None:
    with pytest.raises(RedisConnectionError):
        Retry("redis").delay_after(RedisConnectionError("gone"))


def test_a_permanent_error_is_given_up(retry: Retry) -> None:
    with pytest.raises(RedisError, match="WRONGTYPE"):
        retry.delay_after(parsed("WRONGTYPE Operation against a key"))


def test_an_outage_is_logged_once(retry: Retry, caplog: pytest.LogCaptureFixture) -> None:
    delays = [retry.delay_after(RedisConnectionError("gone")) for _ in range(8)]
    retry.succeeded()
    assert levels(caplog) == ["WARNING", "WARNING"]
    assert 0 < delays[0] <= 0.1 < max(delays) <= 2


def test_a_shard_that_moved_is_no_outage(retry: Retry, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert retry.delay_after(parsed("MOVED 3 127.0.0.1:7000")) <= 0.1
        retry.succeeded()
    assert levels(caplog) == []


def test_an_error_for_the_operator_is_logged_once_and_retried(
    retry: Retry, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            retry.delay_after(parsed("NOPERM this user has no permissions"))
        retry.succeeded()
    assert levels(caplog) == ["ERROR", "WARNING"]
