"""Follow-ups of single users: added, cancelled, listed."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgpack
import pytest

from presence.common.errors import StoreError
from presence.config.followup_rules import MAX_PAYLOAD_BYTES
from presence.followups import FollowUps, run_scheduler, script_calls
from presence.followups.run_scheduler import REINDEX_INTERVAL_S, FollowUpScheduler
from presence.store.keys import Keys
from presence.store.redis_client import Redis
from presence.store.script_runner import Scripting
from presence.timers.interface import TimerError, TimerFull
from tests.followups.shards import Shard

MINUTE_MS = 60_000


@pytest.fixture
def followups(url: str) -> Iterator[FollowUps]:
    with FollowUps(url) as followups:
        yield followups


def test_for_an_offline_user_the_delay_counts_from_now(shard: Shard, followups: FollowUps) -> None:
    before = shard.now_ms
    added = followups.add("ann", after=60, name="cart", payload="order 17 ✓")
    assert added.is_new
    assert added.due_ms is not None
    assert before + MINUTE_MS <= added.due_ms <= shard.now_ms + MINUTE_MS + 1
    (pending,) = followups.of("ann")
    assert (pending.id, pending.due_ms, pending.payload) == (added.id, added.due_ms, "order 17 ✓")
    shard.run_scheduler(after_ms=MINUTE_MS * 2)
    (followup,) = shard.delivered()
    assert (followup["id"], followup["name"], followup["payload"]) == (added.id, "cart", "order 17 ✓")
    assert (followup["offline_id"], followup["reason"], followup["last_seen_ms"]) == ("", "", "0")


def test_for_an_online_user_the_delay_counts_from_their_offline_event(
    shard: Shard, followups: FollowUps
) -> None:
    shard.come_online("ann")
    assert followups.add("ann", after=60, name="cart").due_ms is None
    shard.run_scheduler()
    shard.pass_time(MINUTE_MS * 2)
    event = shard.go_offline("ann")
    shard.run_scheduler(times=2)
    assert shard.delivered() == []
    shard.run_scheduler(after_ms=MINUTE_MS * 2)
    assert [(followup["name"], followup["offline_id"]) for followup in shard.delivered()] == [
        ("cart", event),
        ("mail", event),
    ]


def test_an_added_follow_up_applies_once(shard: Shard, followups: FollowUps) -> None:
    shard.come_online("ann")
    followups.add("ann", after=60, name="cart")
    shard.go_offline("ann")
    shard.run_scheduler()
    shard.come_online("ann")
    shard.run_scheduler()
    assert followups.of("ann") == []


def test_events_before_a_follow_up_was_added_do_not_affect_it(shard: Shard, followups: FollowUps) -> None:
    shard.come_online("ann")
    shard.go_offline("ann")
    followups.add("ann", after=60, name="a")
    shard.come_online("bob", has_event=True)
    shard.go_offline("bob")
    shard.come_online("bob")
    followups.add("bob", after=60, name="b")
    shard.run_scheduler()
    assert {(each.uid, each.name) for each in followups.earliest()} == {
        ("ann", "a"),
        ("ann", "mail"),
        ("bob", "b"),
    }
    (armed,) = [each for each in followups.earliest() if each.uid == "bob"]
    assert armed.due_ms is None


def test_adding_again_with_the_same_key_adds_nothing(shard: Shard, followups: FollowUps) -> None:
    first = followups.add("ann", after=60, name="cart", key="17")
    again = followups.add("ann", after=90, name="cart", key="17")
    assert (first.id, first.is_new, again.is_new) == ("cart:ann:17", True, False)
    assert again.due_ms == first.due_ms
    assert followups.add("ann", after=60, name="cart").is_new, "without a key each call adds one"
    assert shard.counts()["scheduled"] == 2


def test_a_single_follow_up_or_all_of_a_user_can_be_cancelled(shard: Shard, followups: FollowUps) -> None:
    shard.go_offline("a:b")
    shard.come_online("bob")
    shard.run_scheduler()
    added = followups.add("a:b", after=60, name="x")
    followups.add("bob", after=60, name="armed")
    assert followups.cancel(added.id)
    assert not followups.cancel(added.id)
    assert [each.name for each in followups.of("a:b")] == ["mail"]
    assert (followups.cancel_of("a:b"), followups.cancel_of("bob"), followups.cancel_of("cy")) == (1, 1, 0)
    assert followups.earliest() == []
    assert not shard.client.exists("presence:{0}:followup:of")


def test_follow_ups_are_listed_by_due_time_with_armed_ones_last(shard: Shard, followups: FollowUps) -> None:
    shard.come_online("armed")
    for uid, after in (("late", 90), ("armed", 1), ("soon", 30)):
        followups.add(uid, after=after, name="x")
    assert [each.uid for each in followups.earliest()] == ["soon", "late", "armed"]
    assert [each.uid for each in followups.earliest(1)] == ["soon"]
    assert {each.uid for page in followups.pages() for each in page} == {"soon", "late", "armed"}


@pytest.mark.parametrize(
    ("uid", "what", "words"),
    [
        ("", {"after": 1, "name": "x"}, "uid must not be empty"),
        ("u", {"after": 1, "name": "a:b"}, "name must be"),
        ("u", {"after": -1, "name": "x"}, "after must be"),
        ("u", {"after": float("nan"), "name": "x"}, "after must be"),
        ("u", {"after": 1, "name": "x", "payload": "é" * 2049}, "payload must be"),
        ("u", {"after": 1, "name": "x", "key": "a:b"}, "key must be"),
        ("u", {"after": 1, "name": "x", "payload": "\udcff"}, "UTF-8 can hold"),
        ("u" * 512, {"after": 1, "name": "x"}, "uid is longer than 128 bytes"),
        ("u", {"after": 1, "name": "x", "key": "k" * 512}, "longer than 512 bytes"),
    ],
)
def test_invalid_follow_ups_are_refused(
    shard: Shard, followups: FollowUps, uid: str, what: dict[str, object], words: str
) -> None:
    with pytest.raises(TimerError, match=words):
        followups.add(uid, **what)  # type: ignore[arg-type] # wrong types are the test
    assert shard.counts() == {}


def test_pending_follow_ups_are_limited_per_user_and_per_shard(
    shard: Shard, followups: FollowUps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_calls, "MAX_PENDING_PER_USER", 1)
    monkeypatch.setattr(script_calls, "MAX_PENDING_PER_SHARD", 2)
    followups.add("ann", after=1, name="x", key="1")
    with pytest.raises(TimerFull, match="1 follow-ups"):
        followups.add("ann", after=1, name="x", key="2")
    assert not followups.add("ann", after=1, name="x", key="1").is_new, "an existing one needs no room"
    followups.add("bob", after=1, name="x")
    with pytest.raises(TimerFull, match="2 follow-ups"):
        followups.add("cy", after=1, name="x")
    assert shard.counts() == {"scheduled": 2, "refused": 2}


def test_the_memory_of_pending_follow_ups_is_limited_per_shard(
    shard: Shard, followups: FollowUps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_calls, "MAX_PENDING_BYTES_PER_SHARD", 12_000)
    large = "p" * MAX_PAYLOAD_BYTES
    first = followups.add("ann", after=60, name="x", payload=large)
    followups.add("bob", after=60, name="x", payload=large)
    with pytest.raises(TimerFull, match="2 follow-ups"):
        followups.add("cy", after=60, name="x", payload=large)
    followups.cancel(first.id)
    followups.add("cy", after=60, name="x", payload=large)
    assert shard.counts() == {"scheduled": 3, "refused": 1, "cancelled": 1}


def test_delivered_follow_ups_give_their_memory_back(shard: Shard, followups: FollowUps) -> None:
    for uid in ("ann", "bob"):
        followups.add(uid, after=1, name="x", payload="p" * MAX_PAYLOAD_BYTES)
    shard.run_scheduler(after_ms=MINUTE_MS, times=2)
    assert len(shard.delivered()) == 2
    assert shard.client.hget(f"{shard.keys.followup_queue(0)}:state", "bytes") in {b"0", "0"}


def test_a_follow_up_of_an_older_server_is_counted_when_it_changes_and_not_when_it_goes(
    shard: Shard, followups: FollowUps
) -> None:
    added = followups.add("ann", after=60, name="x", payload="p" * MAX_PAYLOAD_BYTES)
    followups.add("bob", after=60, name="x")
    base = shard.keys.followup_queue(0)
    packed: Any = shard.client.hget(f"{base}:work", added.id)
    old = msgpack.unpackb(packed, raw=True)[:12]
    shard.client.hset(f"{base}:work", added.id, msgpack.packb(old))
    before = int(shard.client.hget(f"{base}:state", "bytes") or 0)
    followups.cancel(added.id)
    assert int(shard.client.hget(f"{base}:state", "bytes") or 0) == before


def test_nothing_can_be_added_before_a_server_has_stored_the_number_of_shards(
    client: Redis, followups: FollowUps
) -> None:
    with pytest.raises(StoreError, match="no server has written there yet"):
        followups.add("ann", after=1, name="x")
    assert client.dbsize() == 0


def test_a_follow_up_armed_before_the_first_run_of_a_scheduler_fires(
    client: Redis, url: str, followups: FollowUps
) -> None:
    shard = Shard(client, url)
    shard.come_online("bob")
    shard.go_offline("bob")
    shard.come_online("ann")
    followups.add("ann", after=60, name="cart")
    shard.go_offline("ann")
    shard.run_scheduler()
    shard.run_scheduler(after_ms=2 * MINUTE_MS)
    assert shard.delivered_to() == ["ann"]


def test_a_return_before_the_first_run_of_a_scheduler_cancels(
    client: Redis, url: str, followups: FollowUps
) -> None:
    shard = Shard(client, url)
    shard.come_online("ann")
    followups.add("ann", after=60, name="cart")
    shard.go_offline("ann")
    shard.come_online("ann")
    shard.run_scheduler()
    assert followups.of("ann") == []
    shard.go_offline("ann")
    shard.run_scheduler(after_ms=2 * MINUTE_MS)
    assert shard.delivered() == []


def test_a_shard_that_refuses_the_walk_does_not_keep_it_from_the_others(client: Redis, url: str) -> None:
    client.hset(Keys().meta, mapping={"version": 2, "shards": 2})
    uids = {Keys(shards=2).shard(uid): uid for uid in ("ann", "bob", "cid")}
    now = 0.0
    with FollowUps(url) as followups:
        for uid in uids.values():
            followups.add(uid, after=60, name="cart")
    index = [f"{Keys(shards=2).followup_queue(shard)}:of" for shard in (0, 1)]
    client.delete(*index)
    client.set(index[0], "foreign")
    with closing(FollowUpScheduler(url, rules=(), clock=lambda: now)) as walking:
        for _ in range(3):
            walking.run_once()
            now += REINDEX_INTERVAL_S
        assert walking.counters.restored == 1


@pytest.mark.parametrize("lost", ["due", "of", "both"])
def test_a_follow_up_is_found_although_what_leads_to_it_was_lost(
    shard: Shard, client: Redis, followups: FollowUps, lost: str
) -> None:
    shard.come_online("ann")
    armed = followups.add("ann", after=60, name="cart")
    planned = followups.add("bob", after=60, name="cart")
    for name in ["due", "of"] if lost == "both" else [lost]:
        client.delete(f"{shard.keys.followup_queue(0)}:{name}")
    assert shard.run_scheduler().counters.restored == 2
    assert [each.id for uid in ("ann", "bob") for each in followups.of(uid)] == [armed.id, planned.id]
    shard.go_offline("ann")
    shard.run_scheduler()
    shard.run_scheduler(after_ms=2 * MINUTE_MS)
    assert {"ann", "bob"} <= set(shard.delivered_to())
    assert shard.counts()["done"] == len(shard.delivered())


@pytest.mark.parametrize("counted", [None, "", "0", "123456789", "9" * 15, "9" * 30, "1e999"])
def test_a_wrong_count_of_the_memory_is_corrected(
    shard: Shard, client: Redis, followups: FollowUps, monkeypatch: pytest.MonkeyPatch, counted: str | None
) -> None:
    monkeypatch.setattr(run_scheduler, "REINDEX_INTERVAL_S", 0.0)
    monkeypatch.setattr(script_calls, "REINDEXED_PER_CALL", 20)
    for number in range(60):  # too many to be read in one call
        followups.add(f"u{number}", after=60, name="cart", payload="x" * number)
    state = f"{shard.keys.followup_queue(0)}:state"
    right: Any = client.hget(state, "bytes")
    if counted is None:
        client.hdel(state, "bytes")
    else:
        client.hset(state, "bytes", counted)
    shard.run_scheduler(times=12)
    corrected: Any = client.hget(state, "bytes")
    assert int(corrected) == pytest.approx(int(right), abs=10)


def test_two_schedulers_correct_the_memory_once(
    shard: Shard, client: Redis, followups: FollowUps, url: str
) -> None:
    followups.add("ann", after=60, name="cart")
    state = f"{shard.keys.followup_queue(0)}:state"
    client.hincrby(state, "bytes", 1000)
    right: Any = client.hget(state, "bytes")
    call = script_calls.recount_call(shard.keys, 0, -1000, 0)  # as both have found
    with closing(Scripting(url)) as scripting:
        assert [msgpack.unpackb(scripting.one(call)) for _ in range(2)] == [True, False]
    corrected: Any = client.hget(state, "bytes")
    assert int(corrected) == int(right) - 1000


@pytest.mark.parametrize("stored", [b"", b"0", b"1e999", b"9" * 5_000])
def test_a_damaged_number_of_shards_is_refused_with_the_repair(
    followups: FollowUps, client: Redis, stored: bytes
) -> None:
    client.hset("presence:meta", "shards", stored)
    with pytest.raises(StoreError, match="redis-cli DEL presence:meta"):
        followups.of("ann")
