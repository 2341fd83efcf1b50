"""The presence wheel in Redis: users by ticks, moved by scripts, on a real server."""

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from presence.common.errors import StoreError
from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.redis_client import Redis
from presence.subscriber import Offline, Online, subscribe_sync
from presence.timers.interface import TimerError
from presence.timers.redis_wheel import MAX_SLOTS_PER_CALL, RedisWheel, Silence

IDLE_S, TICK_S = 0.06, 0.01


def a_wheel(server: EmbeddedRedis, **settings: Any) -> RedisWheel:
    return RedisWheel(server.url, "web", **{"idle_timeout_s": IDLE_S, "tick_s": TICK_S, **settings})


@pytest.fixture
def wheel(server: EmbeddedRedis, client: Redis) -> Iterator[RedisWheel]:
    wheel = a_wheel(server)
    yield wheel
    wheel.close()


def key(name: str) -> str:
    return f"presence:timer:web:{{0}}:{name}"


def now_ms(client: Redis) -> float:
    clock: Any = client.time()
    return float(clock[0] * 1000 + clock[1] / 1000)


def slots(client: Redis) -> dict[int, set[bytes]]:
    """Return every slot that exists, by its tick."""
    names: Any = client.keys(key("slot:*"))
    members: list[Any] = [client.smembers(name) for name in names]
    return {int(name.rpartition(b":")[2]): some for name, some in zip(names, members, strict=True)}


def brief_events(client: Redis) -> list[tuple[str, str, str]]:
    """Return the stream as (type, uid, reason)."""
    entries: Any = client.xrange(key("events"))
    return [(e[b"type"].decode(), e[b"uid"].decode(), e[b"reason"].decode()) for _, e in entries]


def wait_for(wheel: RedisWheel, count: int = 1) -> list[Silence]:
    deadline, found = time.monotonic() + 3, list[Silence]()
    while len(found) < count and time.monotonic() < deadline:
        found += wheel.due()
        time.sleep(0.002)
    return found


def age(client: Redis, ms: int) -> None:
    """Move all touches into the past, as if no call had been made since."""
    ticks = round(ms / TICK_S / 1000)
    hand: Any = client.hget(key("wheel"), "hand")
    client.hset(key("wheel"), "hand", str(int(hand) - ticks))
    for tick in sorted(slots(client)):
        client.rename(key(f"slot:{tick}"), key(f"slot:{tick - ticks}"))
    users: Any = client.hgetall(key("users"))
    for uid, value in users.items():
        tick, seen, entry = value.split()
        client.hset(key("users"), uid, b"%d %d %s" % (int(tick) - ticks, int(seen) - ms, entry))


def test_a_batch_returns_who_came_online(wheel: RedisWheel) -> None:
    assert (wheel.touch("ann"), wheel.touch("ann")) == (True, False)
    assert wheel.touch_many(["bob", "ann", "cid", "bob"]) == ["bob", "cid"]
    many = [str(n) for n in range(2500)]  # several calls
    assert wheel.touch_many(many) == many
    assert wheel.count() == 2503


