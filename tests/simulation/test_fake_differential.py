"""The fake Redis against a real one; a longer run is among the nightly tests."""

from collections.abc import Callable, Mapping
from contextlib import closing
from random import Random
from typing import Final

import pytest
import redis

from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import open_client
from tests.simulation.command_plays import TEXT, CommandPlay
from tests.simulation.fake import commands
from tests.simulation.fake.commands import COMMANDS, Command
from tests.simulation.fake.server import FakeRedis
from tests.simulation.fake.values import Hash, Reply
from tests.simulation.script_plays import CHANNELS, ScriptPlay
from tests.simulation.twins import Different, Twins

CALLS: Final = 1200
CALLS_A_PLAY: Final = 60
PLAYS: Final[dict[str, Callable[[Random, Twins], ScriptPlay | CommandPlay]]] = {
    "scripts": ScriptPlay,
    "commands": CommandPlay,
}


def compare(
    client: redis.Redis, kind: str, seed: int, calls: int, commands: Mapping[bytes, Command] = COMMANDS
) -> None:
    """Make random calls on the fake and on the real Redis, whose keys are all deleted.

    Args:
        kind: of `PLAYS`.
        seed: of the first play; further plays count on from it.
        calls: how many at least.

    Raises:
        Different: they behaved differently; the message begins with the play's seed.
    """
    twins = Twins(client, CHANNELS, commands)
    made = 0
    try:
        while made < calls:
            twins.start()
            play = PLAYS[kind](Random(f"{kind} {seed}"), twins)
            for step in range(CALLS_A_PLAY):
                try:
                    play.step()
                    made += 1
                except Different as error:
                    raise Different(f"{kind}, seed {seed}, call {step}: {error}") from error
            try:
                twins.finish()
            except Different as error:
                raise Different(f"{kind}, seed {seed}, at the end: {error}") from error
            seed += 1
    finally:
        twins.close()


def hdel_that_leaves_empty_hashes(db: FakeRedis, key: bytes, *fields: bytes) -> Reply:
    count = commands.hdel(db, key, *fields)
    db.write(key, Hash)
    return count


def xadd_without_a_value(db: FakeRedis, key: bytes, *words: bytes) -> Reply:
    return commands.xadd(db, key, *words[:-1], b"")


def zrem_of_one_member(db: FakeRedis, key: bytes, *members: bytes) -> Reply:
    return commands.zrem(db, key, members[0])


def pexpire_that_does_nothing(_db: FakeRedis, _key: bytes, _ms: bytes) -> Reply:
    return 1


@pytest.mark.parametrize("kind", PLAYS)
def test_both_do_the_same(kind: str, redis_server: EmbeddedRedis) -> None:
    with open_client(redis_server.url) as client:
        compare(client, kind, seed=1, calls=CALLS)


def test_a_planted_fault_is_found(redis_server: EmbeddedRedis) -> None:
    faults: list[tuple[str, bytes, Callable[..., Reply]]] = [
        ("scripts", b"XADD", xadd_without_a_value),
        ("scripts", b"PEXPIRE", pexpire_that_does_nothing),
        ("commands", b"HDEL", hdel_that_leaves_empty_hashes),
        ("commands", b"ZREM", zrem_of_one_member),
    ]
    with open_client(redis_server.url) as client:
        for kind, name, fault in faults:
            with pytest.raises(Different):
                compare(client, kind, seed=1, calls=10 * CALLS, commands={**COMMANDS, name: fault})


def test_a_stream_is_trimmed_by_whole_nodes(redis_server: EmbeddedRedis) -> None:
    with open_client(redis_server.url) as client, closing(Twins(client)) as twins:
        for number in range(250):
            twins.run(TEXT, ["texts"], ["XADD", "stream", "*", "f", str(number)])
        assert twins.run(TEXT, ["texts"], ["XTRIM", "stream", "MAXLEN", "~", "120"]) == 100
        twins.finish()
