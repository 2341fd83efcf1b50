"""What each error reply means: once for each code, through the real store and the relay, and where it can be
had from a real server."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from redis._parsers.base import BaseParser

from presence.embedded import find_binary
from presence.store.batches import StoreError, StoreUnavailable
from presence.store.failures import as_failure, code_of, is_elsewhere, needs_operator, passes
from presence.store.keys import Keys
from presence.store.packing import Shape
from presence.store.redis_store import RedisStore
from presence.store.replies import Reply
from tests.store.driving import Hand, login, story
from tests.store.refusing import RefusingFront
from tests.store.servers import Server


class Case(NamedTuple):
    """An error reply: whether it passes, whether another may serve then, whether it waits for an operator."""

    reply: str
    passing: bool = True
    elsewhere: bool = False
    operators: bool = False


CASES = {
    "MOVED": Case("MOVED 3999 127.0.0.1:6381", elsewhere=True),
    "ASK": Case("ASK 3999 127.0.0.1:6381", elsewhere=True),
    "TRYAGAIN": Case("TRYAGAIN Multiple keys request during rehashing of slot"),
    "CLUSTERDOWN": Case("CLUSTERDOWN The cluster is down", elsewhere=True),
    "READONLY": Case("READONLY You can't write against a read only replica.", elsewhere=True),
    "LOADING": Case("LOADING Redis is loading the dataset in memory", elsewhere=True),
    "MASTERDOWN": Case("MASTERDOWN Link with MASTER is down", elsewhere=True),
    "UNBLOCKED": Case("UNBLOCKED force unblock from blocking operation", elsewhere=True),
    "BUSY": Case("BUSY Redis is busy running a script."),
    "UNKILLABLE": Case("UNKILLABLE Sorry the script already executed write commands"),
    "OOM": Case("OOM command not allowed when used memory > 'maxmemory'."),
    "NOREPLICAS": Case("NOREPLICAS Not enough good replicas to write."),
    "NOAUTH": Case("NOAUTH Authentication required.", passing=False, operators=True),
    "WRONGPASS": Case("WRONGPASS invalid username-password pair", passing=False, operators=True),
    "NOPERM": Case("NOPERM User x has no permissions to run the 'xadd' command", False, operators=True),
    "DENIED": Case("DENIED Redis is running in protected mode", passing=False, operators=True),
    "WRONGTYPE": Case("WRONGTYPE Operation against a key", passing=False),
    "MISCONF": Case("MISCONF Errors writing to the AOF file"),
    "ERR": Case("ERR unknown command 'evalsha'", passing=False),
}
each_case = pytest.mark.parametrize(("code", "case"), CASES.items(), ids=list(CASES))


def parsed(reply: str) -> redis.RedisError:
    """Return the exception that redis-py makes of an error reply."""
    error: redis.RedisError = BaseParser.parse_error(reply)  # type: ignore[no-untyped-call]  # redis-py's
    return error


@pytest.fixture
def front(folder: Path) -> Iterator[RefusingFront]:
    binary = find_binary()
    assert binary
    server = Server(binary, folder)
    front = RefusingFront(folder, folder / "redis.sock")
    yield front
    front.close()
    server.close()


@pytest.fixture
def hand(front: RefusingFront) -> Iterator[Hand]:
    store = RedisStore(front.url, Shape(Keys(), maxlen=1000, seen_retention_ms=10**13))
    hand = Hand(store, "a")
    hand.open()
    yield hand
    store.close()


def refused(hand: Hand, front: RefusingFront, reply: str) -> StoreUnavailable | StoreError:
    """Send a login that gets this reply; return what it came to."""
    front.refusal = reply
    answer: Reply | StoreUnavailable | StoreError
    try:
        (answer,) = hand.store.apply([hand.batch([login("u", "s1")], hand.n + 1)])
    except (StoreUnavailable, StoreError) as failure:
        answer = failure
    front.refusal = ""
    assert not isinstance(answer, Reply)
    return answer


@each_case
def test_a_code_is_of_its_class(code: str, case: Case) -> None:
    error = parsed(case.reply)
    assert code_of(error) == code
    assert (passes(error), is_elsewhere(error), needs_operator(error)) == case[1:]


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("ERR Error running script (call to f_1c): @user_script:7: -OOM command not allowed", "OOM"),
        ("OOM command not allowed. script: 1c, on @user_script:7.", "OOM"),
        ("EXECABORT Transaction discarded because of: READONLY You can't write", "READONLY"),
        ("EXECABORT Transaction discarded because of previous errors.", "EXECABORT"),
        ("The user executing the script can't run this command or subcommand script: 1c", "NOPERM"),
        ("ACL failure in script: User x has no permissions to run the 'setrange' command", "NOPERM"),
        ("no code at all", ""),
    ],
)
def test_a_code_is_found_where_redis_wraps_it(reply: str, code: str) -> None:
    assert code_of(parsed(reply)) == code


@pytest.mark.parametrize("code", ["OOM", "NOREPLICAS"])  # redis-py has a class for one of the two
def test_a_code_is_found_where_a_pipeline_puts_the_command_before_it(code: str) -> None:
    error = parsed(CASES[code].reply)
    error.args = (f"Command # 1 (HSET k f MOVED) of pipeline caused error: {error}",)
    assert code_of(error) == code


@pytest.mark.parametrize("error", [redis.ConnectionError("closed"), redis.TimeoutError("2 s")])
def test_a_lost_connection_passes_and_another_may_serve(error: Exception) -> None:
    assert passes(error)
    assert is_elsewhere(error)
    assert isinstance(as_failure(error), StoreUnavailable)


def test_a_call_whose_connection_was_closed_under_its_feet_may_be_made_again() -> None:
    assert isinstance(
        as_failure(ValueError("file descriptor cannot be a negative integer")), StoreUnavailable
    )


def test_each_code_is_told_as_it_deserves_and_the_call_may_be_made_again(
    hand: Hand, front: RefusingFront
) -> None:
    told = {}
    for number, (code, case) in enumerate(CASES.items()):
        told[code] = isinstance(refused(hand, front, case.reply), StoreUnavailable)
        hand.apply(login(f"u{number}", "s1"))
    assert told == {code: case.passing for code, case in CASES.items()}
    client = redis.Redis.from_url(front.url, protocol=2)
    assert [uid for _, uid, _ in story(client)] == [f"u{number}" for number in range(len(CASES))]
