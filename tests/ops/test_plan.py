"""The plan, beside what was measured: docs/benchmarks.md has the figures."""

import random
from dataclasses import replace

import pytest

from presence.ops.plan import CHANNEL_BYTES, MB, Cost, Demand, need
from presence.watching.shard_placement import MAX_USER_CHANNELS

ALWAYS_ON = Demand(100_000, visits=1, minutes=1440, peak=1, tls=False, tokens=False)


def contains(cost: Cost, value: float) -> bool:
    return cost.least <= value <= cost.most


def test_a_hundred_thousand_connections_as_measured() -> None:
    found = need(ALWAYS_ON)
    assert found.workers == 6
    assert contains(found.memory, (185 + 49) * MB)
    assert contains(found.cores, 8_333 * 19e-6)  # answered keepalives
    assert contains(found.log_in_all_s, 100_000 * 103e-6 * 1.1)


def test_a_million_connections_as_measured() -> None:
    demand = Demand(1_000_000, 1, 1440, 1, idle_timeout=120, tls=False, tokens=False)
    assert demand.keepalives_per_s == pytest.approx(20_833, rel=0.01)
    assert need(demand).workers >= 53
    assert contains(need(demand).memory, 1.3e9 + 49 * MB)


def test_what_redis_takes_as_measured() -> None:
    demand = Demand(2_000_000, visits=1, minutes=720, peak=1, events=1_000_000)
    assert demand.online == 1_000_000
    assert contains(need(demand).redis_memory, 524 * MB)


def test_people_who_come_for_some_minutes() -> None:
    demand = Demand(144_000, visits=10, minutes=1, peak=3)
    assert demand.online == 3_000
    assert demand.visits_per_s == pytest.approx(50)
    assert need(demand).workers == 1
    assert Demand(100, visits=100, minutes=60).online == 100  # never more than there are


def test_how_long_events_are_kept() -> None:
    demand = Demand(1_000_000, visits=10, peak=3, events=1_000_000)
    assert need(demand).events_h == pytest.approx((0.4, 1.2))
    assert need(Demand(1_000, visits=10, peak=0.5)).events_h == pytest.approx((1200, 2400))


@pytest.mark.parametrize(
    "more",
    [{"tls": True}, {"tokens": True}, {"idle_timeout": 10.0}, {"friends": 10.0}, {"changes": 1.0}],
)
def test_what_makes_more_work_takes_more_cores(more: dict[str, float]) -> None:
    plain = Demand(100_000, tls=False, tokens=False)
    dearer = Demand(**{**vars(plain), **more})
    assert need(dearer).cores.least > need(plain).cores.least


def test_a_connection_over_websocket_takes_as_much_more_memory_as_measured() -> None:
    more = need(replace(ALWAYS_ON, websocket=0.5)).memory.least - need(ALWAYS_ON).memory.least
    assert more == pytest.approx(50_000 * 1_971)


# Friend lists


def test_a_worker_keeps_a_user_once_whom_several_of_its_clients_watch() -> None:
    demand = Demand(2_000, visits=1, minutes=1440, peak=1, friends=30, descriptors=250)
    found, rng = need(demand), random.Random(1)
    assert found.watches == pytest.approx(demand.online * 30 / found.workers, abs=1)
    drawn = {rng.randrange(demand.users) for _ in range(found.watches)}
    assert found.watched_users == pytest.approx(len(drawn), rel=0.02)


def test_a_change_is_told_to_the_friends_who_are_online() -> None:
    demand = Demand(1_000_000, visits=12, minutes=30, peak=2, friends=150, changes=3)
    assert (demand.online, demand.told) == (500_000, 75)
    assert demand.changes_per_s == pytest.approx(2 * 277.8 + 250, rel=0.001)


def test_a_worker_has_only_so_many_channels_in_redis_whatever_it_watches() -> None:
    few = replace(ALWAYS_ON, friends=0.1)
    assert need(few).watched_users < MAX_USER_CHANNELS
    for friends in (10, 150):
        more = need(replace(few, friends=friends)).redis_memory.most - need(ALWAYS_ON).redis_memory.most
        assert more == pytest.approx(6 * MAX_USER_CHANNELS * CHANNEL_BYTES.most)


def test_clients_that_say_batch_get_fewer_bytes() -> None:
    demand = replace(ALWAYS_ON, friends=50, changes=3)
    assert need(demand).to_clients.most < 0.7 * need(replace(demand, batch=False)).to_clients.most


def test_updates_fill_the_stream_sooner() -> None:
    assert need(replace(ALWAYS_ON, changes=3)).events_h.most < need(ALWAYS_ON).events_h.most / 2


def test_more_changes_than_a_worker_can_follow_are_refused() -> None:
    with pytest.raises(ValueError, match="more than a worker can follow"):
        need(Demand(1_000_000, friends=150, changes=6000))
