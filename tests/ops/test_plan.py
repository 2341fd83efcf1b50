"""The plan, beside what was measured: docs/benchmarks.md has the figures."""

import pytest

from presence.ops.plan import MB, Cost, Demand, need

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


@pytest.mark.parametrize("more", [{"tls": True}, {"tokens": True}, {"idle_timeout": 10.0}])
def test_tls_tokens_and_a_short_time_out_cost_more(more: dict[str, float]) -> None:
    plain = Demand(100_000, tls=False, tokens=False)
    dearer = Demand(**{**vars(plain), **more})
    assert need(dearer).cores.least > need(plain).cores.least
