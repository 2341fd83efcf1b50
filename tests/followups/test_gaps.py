"""Follow-ups when events are missing: trimmed, erased, or lost with all other data."""

from collections.abc import Callable
from contextlib import closing

import pytest

from presence.config.followup_rules import Rule
from presence.followups import FollowUps
from presence.followups.script_calls import script_keys
from presence.store.redis_client import Redis
from tests.followups.shards import Shard

MINUTE_MS = 60_000


@pytest.fixture
def recent(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> Shard:
    """The shard, where users are last seen by the real clock."""
    monkeypatch.setattr(shard, "_seen_ms", shard.now_ms)
    shard.go_offline("first")
    shard.run_scheduler()
    return shard


def trim(shard: Shard) -> None:
    """Remove all events, then add one."""
    empty(shard)
    shard.come_online("other")


def empty(shard: Shard) -> None:
    shard.client.xtrim(shard.keys.events(0), maxlen=0, approximate=False)


def replace(shard: Shard) -> None:
    """Replace the stream by another one."""
    shard.client.delete(shard.keys.events(0))
    shard.go_offline("bob")


@pytest.mark.parametrize("gap", [trim, empty, replace])
def test_a_user_whose_offline_event_is_missing_gets_the_rules_for_all_reasons(
    recent: Shard, gap: Callable[[Shard], None]
) -> None:
    recent.go_offline("ann")
    gap(recent)
    assert recent.run_scheduler(times=2).counters.gaps == 1
    recent.run_scheduler()
    recent.run_scheduler(after_ms=MINUTE_MS * 2, times=2)
    assert sorted(recent.delivered_to()) == ["ann", *(["bob"] if gap is replace else []), "first"]
    (followup,) = [each for each in recent.delivered() if each["uid"] == "ann"]
    assert (followup["offline_id"], followup["reason"], followup["offline_at_ms"]) == ("", "", "0")
    assert recent.run_scheduler().counters.gaps == 0


def test_a_user_with_a_long_idle_timeout_is_found_after_a_gap(
    recent: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "_seen_ms", recent.now_ms - 300_000)
    recent.go_offline("ann")
    trim(recent)
    recent.run_scheduler(times=2)
    recent.run_scheduler(after_ms=MINUTE_MS * 2)
    assert sorted(recent.delivered_to()) == ["ann", "first"]


def test_a_return_within_a_gap_cancels_the_follow_up(recent: Shard) -> None:
    recent.come_online("first")
    trim(recent)
    recent.run_scheduler()
    recent.run_scheduler(after_ms=MINUTE_MS * 2)
    assert recent.delivered() == []
    assert recent.counts()["dropped"] == 1


def test_a_return_and_another_end_within_a_gap_restart_the_delay(recent: Shard) -> None:
    recent.pass_time(MINUTE_MS // 2)
    recent.come_online("first")
    recent.go_offline("first")
    trim(recent)
    recent.run_scheduler(times=2)
    recent.run_scheduler(after_ms=MINUTE_MS // 2 + 1)
    assert recent.delivered() == []
    recent.run_scheduler(after_ms=MINUTE_MS)
    assert recent.delivered_to() == ["first"]


def test_a_second_unseen_end_drops_the_follow_up_of_the_first(
    recent: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "_seen_ms", 5)  # so long ago that the scan does not cover it
    recent.come_online("first")
    recent.go_offline("first")
    trim(recent)
    recent.run_scheduler(after_ms=MINUTE_MS * 2, times=2)
    assert recent.delivered() == []
    assert recent.counts()["dropped"] == 1


def test_a_follow_up_added_for_a_user_does_not_replace_those_of_a_missed_event(
    recent: Shard, url: str
) -> None:
    recent.go_offline("ann")
    with FollowUps(url) as followups:
        added = followups.add("ann", after=90, name="x")
    trim(recent)
    recent.run_scheduler(times=2)
    with FollowUps(url) as followups:
        assert [each.name for each in followups.of("ann")] == ["x", "mail"]
        assert followups.of("ann")[0].due_ms == added.due_ms


def test_trimmed_events_that_were_read_are_no_gap(recent: Shard) -> None:
    trim(recent)
    assert recent.run_scheduler().counters.gaps == 0


def test_many_users_found_after_a_gap_are_planned_in_slices_and_once(client: Redis, url: str) -> None:
    shard = Shard(client, url, [Rule(f"r{n}", 0) for n in range(20)])
    shard.run_scheduler()
    shard._seen_ms = shard.now_ms
    shard.come_online("first")
    shard.run_scheduler()
    users = [f"u{n}" for n in range(60)]
    for uid in users:
        shard.go_offline(uid)
    trim(shard)
    with closing(shard.scheduler()) as scheduler:
        shard.release_runner()
        plans = []
        while scheduler.run_once() == 0:
            plans.append(scheduler.counters.planned)
            scheduler._due.clear()
        scheduler._due.clear()
        scheduler.run_once()
    assert plans[:2] == [500, 1000], "one user at a time"
    while len(shard.delivered()) < 1200:
        shard.run_scheduler()
    shard.run_scheduler()
    assert sorted(shard.delivered_to()) == sorted(users * 20)


def test_after_redis_lost_all_data_the_stream_is_read_from_its_start(client: Redis, url: str) -> None:
    shard = Shard(client, url, [Rule("mail", 0)])
    with closing(shard.scheduler()) as scheduler:
        scheduler.run_once()
        client.flushall()
        shard.go_offline("ann")
        scheduler._due.clear()
        scheduler.run_once()
        assert scheduler.counters.gaps == 1
    shard.run_scheduler()
    assert shard.delivered_to() == ["ann"]


@pytest.mark.parametrize("field", ["scan", "floor_ms"])
@pytest.mark.parametrize("value", [b"", b"1e999", b"9" * 30, b"\xff"])
def test_a_damaged_position_of_the_search_stops_no_follow_up(shard: Shard, field: str, value: bytes) -> None:
    shard.client.hset(script_keys(shard.keys, 0)[7], mapping={"scan": b"0", "floor_ms": b"0", field: value})
    shard.come_online("ann")
    shard.go_offline("ann")
    shard.run_scheduler(times=2)
    shard.run_scheduler(after_ms=MINUTE_MS * 2, times=2)
    assert shard.delivered_to() == ["ann"]