def test_no_user_goes_offline_early_or_is_missed(wheel: RedisWheel, client: Redis) -> None:
    chance, last, found = random.Random(7), dict[str, float](), list[tuple[str, float, float]]()
    begun = time.monotonic()
    while time.monotonic() < begun + 0.5 or len(found) <= 5:
        assert time.monotonic() < begun + 30
        uid = str(chance.randrange(12))
        before = now_ms(client)
        wheel.touch(uid)
        last[uid] = before
        if chance.random() < 0.5:
            found += [(each.uid, last[each.uid], now_ms(client)) for each in wheel.due()]
        time.sleep(chance.random() * 0.01)
    assert all(taken - touched >= IDLE_S * 1000 for _, touched, taken in found)
    wait_for(wheel, wheel.count())
    assert wheel.count() == 0
    transitions = [(kind, uid) for kind, uid, _ in brief_events(client)]
    for uid in last:
        kinds = [kind for kind, each in transitions if each == uid]
        assert kinds == ["online", "offline"] * (len(kinds) // 2)


def test_an_expired_user_has_the_time_last_seen_and_the_delay(wheel: RedisWheel, client: Redis) -> None:
    before = int(now_ms(client))
    wheel.touch("ann")
    after = now_ms(client)
    seen = wheel.last_seen(["ann", "stranger"])
    (silence,) = wait_for(wheel)
    assert silence.uid == "ann"
    assert before <= silence.last_seen_ms <= after
    assert seen == {"ann": silence.last_seen_ms}
    # The tick is the first one at or after the deadline; both bounds are included.
    idle_ms, tick_ms = round(IDLE_S * 1000), round(TICK_S * 1000)
    assert idle_ms <= silence.due_ms - silence.last_seen_ms <= idle_ms + tick_ms
    assert silence.late_ms == silence.at_ms - silence.due_ms >= 0


def test_slots_that_passed_without_calls_are_caught_up(wheel: RedisWheel, client: Redis) -> None:
    for uid in ("ann", "bob", "cid"):
        wheel.touch(uid)
        time.sleep(0.012)  # three slots
    age(client, ms=20_000_000)  # hours, and many more ticks than one call reads
    assert [each.uid for each in wheel.due()] == ["ann", "bob", "cid"]
    assert 20_000_000 / 1000 / TICK_S > MAX_SLOTS_PER_CALL
    assert slots(client) == {}


def test_a_full_slot_is_expired_in_slices_by_all_callers(
    wheel: RedisWheel, client: Redis, server: EmbeddedRedis
) -> None:
    wheel.touch_many(str(n) for n in range(300))
    age(client, ms=1000)
    with closing(a_wheel(server)) as other:
        slices = [caller.due(limit=128) for caller in (wheel, other, wheel, other)]
    assert [len(each) for each in slices] == [128, 128, 44, 0]
    assert len({silence.uid for each in slices for silence in each}) == 300


def test_a_touch_between_two_slices_wins(wheel: RedisWheel, client: Redis) -> None:
    wheel.touch_many(["ann", "bob"])
    age(client, ms=1000)
    (first,) = wheel.due(limit=1)
    (other,) = {"ann", "bob"} - {first.uid}
    assert not wheel.touch(other)  # the user had not gone offline yet
    assert wheel.due() == []
    assert ("offline", other, "idle_timeout") not in brief_events(client)


def test_a_caller_that_dies_loses_nothing(wheel: RedisWheel, client: Redis, server: EmbeddedRedis) -> None:
    wheel.touch("ann")
    age(client, ms=1000)
    wheel.due()  # the result is lost, as in a crash
    with subscribe_sync(server.url, prefix=wheel.prefix, group="push", consumer="c", after="0") as events:
        online, offline = next(events), next(events)
    assert isinstance(online, Online)
    assert isinstance(offline, Offline)
    assert (offline.uid, offline.reason, offline.since_id) == ("ann", "idle_timeout", online.id)
    assert online.since_ms == pytest.approx(offline.since_ms, abs=1000)
    assert wheel.touch("ann"), "the user comes online again"
    assert [kind for kind, *_ in brief_events(client)] == ["online", "offline", "online"]


def test_a_logout_is_offline_immediately_and_once(wheel: RedisWheel, client: Redis) -> None:
    wheel.touch("ann")
    assert (wheel.forget("ann"), wheel.forget("ann"), wheel.forget("stranger")) == (True, False, False)
    assert brief_events(client)[1:] == [("offline", "ann", "logout")]
    assert slots(client) == {}


def test_a_clock_that_was_an_hour_ahead_does_not_delay_later_users(wheel: RedisWheel, client: Redis) -> None:
    wheel.touch("ann")
    wheel.forget("ann")
    ticks = round(3600 / TICK_S)
    client.hincrby(key("wheel"), "hand", ticks)  # the slots of an hour were read
    before = now_ms(client)
    wheel.touch("bob")
    (silence,) = wait_for(wheel)
    assert silence.uid == "bob"
    assert silence.due_ms <= before + 1000
    assert before - 1 <= silence.last_seen_ms <= silence.due_ms


CALLS: dict[str, Callable[[RedisWheel], object]] = {
    "touch": lambda wheel: wheel.touch("bob"),
    "forget": lambda wheel: wheel.forget("ann"),
    "due": lambda wheel: wheel.due(),
}


@pytest.mark.parametrize(
    ("word", "refused"),
    [
        ("xadd", ["touch", "forget", "due"]),
        ("sadd", ["touch"]),
        ("srem", ["forget", "due"]),
        ("hset", ["touch", "due"]),
        ("hdel", ["forget", "due"]),
    ],
)
def test_a_call_with_a_missing_permission_changes_nothing(
    wheel: RedisWheel, client: Redis, server: EmbeddedRedis, word: str, refused: list[str]
) -> None:
    wheel.touch("ann")
    age(client, ms=1000)
    rules = ("reset", "on", ">pw", "~*", "+@all", f"-{word}")
    client.execute_command("ACL", "SETUSER", "app", *rules)  # type: ignore[no-untyped-call]  # redis-py's
    with closing(RedisWheel(server.url.replace("unix://", "unix://app:pw@"), "web", tick_s=TICK_S)) as app:
        for name in refused:
            with pytest.raises(StoreError, match=f"may not call {word.upper()}"):
                CALLS[name](app)
    assert brief_events(client) == [("online", "ann", "login")]
    assert [each.uid for each in wheel.due()] == ["ann"]


def test_after_a_loss_of_all_data_users_come_online_again(wheel: RedisWheel, client: Redis) -> None:
    wheel.touch("ann")
    client.flushall()
    assert wheel.touch("ann")
    assert client.hget(Keys("presence:timer:web").meta, "shards") == b"1"


def test_callers_may_have_different_time_outs(
    wheel: RedisWheel, client: Redis, server: EmbeddedRedis
) -> None:
    patient = a_wheel(server, idle_timeout_s=60.0)
    wheel.touch("ann")
    patient.touch("ann")
    assert list(slots(client).values()) == [{b"ann"}]
    age(client, ms=1000)
    assert wheel.due() == []
    age(client, ms=60_000)
    assert [each.uid for each in patient.due()] == ["ann"]
    patient.close()


def test_a_caller_with_another_tick_is_refused(wheel: RedisWheel, server: EmbeddedRedis) -> None:
    wheel.touch("ann")
    with pytest.raises(TimerError, match="has tick_ms 10, this wheel is set to 20"):
        a_wheel(server, tick_s=0.02).touch("ann")


@pytest.mark.parametrize("uid", ["", "é" * 300, "\ud800"])
def test_an_invalid_uid_is_refused(wheel: RedisWheel, uid: str) -> None:
    with pytest.raises(TimerError, match="an id"):
        wheel.touch(uid)


@pytest.mark.parametrize(
    "settings", [{"tick_s": 0.0}, {"tick_s": 1.0, "idle_timeout_s": 0.5}, {"tick_s": 0.0105}]
)
def test_invalid_settings_are_refused(server: EmbeddedRedis, settings: dict[str, float]) -> None:
    with pytest.raises(TimerError, match="tick_s"):
        a_wheel(server, **settings)


def test_whole_numbers_are_seconds_too(server: EmbeddedRedis) -> None:
    a_wheel(server, tick_s=1, idle_timeout_s=2).close()


def test_users_are_spread_over_shards(server: EmbeddedRedis, client: Redis) -> None:
    wheel = a_wheel(server, shards=4)
    uids = [str(n) for n in range(40)]
    assert sorted(wheel.touch_many(uids)) == sorted(uids)
    assert len(client.keys("presence:timer:web:*:users")) == 4
    assert sorted(each.uid for each in wait_for(wheel, 40)) == sorted(uids)
    wheel.close()


@pytest.mark.parametrize("lost", ["wheel", "slot:*", "both"])
def test_users_go_offline_although_the_wheel_or_their_slot_was_lost(
    wheel: RedisWheel, client: Redis, lost: str
) -> None:
    uids = [str(n) for n in range(2500)]
    wheel.touch_many(uids)
    time.sleep(IDLE_S + 2 * TICK_S)
    for name in ["wheel", "slot:*"] if lost == "both" else [lost]:
        client.delete(*client.keys(key(name)))
    wheel.touch("ann")  # a new hand, beyond the slots of the others
    gone = [each.uid for each in wait_for(wheel, len(uids) + 1)]
    assert sorted(gone) == sorted([*uids, "ann"])
    assert (wheel.count(), slots(client)) == (0, {})
    offline = [uid for type, uid, _ in brief_events(client) if type == "offline"]
    assert sorted(offline) == sorted(gone)


def test_no_user_is_early_after_the_hand_was_lost(server: EmbeddedRedis, client: Redis) -> None:
    with closing(a_wheel(server, idle_timeout_s=0.2)) as wheel:
        wheel.touch_many([str(n) for n in range(500)])
        client.delete(key("wheel"))
        gone = wait_for(wheel, 500)
        assert len(gone) == 500
        assert all(each.at_ms - each.last_seen_ms >= 200 for each in gone)


@pytest.mark.parametrize("field", ["hand", "walk"])
@pytest.mark.parametrize("value", [b"", b"1", b"1e999", b"9" * 15, b"9" * 30, b"\xff", b"-1"])
def test_a_damaged_wheel_ends_each_period_once(
    wheel: RedisWheel, client: Redis, field: str, value: bytes
) -> None:
    wheel.touch_many(["ann", "bob"])
    client.hset(key("wheel"), field, value)
    assert sorted(each.uid for each in wait_for(wheel, 2)) == ["ann", "bob"]
    assert [type for type, _, _ in brief_events(client)] == ["online", "online", "offline", "offline"]
    assert slots(client) == {}


def test_a_slot_of_another_type_writes_no_event_and_is_named_with_the_repair(
    wheel: RedisWheel, client: Redis
) -> None:
    wheel.touch("ann")
    (slot,) = slots(client)
    names = [key(f"slot:{number}") for number in range(slot, slot + 300)]  # three seconds, for slow machines
    for name in names:
        client.set(name, "of another program")
    for act in (wheel.touch, wheel.forget):
        with pytest.raises(StoreError, match=r"redis-cli DEL presence:timer:web:\{0\}:slot:\d+$"):
            act("bob" if act == wheel.touch else "ann")
    while now_ms(client) < slot * 10:
        time.sleep(0.002)
    with pytest.raises(StoreError, match=re.escape(f"redis-cli DEL {names[0]}")):
        wheel.due()
    assert brief_events(client) == [("online", "ann", "login")]
    client.delete(*names)
    assert [each.uid for each in wait_for(wheel)] == ["ann"]


def test_users_before_a_slot_of_another_type_go_offline_once(wheel: RedisWheel, client: Redis) -> None:
    wheel.touch("ann")
    (slot,) = slots(client)
    name = key(f"slot:{slot + 1}")
    client.set(name, "of another program")
    time.sleep(IDLE_S + 3 * TICK_S)
    assert [each.uid for each in wheel.due()] == ["ann"]
    with pytest.raises(StoreError, match=re.escape(f"redis-cli DEL {name}")):
        wheel.due()
    client.delete(name)
    wheel.due()
    assert [type for type, _, _ in brief_events(client)] == ["online", "offline"]


def test_a_uid_that_is_no_text_does_not_hide_the_others(wheel: RedisWheel, client: Redis) -> None:
    wheel.touch("ann")
    client.hset(key("users"), b"\xff", b"\xff")
    assert sorted(each.uid for each in wait_for(wheel, 2)) == ["\\xff", "ann"]


@pytest.mark.parametrize("value", [b"", b"1e999", b"\xff"])
def test_damaged_settings_are_refused_with_the_repair(wheel: RedisWheel, client: Redis, value: bytes) -> None:
    client.hset("presence:timer:web:meta", "tick_ms", value)
    with pytest.raises(StoreError, match="redis-cli DEL presence:timer:web:meta"):
        wheel.touch("ann")
    client.delete("presence:timer:web:meta")
    wheel.touch("ann")
