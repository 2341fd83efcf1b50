"""Timers on a real cluster: what listens, what is spread, and what stays whole while its slot moves."""

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from presence.common.errors import StoreUnavailable
from presence.store.keys import Keys
from presence.store.script_runner import Scripting
from presence.timers.expiry_timer import ExpiryTimer
from presence.timers.interface import Due, Event
from presence.timers.redis_wheel import RedisWheel
from tests.support.redis_cluster import Cluster
from tests.timers.shared_timers import BASE, KINDS, a_timer

TIMEOUT_S = 5.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, options=("--hz", "100")) as cluster:
        yield cluster


@pytest.fixture
def scripting(cluster: Cluster) -> Iterator[Scripting]:
    with closing(Scripting(cluster.url)) as scripting:
        yield scripting


def handle_one(timer: ExpiryTimer) -> str | None:
    """Handle the next event; return its id."""
    deadline = time.monotonic() + TIMEOUT_S
    while (left_s := deadline - time.monotonic()) > 0:
        timer.wait(left_s)
        if dues := timer.due(1):
            timer.done(dues)
            return dues[0].id
    return None


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_primary_is_heard_also_when_the_timer_moves(
    cluster: Cluster, scripting: Scripting, number: int
) -> None:
    here, there = (cluster.members[(number + more) % 3] for more in (0, 1))
    base = next(base for n in range(100) if cluster.primary_of(base := Keys().timer(f"t{n}")) is here)
    with closing(ExpiryTimer(scripting, base, reconcile_s=60.0)) as timer:
        timer.due()
        timer.schedule(Event("a", 0.02))
        assert handle_one(timer) == "a"
        timer.schedule(Event("b", 0.3))
        cluster.move_atomically([cluster.slot_of(base)], there)
        assert handle_one(timer) == "b"
        assert (timer.servers, timer.heard) == (3, 2)


def test_users_of_a_wheel_are_spread_over_all_primaries(cluster: Cluster) -> None:
    with closing(RedisWheel(cluster.url, "web", idle_timeout_s=0.05, tick_s=0.01)) as wheel:
        uids = [str(n) for n in range(100)]
        assert sorted(wheel.touch_many(uids)) == sorted(uids)
        assert wheel.count() == 100
        assert wheel.last_seen(uids).keys() == set(uids)
        assert all(member.client.keys("presence:timer:web:*:users") for member in cluster.members)
        found, deadline = list[str](), time.monotonic() + TIMEOUT_S
        while len(found) < 100 and time.monotonic() < deadline:
            found += [each.uid for each in wheel.due(30)]
        assert sorted(found) == sorted(uids)


@pytest.mark.parametrize("kind", KINDS)
def test_a_timer_whose_slot_moves_refuses_meanwhile_and_loses_nothing(
    cluster: Cluster, scripting: Scripting, kind: str
) -> None:
    for member in cluster.members:
        member.client.flushall()
    timer = a_timer(scripting, kind)
    timer.schedule_many(Event(str(number), 0.0) for number in range(20))
    time.sleep(0.03)
    found = list[Due](timer.due(limit=5))
    source = cluster.primary_of(f"{BASE}:work")
    move = cluster.move(f"{BASE}:work", next(m for m in cluster.members if m is not source))
    move.begin()
    move.step()
    for call in (timer.due, lambda: timer.schedule(Event("new", 0.0)), lambda: timer.done(found)):
        with pytest.raises(StoreUnavailable):
            call()
    while move.step(10):
        pass
    move.finish()
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < 20 and time.monotonic() < deadline:
        try:
            found += timer.due()
        except StoreUnavailable:
            time.sleep(0.01)
    assert sorted(int(due.id) for due in found) == list(range(20))
    assert timer.done(found) == 20
    assert timer.state().waiting == timer.state().leased == 0
