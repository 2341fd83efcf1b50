"""What a run plans, cancels and delivers, on a real Valkey."""

from contextlib import closing
from typing import Any

import msgpack
import pytest

from presence.config.followup_rules import Rule
from presence.followups import script_calls
from presence.followups.run_scheduler import FollowUpScheduler
from presence.store.redis_client import Redis
from tests.followups.shards import Shard

MINUTE_MS = 60_000


def test_a_follow_up_is_delivered_once_when_it_is_due(shard: Shard) -> None:
    event = shard.go_offline("ann")
    shard.run_scheduler(times=2)
    assert shard.delivered() == []
    shard.run_scheduler(after_ms=MINUTE_MS + 1, times=2)
    (followup,) = shard.delivered()
    at_ms = int(event.partition("-")[0]) + 1
    assert {**followup, "at_ms": ""} == {
        **{"v": "1", "id": "mail:ann:1001", "name": "mail", "uid": "ann", "payload": "template"},
        **{"reason": "idle_timeout", "code": "201", "offline_id": event, "offline_at_ms": str(at_ms)},
        **{"last_seen_ms": "1001", "due_ms": str(at_ms + MINUTE_MS), "at_ms": ""},
    }
    assert shard.client.keys("*:followup:work") == [], "nothing of it remains"
    assert not shard.client.exists("presence:{0}:followup:of")


def test_offline_periods_with_equal_times_are_distinct(shard: Shard) -> None:
    shard.go_offline("ann")
    shard.come_online("ann")
    shard._seen_ms -= 1  # last seen in the same millisecond
    second = shard.go_offline("ann")
    shard.run_scheduler()
    shard.run_scheduler(after_ms=MINUTE_MS * 2)
    assert [followup["offline_id"] for followup in shard.delivered()] == [second]


def test_due_follow_ups_are_delivered_in_bounded_slices(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_calls, "MAX_DUE_PER_RUN", 2)
    for uid in "abcde":
        shard.go_offline(uid)
    shard.run_scheduler()
    shard.pass_time(MINUTE_MS * 2)
    for count in (2, 4, 5):
        shard.run_scheduler()
        assert len(shard.delivered()) == count
    assert shard.delivered_to() == list("abcde")


def test_a_run_with_many_rules_stops_early(client: Redis, url: str) -> None:
    shard = Shard(client, url, [Rule(f"r{n}", 60) for n in range(64)])
    shard.run_scheduler()
    for n in range(20):
        shard.go_offline(f"u{n}")
    assert [shard.run_scheduler().counters.planned for _ in range(3)] == [512, 512, 256]
    for n in range(20):
        shard.come_online(f"u{n}")
    assert [shard.run_scheduler().counters.cancelled for _ in range(3)] == [512, 512, 256]
    assert client.hlen("presence:{0}:followup:work") == 0


def test_each_rule_has_its_own_reasons_and_delay(client: Redis, url: str) -> None:
    rules = [
        Rule("all", 10.0),
        Rule("lost", 20.0, ("idle_timeout", "node_down")),
        Rule("gone", 5.0, ("logout",)),
    ]
    shard = Shard(client, url, rules)
    shard.run_scheduler()
    shard.go_offline("ann", "idle_timeout")
    shard.go_offline("bob", "logout")
    shard.run_scheduler()
    shard.run_scheduler(after_ms=MINUTE_MS)
    assert [(followup["name"], followup["uid"]) for followup in shard.delivered()] == [
        ("gone", "bob"),
        ("all", "ann"),
        ("all", "bob"),
        ("lost", "ann"),
    ]


def test_the_first_run_ignores_earlier_events(client: Redis, url: str) -> None:
    shard = Shard(client, url, [Rule("mail", 0)])
    shard.go_offline("ann")
    shard.run_scheduler(times=2)
    shard.go_offline("bob")
    shard.run_scheduler(times=2)
    assert shard.delivered_to() == ["bob"]


@pytest.mark.parametrize(
    ("rules", "planned"), [((), 0), (None, 1)], ids=["no rules", "rules of the last scheduler"]
)
def test_planned_follow_ups_are_delivered_even_if_the_rules_have_changed(
    shard: Shard, url: str, rules: tuple[Rule, ...] | None, planned: int
) -> None:
    shard.go_offline("ann")
    shard.run_scheduler()
    shard.pass_time(MINUTE_MS * 2)
    shard.release_runner()
    with closing(FollowUpScheduler(url, rules=rules, shards=1)) as scheduler:
        scheduler.run_once()
        shard.go_offline("bob")
        scheduler._due.clear()
        scheduler.run_once()
    assert shard.delivered_to() == ["ann"]
    assert scheduler.counters.planned == planned


