"""What a turn plans, cancels and tells, on a real Valkey."""

from contextlib import closing
from typing import Any

import pytest

from presence.config.followup_rules import Rule
from presence.followups import keys
from presence.followups.scheduler import FollowUpScheduler
from presence.store.client import Redis
from tests.followups.shards import Shard

MINUTE_MS = 60_000


def test_what_follows_an_offline_event_is_told_once_when_it_is_due(shard: Shard) -> None:
    event = shard.goes("ann")
    shard.run_scheduler(times=2)
    assert shard.told() == []
    shard.run_scheduler(after_ms=MINUTE_MS + 1, times=2)
    (told,) = shard.told()
    at_ms = int(event.partition("-")[0]) + 1
    assert {**told, "at_ms": ""} == {
        **{"v": "1", "id": "mail:ann:1001", "name": "mail", "uid": "ann", "payload": "template"},
        **{"reason": "idle_timeout", "code": "201", "offline_id": event, "offline_at_ms": str(at_ms)},
        **{"last_seen_ms": "1001", "due_ms": str(at_ms + MINUTE_MS), "at_ms": ""},
    }
    assert shard.client.keys("*:followup:work") == [], "and nothing is left of it"
    assert not shard.client.exists("presence:{0}:followup:of")


def test_two_periods_that_look_the_same_are_two(shard: Shard) -> None:
    shard.goes("ann")
    shard.comes("ann")
    shard._seen_ms -= 1  # last seen in the very same millisecond
    second = shard.goes("ann")
    shard.run_scheduler()
    shard.run_scheduler(after_ms=MINUTE_MS * 2)
    assert [told["offline_id"] for told in shard.told()] == [second]


def test_what_is_due_comes_in_bounded_slices(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MAX_DUE_PER_RUN", 2)
    for uid in "abcde":
        shard.goes(uid)
    shard.run_scheduler()
    shard.pass_time(MINUTE_MS * 2)
    for told in (2, 4, 5):
        shard.run_scheduler()
        assert len(shard.told()) == told
    assert shard.told_to() == list("abcde")


def test_a_call_ends_early_where_rules_are_many(client: Redis, url: str) -> None:
    shard = Shard(client, url, [Rule(f"r{n}", 60) for n in range(64)])
    shard.run_scheduler()
    for n in range(20):
        shard.goes(f"u{n}")
    assert [shard.run_scheduler().counters.planned for _ in range(3)] == [512, 512, 256]
    for n in range(20):
        shard.comes(f"u{n}")
    assert [shard.run_scheduler().counters.cancelled for _ in range(3)] == [512, 512, 256]
    assert client.hlen("presence:{0}:followup:work") == 0


def test_each_rule_has_its_reasons_and_its_time(client: Redis, url: str) -> None:
    rules = [
        Rule("all", 10.0),
        Rule("lost", 20.0, ("idle_timeout", "node_down")),
        Rule("gone", 5.0, ("logout",)),
    ]
    shard = Shard(client, url, rules)
    shard.run_scheduler()
    shard.goes("ann", "idle_timeout")
    shard.goes("bob", "logout")
    shard.run_scheduler()
    shard.run_scheduler(after_ms=MINUTE_MS)
    assert [(told["name"], told["uid"]) for told in shard.told()] == [
        ("gone", "bob"),
        ("all", "ann"),
        ("all", "bob"),
        ("lost", "ann"),
    ]


def test_history_is_no_news_to_the_first_turn(client: Redis, url: str) -> None:
    shard = Shard(client, url, [Rule("mail", 0)])
    shard.goes("ann")
    shard.run_scheduler(times=2)
    shard.goes("bob")
    shard.run_scheduler(times=2)
    assert shard.told_to() == ["bob"]


@pytest.mark.parametrize(
    ("rules", "planned"), [((), 0), (None, 1)], ids=["are gone", "are those of the last"]
)
def test_what_was_planned_is_told_whatever_the_rules_are_now(
    shard: Shard, url: str, rules: tuple[Rule, ...] | None, planned: int
) -> None:
    shard.goes("ann")
    shard.run_scheduler()
    shard.pass_time(MINUTE_MS * 2)
    shard.anybody()
    with closing(FollowUpScheduler(url, rules=rules, shards=1)) as scheduler:
        scheduler.run_once()
        shard.goes("bob")
        scheduler._due.clear()
        scheduler.run_once()
    assert shard.told_to() == ["ann"]
    assert scheduler.counters.planned == planned


def test_another_who_turns_waits_while_the_first_lives(shard: Shard) -> None:
    with closing(shard.scheduler()) as first, closing(shard.scheduler()) as second:
        shard.anybody()
        first.run_once()
        shard.goes("ann")
        assert 0 < second.run_once() <= 1.8
        assert (second.counters.busy, second.counters.events) == (1, 0)
        first._due.clear()
        first.run_once()
        assert first.counters.planned == 1


def test_there_is_a_bound_beyond_which_plans_are_refused_and_counted(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "MAX_PENDING_PER_SHARD", 2)
    for uid in "abc":
        shard.goes(uid)
    assert shard.run_scheduler().counters.refused == 1
    assert shard.counts() == {"scheduled": 2, "refused": 1}


def test_a_damaged_entry_stops_nobody(shard: Shard) -> None:
    shard.goes("ann")
    shard.goes("bob")
    shard.run_scheduler()
    base = shard.keys.followup_queue(0)
    shard.client.hset(f"{base}:work", "mail:ann:1001", "no MessagePack")
    shard.client.hset(f"{base}:of", "bob", "nor this")
    shard.client.zadd(f"{base}:due", {"of nothing": 1})
    shard.run_scheduler(after_ms=MINUTE_MS * 2, times=2)
    assert shard.told_to() == ["bob"]
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
