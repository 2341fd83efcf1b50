"""What each error reply means: is it temporary, may another server work, is an operator needed?

The relay's reaction is in tests/outbox/test_relay.py; replies of real servers are in test_redis_store.py.
"""

import pytest
import redis
from redis._parsers.base import BaseParser

from presence.common.errors import StoreError, StoreUnavailable
from presence.store.error_classes import as_failure, code_of, is_elsewhere, needs_operator, passes

PASSES, ELSEWHERE, OPERATORS, NONE = (
    (True, False, False),
    (True, True, False),
    (False, False, True),
    (False,) * 3,
)
CODES = {
    "MOVED 3999 127.0.0.1:6381": ELSEWHERE,
    "ASK 3999 127.0.0.1:6381": ELSEWHERE,
    "CLUSTERDOWN The cluster is down": ELSEWHERE,
    "READONLY You can't write against a read only replica.": ELSEWHERE,
    "LOADING Redis is loading the dataset in memory": ELSEWHERE,
    "MASTERDOWN Link with MASTER is down": ELSEWHERE,
    "UNBLOCKED force unblock from blocking operation": ELSEWHERE,
    "TRYAGAIN Multiple keys request during rehashing of slot": PASSES,
    "BUSY Redis is busy running a script.": PASSES,
    "REPEAT this call: entry 1-1 was deleted from presence:{0}:events": PASSES,
    "UNKILLABLE Sorry the script already executed write commands": PASSES,
    "OOM command not allowed when used memory > 'maxmemory'.": PASSES,
    "NOREPLICAS Not enough good replicas to write.": PASSES,
    "MISCONF Errors writing to the AOF file": PASSES,
    "NOAUTH Authentication required.": OPERATORS,
    "WRONGPASS invalid username-password pair": OPERATORS,
    "NOPERM User x has no permissions to run the 'xadd' command": OPERATORS,
    "DENIED Redis is running in protected mode": OPERATORS,
    "WRONGTYPE Operation against a key": NONE,
    "ERR unknown command 'evalsha'": NONE,
}
WRAPPED = {
    "ERR Error running script (call to f_1c): @user_script:7: -OOM command not allowed": "OOM",
    "ERR Error running script (call to f_1c): @user_script:7: WRONGTYPE Operation against a key": "WRONGTYPE",
    "ERR Error running script (call to f_1c): @user_script:7: A table is nil": "ERR",
    "OOM command not allowed. script: 1c, on @user_script:7.": "OOM",
    "EXECABORT Transaction discarded because of: READONLY You can't write": "READONLY",
    "EXECABORT Transaction discarded because of previous errors.": "EXECABORT",
    "The user executing the script can't run this command or subcommand script: 1c": "NOPERM",
    "ACL failure in script: User x has no permissions to run the 'setrange' command": "NOPERM",
    "no code at all": "",
}


def parsed(reply: str) -> redis.RedisError:
    """Return the exception that redis-py makes of an error reply."""
    error: redis.RedisError = BaseParser.parse_error(reply)  # type: ignore[no-untyped-call]  # redis-py's
    return error


@pytest.mark.parametrize("reply", CODES)
def test_a_code_belongs_to_its_class(reply: str) -> None:
    error = parsed(reply)
    assert code_of(error) == reply.split(maxsplit=1)[0]
    assert (passes(error), is_elsewhere(error), needs_operator(error)) == CODES[reply]
    assert type(as_failure(error)) is (StoreUnavailable if CODES[reply][0] else StoreError)


@pytest.mark.parametrize("reply", WRAPPED)
def test_a_code_is_found_in_a_wrapped_error(reply: str) -> None:
    assert code_of(parsed(reply)) == WRAPPED[reply]


@pytest.mark.parametrize("code", ["OOM", "NOREPLICAS"])  # redis-py has a class for one of the two
def test_a_code_is_found_after_the_command_that_a_pipeline_prepends(code: str) -> None:
    error = parsed(f"{code} not now")
    error.args = (f"Command # 1 (HSET k f MOVED) of pipeline caused error: {error}",)
    assert code_of(error) == code


@pytest.mark.parametrize("error", [redis.ConnectionError("closed"), redis.TimeoutError("2 s")])
def test_a_lost_connection_is_temporary_and_another_server_may_work(error: Exception) -> None:
    assert passes(error)
    assert is_elsewhere(error)
    assert isinstance(as_failure(error), StoreUnavailable)


def test_a_call_whose_connection_was_closed_concurrently_may_be_repeated() -> None:
    assert isinstance(
        as_failure(ValueError("file descriptor cannot be a negative integer")), StoreUnavailable
    )