def test_a_second_scheduler_waits_while_the_first_is_alive(shard: Shard) -> None:
    with closing(shard.scheduler()) as first, closing(shard.scheduler()) as second:
        shard.release_runner()
        first.run_once()
        shard.go_offline("ann")
        assert 0 < second.run_once() <= 1.8
        assert (second.counters.busy, second.counters.events) == (1, 0)
        first._due.clear()
        first.run_once()
        assert first.counters.planned == 1


def test_new_rules_hold_also_while_a_scheduler_without_rules_is_active(shard: Shard, url: str) -> None:
    with (
        closing(FollowUpScheduler(url, rules=None, shards=1)) as handler,
        closing(shard.scheduler()) as server,
    ):
        shard.release_runner()
        handler.run_once()
        server.run_once()
        assert server.counters.busy == 1
        shard.go_offline("ann")
        handler._due.clear()
        handler.run_once()
        assert handler.counters.planned == 1


def test_plans_beyond_the_limit_are_refused_and_counted(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_calls, "MAX_PENDING_PER_SHARD", 2)
    for uid in "abc":
        shard.go_offline(uid)
    assert shard.run_scheduler().counters.refused == 1
    assert shard.counts() == {"scheduled": 2, "refused": 1}


def test_plans_beyond_the_memory_are_refused_and_counted(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_calls, "MAX_PENDING_BYTES_PER_SHARD", 1_000)
    for uid in "abc":
        shard.go_offline(uid)
    assert shard.run_scheduler().counters.refused == 1
    assert shard.counts() == {"scheduled": 2, "refused": 1}


def test_a_damaged_entry_does_not_stop_the_others(shard: Shard) -> None:
    shard.go_offline("ann")
    shard.go_offline("bob")
    shard.run_scheduler()
    base = shard.keys.followup_queue(0)
    shard.client.hset(f"{base}:work", "mail:ann:1001", "no MessagePack")
    shard.client.hset(f"{base}:of", "bob", "nor this")
    shard.client.zadd(f"{base}:due", {"of nothing": 1})
    shard.run_scheduler(after_ms=MINUTE_MS * 2, times=2)
    assert shard.delivered_to() == ["bob"]
    assert shard.client.zcard(f"{base}:due") == 0


def test_an_entry_ahead_of_the_clock_counts_from_when_it_is_read(shard: Shard) -> None:
    ahead_ms = shard.now_ms + 10**9
    shard.client.xadd(
        shard.keys.events(0),
        {"type": "offline", "uid": "ann", "code": 201, "last_seen_ms": 5},
        id=f"{ahead_ms}-0",
    )
    shard.run_scheduler()
    rows: Any = shard.client.zrange("presence:{0}:followup:due", 0, -1, withscores=True)
    ((_, due_ms),) = rows
    assert due_ms <= shard.now_ms + MINUTE_MS + 1


def test_an_entry_without_a_name_is_removed_and_delivers_no_other_twice(shard: Shard) -> None:
    for uid in "abc":
        shard.go_offline(uid)
    shard.run_scheduler()
    work = f"{shard.keys.followup_queue(0)}:work"
    damaged: Any = shard.client.hget(work, "mail:b:1002")
    values = msgpack.unpackb(damaged)
    values[4] = None
    shard.client.hset(work, "mail:b:1002", msgpack.packb(values))
    shard.run_scheduler(after_ms=MINUTE_MS * 2, times=3)
    assert shard.delivered_to() == ["a", "c"]
    assert not shard.client.exists(work)


def test_a_key_of_another_type_delivers_no_follow_up_twice(shard: Shard) -> None:
    shard.go_offline("ann")
    shard.run_scheduler()
    counts = f"{shard.keys.followup_queue(0)}:of"
    kept: Any = shard.client.dump(counts)
    shard.pass_time(MINUTE_MS * 2)
    with closing(shard.scheduler()) as scheduler:
        for _ in range(3):
            shard.client.set(counts, "foreign")
            shard.release_runner()
            scheduler.run_once()
            assert len(shard.delivered()) <= 1
    shard.client.delete(counts)
    shard.client.restore(counts, 0, kept)
    shard.run_scheduler(times=2)
    assert shard.delivered_to() == ["ann"]
