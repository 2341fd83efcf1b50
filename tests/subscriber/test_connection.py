"""When a subscriber tries again, and what the log hears of it."""

import logging

import pytest
from redis import RedisError
from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError as RedisConnectionError

from presence.subscriber.connection import RedisConnections, Retry


@pytest.fixture
def retry() -> Retry:
    retry = Retry("redis")
    retry.succeeded()
    return retry


def parsed(reply: str) -> RedisError:
    """Return what redis-py makes of an error reply."""
    error: RedisError = BaseParser.parse_error(reply)  # type: ignore[no-untyped-call]  # redis-py's
    return error


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records]


def test_a_call_during_which_another_thread_closes_the_link_fails_as_closed() -> None:
    link = RedisConnections("redis://127.0.0.1:1")
    with pytest.raises(TypeError), link.borrow():
        raise TypeError

    def read() -> None:
        with link.borrow():
            link.close()
            raise TypeError  # as redis-py does with a socket that is None by now

    with pytest.raises(RedisConnectionError, match="closed"):
        read()


def test_what_never_worked_is_given_up() -> None:
    with pytest.raises(RedisConnectionError):
        Retry("redis").delay_after(RedisConnectionError("gone"))


def test_an_error_that_does_not_pass_is_given_up(retry: Retry) -> None:
    with pytest.raises(RedisError, match="WRONGTYPE"):
        retry.delay_after(parsed("WRONGTYPE Operation against a key"))


def test_an_outage_is_told_once(retry: Retry, caplog: pytest.LogCaptureFixture) -> None:
    delays = [retry.delay_after(RedisConnectionError("gone")) for _ in range(8)]
    retry.succeeded()
    assert told(caplog) == ["WARNING", "WARNING"]
    assert 0 < delays[0] <= 0.1 < max(delays) <= 2


def test_that_a_shard_moved_once_is_no_outage(retry: Retry, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert retry.delay_after(parsed("MOVED 3 127.0.0.1:7000")) <= 0.1
        retry.succeeded()
    assert told(caplog) == []


def test_what_an_operator_has_to_mend_is_told_as_an_error_once_and_tried_again(
    retry: Retry, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            retry.delay_after(parsed("NOPERM this user has no permissions"))
        retry.succeeded()
    assert told(caplog) == ["ERROR", "WARNING"]
