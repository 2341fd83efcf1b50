"""``presence forget`` against real scripts and streams."""

import json
import time
from contextlib import closing
from typing import Any

import pytest
import structlog
import trio

from presence.followups import FollowUps
from presence.followups.run_scheduler import FollowUpScheduler
from presence.ops import forget
from presence.ops.forget import Eraser
from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.redis_client import Redis
from presence.subscriber import subscribe_sync
from tests.cli.conftest import Command
from tests.rooms.keys_by_hand import HandMadeRooms
from tests.server.test_control_listener import serving
from tests.store.driving import Hand, end, events, login
from tests.subscriber.streams import take, uids
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("clean_environment")
EVENTS, DEAD, ERRORS = "presence:{0}:events", "presence:{0}:dead", "presence:{0}:errors:push"


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forget, "ENTRIES_PER_PAGE", 2)


def event_uids(client: Redis) -> list[str]:
    return [event["uid"] for event in events(client)]


@pytest.mark.usefixtures("small_pages")
def test_no_data_of_a_forgotten_user_remain(command: Command, client: Redis, hand: Hand) -> None:
    hand.apply(login("ann", "s1"), login("bob", "s2"), end("ann", "s1"), end("bob", "s2"), login("bob", "s3"))
    client.xadd(DEAD, {"original_id": "1-1", "uid": "ann"})
    client.xadd(DEAD, {"original_id": "1-2", "uid": "bob"})
    report_line = "users forgotten: 1; erased: last seen 1, events 2, dead letters 1, follow-ups 0, "
    report_line += "events of rooms 0\n"
    assert command("forget", "ann") == (0, report_line, "")
    assert event_uids(client) == ["bob", "bob", "bob"]
    assert client.zscore("presence:{0}:seen", "ann") is None
    assert client.hget("presence:{0}:left", "ann") is None
    letters: Any = client.xrange(DEAD)
    assert [fields[b"uid"] for _, fields in letters] == [b"bob"]
    client.hset("presence:{0}:online", "cyd", "no json")
    assert command("forget", "cyd").status == 0
    assert not client.hexists("presence:{0}:online", "cyd")


def test_a_group_does_not_wait_for_erased_events(command: Command, client: Redis, hand: Hand) -> None:
    hand.apply(login("ann", "s1"), login("bob", "s2"), end("ann", "s1"))
    client.xgroup_create(EVENTS, "push", "0")
    client.xreadgroup("push", "worker", {EVENTS: ">"})
    for event in events(client):
        client.hset(ERRORS, event["id"], "it failed")
    assert command("forget", "ann").status == 0
    (left,) = events(client)
    pending: Any = client.xpending_range(EVENTS, "push", "-", "+", 10)
    assert [row["message_id"].decode() for row in pending] == [left["id"]]
    assert client.hkeys(ERRORS) == [left["id"].encode()]


def test_online_users_are_left_alone(command: Command, client: Redis, hand: Hand) -> None:
    hand.apply(login("ann", "s1"), end("ann", "s1"), login("ann", "s2"), login("bob", "s3"), end("bob", "s3"))
    status, out, err = command("forget", "ann", "bob", "--json")
    report = {"forgotten": ["bob"], "online": ["ann"], "last_seen": 1, "events": 2, "dead_letters": 0}
    report |= {"followups": 0, "room_events": 0}
    assert (status, json.loads(out)) == (1, report)
    assert err == "presence: ann is online: end the sessions first, with presence ban\n"
    assert event_uids(client) == ["ann", "ann", "ann"]


