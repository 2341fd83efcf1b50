"""What listens and what is spread, on a real cluster."""

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from loadtest.redis_cluster import Cluster
from presence.store.keys import Keys
from presence.store.scripting import Scripting
from presence.timers.expiry_timer import ExpiryTimer
from presence.timers.interface import Event
from presence.timers.redis_wheel import RedisWheel


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, options=("--hz", "100")) as cluster:
        yield cluster


@pytest.fixture
def scripting(cluster: Cluster) -> Iterator[Scripting]:
    with closing(Scripting(cluster.url)) as scripting:
        yield scripting


def base_at(cluster: Cluster, number: int) -> str:
    """Return the base of a timer that the member with that number has."""
    member = cluster.members[number]
    return next(base for n in range(100) if cluster.primary_of(base := Keys().timer(f"t{n}")) is member)


def handle_one(timer: ExpiryTimer, seconds: float = 5.0) -> str | None:
    """Handle the next event; return its id."""
    deadline = time.monotonic() + seconds
    while (left_s := deadline - time.monotonic()) > 0:
        timer.wait(left_s)
        if dues := timer.due(1):
            timer.done(dues)
            return dues[0].id
    return None


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_primary_is_heard(cluster: Cluster, scripting: Scripting, number: int) -> None:
    with closing(ExpiryTimer(scripting, base_at(cluster, number), reconcile_s=60.0)) as timer:
        timer.due()
        timer.schedule(Event("a", 0.02))
        assert handle_one(timer) == "a"
        assert (timer.hearing().servers, timer.hearing().heard) == (3, 1)


def test_a_timer_that_moves_is_heard_where_it_went(cluster: Cluster, scripting: Scripting) -> None:
    base = base_at(cluster, 0)
    with closing(ExpiryTimer(scripting, base, reconcile_s=60.0)) as timer:
        timer.due()
        timer.schedule(Event("a", 0.3, b"payload"))
        cluster.move_at_once([cluster.slot_of(base)], cluster.members[1])
        assert handle_one(timer) == "a"
        assert timer.hearing().heard == 1


def test_users_of_a_wheel_are_spread_over_all_primaries(cluster: Cluster) -> None:
    with closing(RedisWheel(cluster.url, "web", idle_timeout_s=0.05, tick_s=0.01)) as wheel:
        uids = [str(n) for n in range(100)]
        assert sorted(wheel.touch_many(uids)) == sorted(uids)
        assert wheel.count() == 100
        assert wheel.last_seen(uids).keys() == set(uids)
        assert all(member.client.keys("presence:timer:web:*:users") for member in cluster.members)
        found, deadline = list[str](), time.monotonic() + 5
        while len(found) < 100 and time.monotonic() < deadline:
            found += [each.uid for each in wheel.due(30)]
        assert sorted(found) == sorted(uids)
