"""How runners share shards: each has one sender at a time, and a dead runner's go to others."""

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from presence.rooms.keys import RoomKeys
from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.redis_client import Redis, open_client
from presence.webhooks.shard_locks import ShardLocks
from tests.subscriber.streams import Streams

SHARDS = 5
LOCK_S = 30.0


class Runners:
    """Runners of one group, on one Redis, with a clock of their own."""

    def __init__(self, url: str, client: Redis, stack: ExitStack) -> None:
        self.now = 100.0
        self.client = client
        self._url = url
        self._stack = stack
        Streams(client, SHARDS)

    def add(self, name: str, kind: type[Keys] = Keys) -> ShardLocks:
        locks = ShardLocks(self._url, "presence", "g", name, lock_s=LOCK_S, clock=lambda: self.now, kind=kind)
        self._stack.enter_context(closing(locks))
        return locks

    def expire(self, shard: int) -> None:
        """Let Redis forget the lock of a shard, as it does after `LOCK_S`."""
        self.client.delete(f"presence:{{{shard}}}:webhooks:g")


@pytest.fixture
def runners(redis_server: EmbeddedRedis) -> Iterator[Runners]:
    with open_client(redis_server.url) as client, ExitStack() as stack:
        yield Runners(redis_server.url, client, stack)


def test_a_lone_runner_has_all_shards(runners: Runners) -> None:
    locks = runners.add("a")
    assert locks.renew() == set(range(SHARDS))
    assert {lock.until for lock in locks.held.values()} == {runners.now + LOCK_S}


def test_a_second_runner_gets_its_share_when_the_first_releases_it(runners: Runners) -> None:
    first, second = runners.add("a"), runners.add("b")
    first.renew()
    assert second.renew() == {1, 3}
    assert second.held == {}, "the first has all locks"
    assert first.renew() == {0, 2, 4}
    given_up = first.held[1]
    first.release({1, 3})
    assert given_up.until == 0
    second.renew()
    assert (set(first.held), set(second.held)) == ({0, 2, 4}, {1, 3})


def test_runners_for_rooms_share_nothing_with_those_for_users(runners: Runners) -> None:
    users, rooms = runners.add("a"), runners.add("b", RoomKeys)
    assert users.renew() == rooms.renew() == set(range(SHARDS))
    assert set(users.held) == set(rooms.held) == set(range(SHARDS))
    rooms.leave()
    users.renew()
    assert len(users.held) == SHARDS


def test_a_renewed_lock_is_the_same_and_a_lost_one_is_not(runners: Runners) -> None:
    locks = runners.add("a")
    locks.renew()
    lock = locks.held[0]
    runners.now += 10
    locks.renew()
    assert locks.held[0] is lock
    assert lock.until == runners.now + LOCK_S
    runners.expire(0)  # another runner may have held it meanwhile
    locks.renew()
    assert lock.until == 0
    assert locks.held[0] is not lock


def test_a_lock_that_another_runner_has_got_is_lost(runners: Runners) -> None:
    first, second = runners.add("a"), runners.add("b")
    first.renew()
    lock = first.held[1]
    runners.expire(1)
    second.renew()
    assert set(second.held) == {1}
    first.renew()
    assert lock.until == 0
    assert 1 not in first.held


def test_a_runner_that_leaves_frees_its_shards_at_once(runners: Runners) -> None:
    first, second = runners.add("a"), runners.add("b")
    first.renew()
    first.leave()
    assert second.renew() == set(range(SHARDS))
    assert set(second.held) == set(range(SHARDS))


def test_locks_expire_in_redis(runners: Runners) -> None:
    runners.add("a").renew()
    ttls = [runners.client.pttl(f"presence:{{{shard}}}:webhooks:g") for shard in range(SHARDS)]
    assert all(0 < ttl <= LOCK_S * 1000 for ttl in ttls)
    assert 0 < runners.client.pttl("presence:webhooks:g") <= LOCK_S * 1000