@pytest.mark.usefixtures("small_pages")
def test_pending_and_delivered_follow_ups_of_a_user_are_erased(
    redis_server: EmbeddedRedis, client: Redis, hand: Hand
) -> None:
    client.hset("presence:meta", "shards", 1)
    hand.apply(login("ann", "s1"), end("ann", "s1"), login("bob", "s2"), end("bob", "s2"))
    with FollowUps(redis_server.url) as followups, closing(FollowUpScheduler(redis_server.url)) as scheduler:
        for uid in ("ann", "bob"):
            followups.add(uid, after=0, name="due")
        time.sleep(0.002)
        scheduler.run_once()
        for uid in ("ann", "bob"):
            followups.add(uid, after=60, name="pending")
        client.xadd("presence:{0}:followups:dead", {"original_id": "1-1", "uid": "ann"})
        with Eraser(redis_server.url, Keys()) as eraser:
            forgotten = eraser.forget(["ann"])
        assert (forgotten.followups, forgotten.dead_letters) == (2, 1)
        assert [each.uid for each in followups.earliest()] == ["bob"]
    delivered: Any = client.xrange("presence:{0}:followups")
    assert [fields[b"uid"] for _, fields in delivered] == [b"bob"]
    assert not client.exists("presence:{0}:followups:dead") or not client.xlen("presence:{0}:followups:dead")


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("shards", [1, 4])
def test_entries_of_a_user_in_the_streams_of_rooms_are_erased_in_all_shards(
    redis_server: EmbeddedRedis, client: Redis, shards: int
) -> None:
    rooms = HandMadeRooms(client, shards)
    names = [f"room-{n}" for n in range(12)]
    for room in names:
        for kind, uid in (("occupied", "ann"), ("joined", "bob"), ("vacated", "ann")):
            rooms.tell(kind, room, uid)
    shard = rooms.keys.shard("room-0")
    client.xgroup_create(rooms.keys.events(shard), "g", "0")
    client.xreadgroup("g", "worker", {rooms.keys.events(shard): ">"})
    client.xadd(rooms.keys.dead(shard), {"original_id": "1-1", "uid": "ann"})
    with Eraser(redis_server.url, Keys(shards=shards)) as eraser:
        forgotten = eraser.forget(["ann"])
    assert (forgotten.room_events, forgotten.dead_letters) == (24, 1)
    left: list[Any] = []
    for each in range(shards):
        found: Any = client.xrange(rooms.keys.events(each))
        left += [fields[b"uid"] for _, fields in found]
    assert left == [b"bob"] * 12
    pending: Any = client.xpending(rooms.keys.events(shard), "g")
    assert pending["pending"] == sum(rooms.keys.shard(name) == shard for name in names)


@pytest.mark.usefixtures("small_pages")
def test_a_user_who_returns_meanwhile_keeps_the_new_data(
    redis_server: EmbeddedRedis, client: Redis, hand: Hand
) -> None:
    hand.apply(login("ann", "s1"), end("ann", "s1"), login("bob", "s2"))

    def log_in(_looked: int, _total: int) -> None:
        hand.apply(login("ann", "s3"))

    with Eraser(redis_server.url, Keys()) as eraser:
        assert eraser.forget(["ann"], log_in).events == 2
    assert event_uids(client) == ["bob", "ann"]


@pytest.mark.parametrize(("forgotten", "follows"), [("bob", ["lost_writes", "cyd"]), ("ann", ["cyd"])])
def test_a_subscriber_sees_a_gap_if_the_last_event_it_read_was_erased(
    redis_server: EmbeddedRedis, command: Command, hand: Hand, forgotten: str, follows: list[str]
) -> None:
    hand.apply(login("ann", "s1"), end("ann", "s1"), login("bob", "s2"), end("bob", "s2"))
    with subscribe_sync(redis_server.url, after="0") as subscription:
        assert len(take(subscription, 4)) == 4
        assert command("forget", forgotten).status == 0
        hand.apply(login("cyd", "s3"))
        assert uids(take(subscription, len(follows))) == follows


async def test_one_server_logs_the_forgotten_users_and_the_caller(
    redis_server: EmbeddedRedis, command: Command, hand: Hand
) -> None:
    hand.apply(login("ann", "s1"), end("ann", "s1"), login("bob", "s2"))
    async with serving(redis_server) as pair:
        await until(lambda: pair.is_subscribed(0) and pair.is_subscribed(1))
        with structlog.testing.capture_logs() as logs:
            assert (await trio.to_thread.run_sync(command, "forget", "ann", "bob")).status == 1
            await until(lambda: any(line["event"] == "users forgotten" for line in logs))
    (logged,) = [line for line in logs if line["event"] == "users forgotten"]
    assert (logged["users"], logged["uids"]) == (1, ["ann"])
    assert logged["by"].endswith(" (presence forget)")
