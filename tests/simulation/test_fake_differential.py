"""The fake Redis against a real one; longer runs: ``python -m tests.simulation.differential``."""

from collections.abc import Callable

import pytest

from presence.embedded import EmbeddedRedis
from presence.store.client import open_client
from tests.simulation.differential import PLAYS, compare
from tests.simulation.fake import commands
from tests.simulation.fake.commands import COMMANDS
from tests.simulation.fake.server import FakeRedis
from tests.simulation.fake.values import Hash, Reply, Stream
from tests.simulation.twins import Different

CALLS = 1200


def overwriting_hsetnx(db: FakeRedis, key: bytes, field: bytes, value: bytes) -> Reply:
    db.write(key, Hash)[field] = value
    return 1


def hdel_that_leaves_empty_hashes(db: FakeRedis, key: bytes, *fields: bytes) -> Reply:
    count = commands.hdel(db, key, *fields)
    db.write(key, Hash)
    return count


def xadd_whose_ids_follow_the_clock(db: FakeRedis, key: bytes, *words: bytes) -> Reply:
    stream = db.read(key, Stream)
    if stream is not None:
        stream.last = (0, 0)
    return commands.xadd(db, key, *words)


def zrem_of_one_member(db: FakeRedis, key: bytes, *members: bytes) -> Reply:
    return commands.zrem(db, key, members[0])


def pexpire_that_does_nothing(_db: FakeRedis, _key: bytes, _ms: bytes) -> Reply:
    return 1


@pytest.mark.parametrize("kind", PLAYS)
def test_both_do_the_same(kind: str, redis_server: EmbeddedRedis) -> None:
    with open_client(redis_server.url) as client:
        made = compare(client, kind, seed=1, calls=CALLS)
    print(f"test_both_do_the_same: {kind}: {made} calls, different 0")


def test_a_planted_fault_is_found(redis_server: EmbeddedRedis) -> None:
    faults: list[tuple[str, bytes, Callable[..., Reply]]] = [
        ("scripts", b"HSETNX", overwriting_hsetnx),
        ("scripts", b"XADD", xadd_whose_ids_follow_the_clock),
        ("scripts", b"PEXPIRE", pexpire_that_does_nothing),
        ("commands", b"HDEL", hdel_that_leaves_empty_hashes),
        ("commands", b"ZREM", zrem_of_one_member),
    ]
    with open_client(redis_server.url) as client:
        for kind, name, fault in faults:
            with pytest.raises(Different):
                compare(client, kind, seed=1, calls=10 * CALLS, commands={**COMMANDS, name: fault})
