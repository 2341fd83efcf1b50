"""Short runs on real servers: watchers see all, messages arrive once, and slow readers delay no others."""

import pytest

from tests.system.channel import flapping, messages, slow, watch


@pytest.mark.nightly  # live/test_watching.py plays the same faults
@pytest.mark.alone
def test_who_watches_sees_every_change_while_a_worker_and_redis_are_killed() -> None:
    plan = watch.WatchPlan(
        30, 10, 80, 9.0, rate=150.0, kills=1, restarts=1, away_s=1.0, idle_s=2.0, lease_s=1.0
    )
    report = watch.watch(plan, seed=7)
    print(report.table())
    assert report.broken == []
    assert report.metrics["pushes"] > 900
    assert len(report.metrics["injected"]) == 2


@pytest.mark.alone
def test_no_change_is_missed_while_workers_follow_whole_shards_and_switch() -> None:
    plan = watch.WatchPlan(
        30,
        10,
        80,
        12.0,
        rate=150.0,
        kills=1,
        restarts=1,
        away_s=1.0,
        idle_s=2.0,
        lease_s=1.0,
        tides=2,
        channels=36,
    )
    report = watch.watch(plan, seed=7)
    print(report.table())
    assert report.broken == []
    assert report.metrics["pushes"] > 500
    assert len(report.metrics["injected"]) == 3, "each fault, and a switch"


@pytest.mark.nightly
@pytest.mark.alone
def test_no_change_is_missed_while_whole_shards_are_followed_for_a_minute() -> None:
    report = watch.watch(watch.WatchPlan(tides=6, channels=750), seed=7)
    print(report.table())
    assert report.broken == []
    assert len(report.metrics["injected"]) == 3


@pytest.mark.alone
def test_each_message_has_one_outcome() -> None:
    plan = messages.MessagesPlan(
        users=200,
        messages=6000,
        window=128,
        rate=500.0,
        seconds=2.0,
        movers=20,
        move_each_s=2.0,
        rate_min=0.0,  # how fast is for a machine that does nothing else
        p99_max_ms=5000.0,
    )
    report = messages.messages(plan, seed=7)
    print(report.table())
    assert report.broken == []
    assert report.metrics["handed"] > 6000
    assert report.metrics["refused"] > 0
    assert report.metrics["moves"] > 0


@pytest.mark.nightly
def test_watchers_that_never_read_are_given_the_newest_when_they_do() -> None:
    plan = slow.SlowPlan(deaf=60, others=10, users=40, rate=40.0, seconds=4.0)
    report = slow.slow(plan, 7)
    print(report.table())
    assert [words for words in report.broken if not words.startswith("p99")] == []  # noise, of so few


@pytest.mark.nightly
def test_flapping_is_no_event() -> None:
    plan = flapping.FlappingPlan(
        clients=10, calm=5, drops=12, minute_s=9.0, grace_s=2.5, idle_s=5.0, tick_s=0.5
    )
    report = flapping.flapping(plan, seed=7)
    print(report.table())
    assert report.broken == []
