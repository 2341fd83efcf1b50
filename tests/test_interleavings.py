"""The late close of a replaced session ends nobody, in whatever order things happen."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from presence.core import Core
from presence.embedded import EmbeddedRedis
from presence.registry import Session
from protocol import Code
from tests.interleavings import Shard, in_memory, play, told

TIMES = 2000


@pytest.fixture
def shard(redis_server: EmbeddedRedis, request: pytest.FixtureRequest) -> Iterator[Shard]:
    with closing(Shard(redis_server.url, compared=request.param)) as shard:
        yield shard


def by_user(core: Core, late: Session) -> None:
    """End whatever session the user has, as if the late one were it."""
    if (present := core.sessions.get(late.key)) is not None:
        core.endings.end(present, Code.CLOSED, core._clock.now())


def test_in_the_memory_of_a_node() -> None:
    tally = play(TIMES, 1, in_memory)
    print(told("in memory", tally))
    assert tally.late > TIMES
    assert tally.wrong == 0


def test_without_the_comparison_users_would_be_ended() -> None:
    assert play(100, 1, partial(in_memory, late_close=by_user)).wrong > 50


@pytest.mark.parametrize("shard", [True], indirect=True, ids=[""])
def test_in_redis(shard: Shard) -> None:
    tally = play(TIMES, 1, shard.play)
    print(told("in Redis", tally))
    assert tally.late > TIMES
    assert tally.wrong == 0


@pytest.mark.parametrize("shard", [False], indirect=True, ids=[""])
def test_without_the_name_of_the_session_redis_would_end_users(shard: Shard) -> None:
    assert play(100, 1, shard.play).wrong > 50
