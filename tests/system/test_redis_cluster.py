"""The cluster of processes for tests: it serves, fails over, and moves slots."""

from collections.abc import Iterator

import pytest

from presence.store.redis_client import RedisError
from tests.support.redis_cluster import Cluster, have_same_view


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


def key_of(cluster: Cluster, number: int) -> str:
    """Return a key that the member with that number serves."""
    member = cluster.members[number]
    return next(key for key in map(str, range(1000)) if cluster.primary_of(key) is member)


def test_a_slot_half_moved_is_served_by_nobody_alone(cluster: Cluster) -> None:
    key = key_of(cluster, 0)
    source, target = cluster.members[:2]
    here, there = (f"{{{key}}}{end}" for end in "ab")
    source.client.mset({here: 1, there: 2})
    move = cluster.move(key, target)
    move.begin()
    assert move.step() == 1
    with pytest.raises(RedisError, match=r"Multiple keys|ASK"):
        source.client.mget(here, there)
    with pytest.raises(RedisError, match=f"{source.announced_port}"):  # MOVED: it is not the target's yet
        target.client.get(here)
    while move.step():
        pass
    move.finish()
    assert target.client.mget(here, there) == [b"1", b"2"]
    assert cluster.primary_of(key) is target


def test_a_move_ends_when_all_members_know_so_that_the_slot_may_go_straight_back() -> None:
    with Cluster(3, 1) as cluster:
        here = cluster.primary_of("key")
        there = next(member for member in cluster.primaries() if member is not here)
        for target in (there, here) * 5:
            cluster.move("key", target).run()
            assert have_same_view(cluster.members)


def test_a_replica_takes_the_place_of_a_killed_primary_and_gives_it_back() -> None:
    with Cluster(3, 1) as cluster:
        first = cluster.primary_of("key")
        first.client.set("key", "value")
        first.client.wait(1, 1000)
        second = cluster.fail_over(first)
        assert not first.is_running
        assert cluster.primary_of("key") is second
        assert second.client.get("key") == b"value"
        cluster.start(first)
        cluster.wait_until_ok()
        assert cluster.fail_over(second, is_graceful=True) is first
        assert first.client.get("key") == b"value"
    assert not any(member.is_running for member in cluster.members)
