"""What becomes of follow-ups when events are missing: trimmed, erased, or lost with all the rest."""

from collections.abc import Callable
from contextlib import closing

import pytest

from presence.config.followup_rules import Rule
from presence.followups import FollowUps
from presence.store.client import Redis
from tests.followups.shards import Shard

MINUTE_MS = 60_000


@pytest.fixture
def recent(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> Shard:
    """The shard, where users are last seen by a clock as servers have one."""
    monkeypatch.setattr(shard, "_seen_ms", shard.now_ms)
    shard.goes("first")
    shard.run_scheduler()
    return shard


def trim(shard: Shard) -> None:
    """Remove all events, and let one more come."""
    empty(shard)
    shard.comes("other")


def empty(shard: Shard) -> None:
    shard.client.xtrim(shard.keys.events(0), maxlen=0, approximate=False)


def replace(shard: Shard) -> None:
    """Put another stream in the place of the one."""
    shard.client.delete(shard.keys.events(0))
    shard.goes("bob")


@pytest.mark.parametrize("hole", [trim, empty, replace])
def test_who_went_in_a_hole_is_found_and_gets_what_is_for_all_reasons(
    recent: Shard, hole: Callable[[Shard], None]
) -> None:
    recent.goes("ann")
    hole(recent)
    assert recent.run_scheduler(times=2).counters.holes == 1
    recent.run_scheduler()
    recent.run_scheduler(after_ms=MINUTE_MS * 2, times=2)
    assert sorted(recent.told_to()) == ["ann", *(["bob"] if hole is replace else []), "first"]
    (told,) = [each for each in recent.told() if each["uid"] == "ann"]
    assert (told["offline_id"], told["reason"], told["offline_at_ms"]) == ("", "", "0")
    assert recent.run_scheduler().counters.holes == 0


def test_who_wished_for_a_long_time_out_is_found_too(recent: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "_seen_ms", recent.now_ms - 300_000)
    recent.goes("ann")
    trim(recent)
    recent.run_scheduler(times=2)
    recent.run_scheduler(after_ms=MINUTE_MS * 2)
    assert sorted(recent.told_to()) == ["ann", "first"]


def test_who_came_back_in_a_hole_is_left_in_peace(recent: Shard) -> None:
    recent.comes("first")
    trim(recent)
    recent.run_scheduler()
    recent.run_scheduler(after_ms=MINUTE_MS * 2)
    assert recent.told() == []
    assert recent.counts()["dropped"] == 1


def test_who_came_and_went_in_a_hole_waits_anew(recent: Shard) -> None:
    recent.pass_time(MINUTE_MS // 2)
    recent.comes("first")
    recent.goes("first")
    trim(recent)
    recent.run_scheduler(times=2)
    recent.run_scheduler(after_ms=MINUTE_MS // 2 + 1)
    assert recent.told() == []
    recent.run_scheduler(after_ms=MINUTE_MS)
    assert recent.told_to() == ["first"]


def test_who_went_again_unseen_does_not_get_what_was_for_the_first_time(
    recent: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "_seen_ms", 5)  # of so long ago that he is not looked for
    recent.comes("first")
    recent.goes("first")
    trim(recent)
    recent.run_scheduler(after_ms=MINUTE_MS * 2, times=2)
    assert recent.told() == []
    assert recent.counts()["dropped"] == 1


def test_what_was_added_for_a_user_keeps_nothing_from_him_that_a_hole_hid(recent: Shard, url: str) -> None:
    recent.goes("ann")
    with FollowUps(url) as followups:
        added = followups.add("ann", after=90, name="x")
    trim(recent)
    recent.run_scheduler(times=2)
    with FollowUps(url) as followups:
        assert [each.name for each in followups.of("ann")] == ["x", "mail"]
        assert followups.of("ann")[0].due_ms == added.due_ms


def test_trimmed_events_that_were_read_are_no_hole(recent: Shard) -> None:
    trim(recent)
    assert recent.run_scheduler().counters.holes == 0


def test_many_who_are_looked_for_come_in_slices_and_once(client: Redis, url: str) -> None:
    shard = Shard(client, url, [Rule(f"r{n}", 0) for n in range(20)])
    shard.run_scheduler()
    shard._seen_ms = shard.now_ms
    shard.comes("first")
    shard.run_scheduler()
    users = [f"u{n}" for n in range(60)]
    for uid in users:
        shard.goes(uid)
    trim(shard)
    with closing(shard.scheduler()) as scheduler:
        shard.anybody()
        plans = []
        while scheduler.run_once() == 0:
            plans.append(scheduler.counters.planned)
            scheduler._due.clear()
        scheduler._due.clear()
        scheduler.run_once()
    assert plans[:2] == [500, 1000], "a user at a time"
    while len(shard.told()) < 1200:
        shard.run_scheduler()
    shard.run_scheduler()
    assert sorted(shard.told_to()) == sorted(users * 20)


def test_a_redis_that_lost_all_is_read_from_its_beginning(client: Redis, url: str) -> None:
    shard = Shard(client, url, [Rule("mail", 0)])
    with closing(shard.scheduler()) as scheduler:
        scheduler.run_once()
        client.flushall()
        shard.goes("ann")
        scheduler._due.clear()
        scheduler.run_once()
        assert scheduler.counters.holes == 1
    shard.run_scheduler()
    assert shard.told_to() == ["ann"]
