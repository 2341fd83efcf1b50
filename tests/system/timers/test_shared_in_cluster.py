"""Shared timers on a Redis Cluster: each on one of its servers, whole while its slot moves."""

import time
from collections.abc import Iterator

import pytest

from loadtest.redis_cluster import Cluster
from presence.store.batches import StoreUnavailable
from presence.store.scripting import Scripting
from presence.timers.interface import Due, Event
from tests.timers.keeping import BASE, KINDS, a_timer

PATIENCE_S = 5.0


@pytest.fixture
def scripting(redis_cluster: Cluster) -> Iterator[Scripting]:
    scripting = Scripting(redis_cluster.url)
    yield scripting
    scripting.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_timer_whose_slot_moves_refuses_meanwhile_and_loses_nothing(
    redis_cluster: Cluster, scripting: Scripting, kind: str
) -> None:
    timer = a_timer(scripting, kind)
    timer.schedule_many(Event(str(number), 0.0) for number in range(20))
    time.sleep(0.03)
    found = list[Due](timer.due(limit=5))
    source = redis_cluster.primary_of(f"{BASE}:work")
    move = redis_cluster.move(f"{BASE}:work", next(m for m in redis_cluster.members if m is not source))
    move.begin()
    move.step()
    for call in (timer.due, lambda: timer.schedule(Event("new", 0.0)), lambda: timer.done(found)):
        with pytest.raises(StoreUnavailable):
            call()
    while move.step(10):
        pass
    move.finish()
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < 20 and time.monotonic() < deadline:
        try:
            found += timer.due()
        except StoreUnavailable:
            time.sleep(0.01)
    assert sorted(int(due.id) for due in found) == list(range(20))
    assert timer.done(found) == 20
    assert timer.state().waiting == timer.state().leased == 0
