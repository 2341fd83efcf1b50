"""The projector on a real Redis: rooms follow the events of users, whatever is lost, doubled or late.

The numbers in the names are those of the rules at the head of `presence/rooms/source_shard.py`.
"""

from typing import Any

import pytest

from presence.rooms import script_calls
from presence.rooms.comparison import order
from presence.rooms.counters import RoomCounters
from presence.rooms.script_calls import ITEM, REMOVALS, project_call
from presence.rooms.source_shard import SourceShard
from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.redis_client import open_client
from presence.store.script_runner import Scripting
from tests.rooms.world import Failing, World

LOBBY = "lobby"


def is_project(call: Any, shard: int | None = None) -> bool:
    return call.script == "rooms/project" and (shard is None or f"{{{shard}}}" in call.keys[0])


def started(world: World, **options: Any) -> Any:
    """Return a projector that has begun in all shards, before anybody is in a room."""
    projector = world.projector(**options)
    world.run(projector)
    return projector


def test_members_follow_the_events_of_users(world: World) -> None:
    projector = started(world)
    for n in range(20):
        world.put(f"u{n}", LOBBY, f"game:{n % 3}")
    world.put("u1", LOBBY)
    world.put("u2")
    world.put("u3", LOBBY, status="away")
    world.end("u4")
    world.run(projector)
    world.check()
    assert projector.counters.rebuilds == projector.counters.differences == 0
    assert projector.counters.members == sum(map(len, world.wanted().values()))


def test_a_room_is_occupied_and_vacated_with_the_count_and_the_user(world: World) -> None:
    projector = started(world)
    event = world.put("ann", LOBBY)
    world.run(projector, 0.2)
    world.put("bob", LOBBY)
    world.run(projector, 0.2)
    world.end("ann")
    world.run(projector, 0.2)
    world.put("bob")
    world.run(projector, 0.2)
    world.check()
    assert world.entries(LOBBY) == [
        "occupied ann 1",
        "joined ann 1",
        "joined bob 2",
        "left ann 1",
        "left bob 0",
        "vacated bob 0",
    ]
    ((_, first), *_) = world.client.xrange(world.keys.room_events(world.keys.shard(LOBBY)))
    assert (first[b"event_id"].decode(), first[b"reason"], first[b"v"]) == (event, b"login", b"1")
    assert int(first[b"source"]) == world.keys.shard("ann")


def test_by_default_the_stream_has_no_members(world: World) -> None:
    projector = started(world, events="occupancy")
    for uid in ("ann", "bob"):
        world.put(uid, LOBBY)
        world.run(projector, 0.2)
    assert world.entries(LOBBY) == ["occupied ann 1"]


def test_invisible_members_count_for_the_backend_only(world: World) -> None:
    projector = started(world)
    world.put("ann", LOBBY, status="invisible")
    world.run(projector, 0.2)
    world.put("bob", LOBBY)
    world.run(projector, 0.2)
    world.check()
    rows = world.client.xrange(world.keys.room_events(world.keys.shard(LOBBY)))
    assert [(row[b"count"], row[b"public"]) for _, row in rows][1:] == [(b"1", b"0"), (b"2", b"1")]
    world.put("ann", LOBBY)
    world.run(projector)
    world.check()
    world.put("bob", LOBBY, status="invisible")
    world.end("ann")
    world.end("bob")
    world.run(projector)
    world.check()
    assert world.entries(LOBBY)[-1].startswith("vacated")


def test_rooms_with_other_members_are_published(world: World) -> None:
    projector = started(world)
    told: list[str] = []
    with world.client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(world.keys.room_channel)

        def act(uid: str, *rooms: str, **more: Any) -> list[str]:
            world.put(uid, *rooms, **more)
            world.run(projector, 0.3)
            told.clear()
            while (message := pubsub.get_message(timeout=0.05)) is not None:
                told.extend(message["data"].decode().split(" "))
            return sorted(told)

        act("ann")
        assert act("ann", LOBBY, "game") == ["game", LOBBY]
        assert act("ann", LOBBY, "game", status="away") == [], "clients are not told who is away"
        assert act("ann", LOBBY, "game", status="invisible") == ["game", LOBBY]
        assert act("bob", LOBBY, status="invisible") == [LOBBY]
        assert act("ann", LOBBY) == ["game", LOBBY]
        assert act("bob") == [LOBBY]


def test_a_projector_publishes_on_the_channel_of_its_database(module_redis: EmbeddedRedis) -> None:
    with open_client(url := f"{module_redis.url}?db=3") as client, client.pubsub() as pubsub:
        client.flushdb()
        world = World(client, url, 1)
        pubsub.subscribe(channel := Keys(database=3).room_channel)
        assert pubsub.get_message(timeout=5) is not None
        projector = started(world)
        world.put("ann", LOBBY)
        world.run(projector)
        message: Any = pubsub.get_message(timeout=5)
        assert (channel, message["data"]) == ("presence:@3:rooms", LOBBY.encode())
        projector.close()


def test_1_each_event_is_applied_once_and_in_order(world: World) -> None:
    projector = started(world)
    for n in range(200):
        world.put("ann", *([LOBBY] if n % 2 else ["game"]))
    world.run(projector)
    world.check()
    assert projector.counters.joined == projector.counters.left + 1 == 200


def test_2_an_answer_that_is_lost_doubles_nothing(world: World) -> None:
    projector = started(world)
    lost: list[Any] = []

    def fails(call: Any) -> str:
        if is_project(call) and call.arguments[-1] and len(lost) < 3:
            lost.append(call)
            return "after"
        return ""

    Failing(projector, fails)
    for n in range(9):
        world.put(f"u{n}", LOBBY)
    world.run(projector, 3.0)
    world.check()
    assert lost
    assert sum("joined" in entry for entry in world.entries(LOBBY)) == 9
    assert projector.counters.rebuilds == 0


def lose_rooms(world: World, shard: int) -> None:
    """Let the rooms of a shard be lost, as after a failover."""
    for key in world.client.keys(f"presence:{{{shard}}}:room*"):
        if not key.endswith(b":rooms:state"):
            world.client.delete(key)


def test_2_a_shard_of_rooms_that_lost_its_data_is_rebuilt(world: World) -> None:
    projector = started(world)
    for n in range(20):
        world.put(f"u{n}", LOBBY, f"game{n}")
    world.run(projector, 7.0)
    lose_rooms(world, world.keys.shard(LOBBY))
    world.end("u3")
    world.run(projector, 7.0)
    world.check()
    assert projector.counters.rebuilds >= 1


def test_2_a_shard_of_rooms_that_lost_its_latest_data_is_rebuilt(world: World) -> None:
    projector = started(world)
    world.put("ann", LOBBY)
    world.run(projector, 7.0)
    shard, names = world.keys.shard(LOBBY), ("room:lobby", "rooms:sources", "rooms:sizes", "rooms:events")
    before = {name: world.client.dump(f"presence:{{{shard}}}:{name}") for name in names}
    world.put("bob", LOBBY)
    world.run(projector)
    for name, value in before.items():
        world.client.restore(f"presence:{{{shard}}}:{name}", 0, value, replace=True)
    world.run(projector, 7.0)
    world.check()


def test_3_a_late_or_doubled_call_is_refused(world: World) -> None:
    projector = started(world)
    sent: list[Any] = []

    def keep(call: Any) -> str:
        sent.append(call)
        return ""

    failing = Failing(projector, keep)
    world.put("ann", LOBBY)
    world.run(projector, 0.1)
    world.end("ann")
    world.run(projector)
    late = [call for call in sent if is_project(call) and call.arguments[-1]]
    assert len(late) >= 2
    for call in late:
        assert projector._scripting.one(call)[1:].startswith(b"\xa2at")
    failing.fails = lambda call: ""
    world.check()
    assert world.members(LOBBY) == {}


def test_3_two_projectors_at_once_change_nothing(world: World) -> None:
    """Each pauses between reading and sending for so long that the other has the lease."""
    one, other = started(world), world.projector()
    for n in range(60):
        world.put(f"u{n % 7}", *([LOBBY] if n % 3 else ["game"]))
        world.release()
        (one, other)[n % 2].run_once()
        world.now += 0.5

    def takes_over(call: Any) -> str:
        if is_project(call) and call.arguments[-1] and not busy:
            busy.append(1)
            world.release()
            world.run(other, 0.2)
            busy.clear()
        return ""

    busy: list[int] = []
    Failing(one, takes_over)
    for n in range(30):
        world.put(f"u{n % 7}", *([LOBBY] if n % 2 else ["game"]))
        world.release()
        world.run(one, 0.1)
    world.release()
    world.run(one, 7.0)
    world.check()
    assert one.counters.differences == other.counters.differences == 0


def test_4_a_late_join_does_not_come_back_after_the_leave(world: World) -> None:
    projector = started(world)
    place, source = world.keys.shard(LOBBY), world.keys.shard("ann")
    before = world.client.hget(world.keys.room_sources(place), str(source))
    event = world.put("ann", LOBBY).encode()
    world.end("ann")
    world.run(projector)
    groups = [b"lobby", ITEM, b"ann", event + b" -", b"1", b"login"]
    call = project_call(world.keys, place, source, position=before, to=event + before[-17:], groups=groups)
    assert b"at" in Scripting(world.url).one(call)
    world.check()


def test_5_another_projector_goes_on_from_the_checkpoint(world: World) -> None:
    projector = started(world)
    for n in range(30):
        world.put(f"u{n}", LOBBY)
    state = world.keys.rooms_state(world.keys.shard("u39"))
    while world.client.hget(state, "begun") != b"1":  # the next checkpoint is 2.5 s later
        world.run(projector, 0.1)
    for n in range(30, 40):
        last = world.put(f"u{n}", LOBBY)
    world.run(projector, 0.1)
    assert world.client.hget(state, "cursor").decode() < last
    world.release()
    other = world.projector()
    world.end("u0")
    world.run(other, 7.0)
    world.check()
    assert other.counters.rebuilds == other.counters.differences == 0
    assert other.counters.events > 0
    assert other.counters.joined == 0, "all of them were members already"


def test_a_record_of_before_a_rebuild_removes_no_member(world: World) -> None:
    """The rebuild skips the event that says so, and the member has the value of before."""
    projector, other, rebuilt = started(world), world.projector(), list[str]()
    world.put("ann", LOBBY)
    world.run(projector)
    world.put("ann", has_event=False)

    def rebuild(call: Any) -> str:
        if REMOVALS in call.arguments and not rebuilt:
            rebuilt.append(world.put("ann", LOBBY))
            world.client.hset(world.keys.rooms_state(world.keys.shard("ann")), "rebuild", "wish")
            world.release()
            world.run(other, 3.0)
        return ""

    Failing(projector, rebuild)
    world.run(projector, 3.0)
    assert rebuilt
    assert other.counters.rebuilds == 1
    assert projector.counters.left == other.counters.left == 0
    world.check()


def test_a_comparison_whose_end_redis_has_lost_is_made_again(world: World) -> None:
    projector = started(world)
    world.put("ann", LOBBY)
    world.run(projector)
    place = world.keys.shard(LOBBY)
    state = world.keys.rooms_state(place)
    world.client.hset(world.keys.rooms_state(world.keys.shard("ann")), "rebuild", "wish")
    world.run(projector, 3.0)
    walk = world.client.hget(world.keys.room_sources(place), "walk")
    assert world.client.hget(state, "walked") == walk is not None
    reads = projector.counters.reads
    world.run(projector, 3.0)
    assert projector.counters.reads - reads < 40 * world.keys.shards, "it is not made again and again"
    world.client.hset(state, "walked", "earlier")
    world.run(projector, 3.0)
    assert world.client.hget(state, "walked") == walk
    world.check()


def test_another_projector_waits_for_the_lease(world: World) -> None:
    started(world)
    other = world.projector()
    assert other.run_once() > 0
    assert other.counters.busy == other.counters.reads == world.keys.shards


@pytest.mark.parametrize("how", ["trimmed", "cursor forgotten", "lost"])
def test_6_a_gap_leads_to_a_rebuild(world: World, how: str) -> None:
    projector = started(world)
    for n in range(40):
        world.put(f"u{n}", LOBBY, f"game{n % 5}")
    world.run(projector, 7.0)
    for shard in range(world.keys.shards):
        if how == "lost":
            world.client.delete(world.keys.events(shard))
        else:
            world.client.xtrim(world.keys.events(shard), maxlen=0)
    for n in range(10):
        world.end(f"u{n}", has_event=how == "cursor forgotten")
        world.put(f"v{n}", LOBBY, has_event=False)
    world.run(projector, 15.0)
    world.check()
    assert projector.counters.gaps >= 1
    assert projector.counters.differences == 0, "a rebuild is no difference"


def test_6_a_rebuild_may_be_wanted_and_goes_on_after_a_crash(world: World) -> None:
    projector = started(world)
    for n in range(40):
        world.put(f"u{n}", LOBBY)
    world.run(projector, 7.0)
    for n in range(10):
        world.end(f"u{n}", has_event=False)
        world.put(f"v{n}", LOBBY, has_event=False)
    for shard in range(world.keys.shards):
        world.client.hset(world.keys.rooms_state(shard), "rebuild", "please")
    for _ in range(3):
        world.now += 0.2
        projector.run_once()
    world.release()
    other = world.projector()
    world.run(other, 15.0)
    world.check()
    for shard in range(world.keys.shards):
        state = world.client.hgetall(world.keys.rooms_state(shard))
        assert b"rebuild" not in state
        assert state[b"rebuilds"] == b"1"
        assert state[b"walked"] == world.client.hget(world.keys.room_sources(shard), "walk")


def test_6_a_comparison_that_was_wanted_is_forgotten_with_the_rest() -> None:
    """Or it would be noted as complete in a Redis that has lost its data, and the wish."""
    source = SourceShard(0, 1, RoomCounters())
    source.walk = b"please"
    source.process([b"lost"], 0.0, {}, 1)
    assert not source.walk


def test_6_members_are_compared_for_each_rebuild_by_itself(world: World) -> None:
    """A wish has one token for all shards, whose rebuilds end at different times."""
    projector = started(world)
    for n in range(20):
        world.put(f"u{n}", LOBBY)
    for shard in (*range(world.keys.shards), 0):
        world.run(projector, 7.0)
        for uid in [uid for uid in world.rooms if world.keys.shard(uid) == shard][:2]:
            world.end(uid, has_event=False)
        world.client.hset(world.keys.rooms_state(shard), "rebuild", "please")
    world.run(projector, 7.0)
    world.check()
    assert projector.counters.differences == 0, "a rebuild is no difference"


def test_7_long_reads_are_cut_between_events(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_calls, "MAX_ITEMS_PER_CALL", 10)
    projector = started(world)
    sizes: list[int] = []

    def note(call: Any) -> str:
        if is_project(call):
            sizes.append(len(call.arguments[-1]))
        return ""

    Failing(projector, note)
    for n in range(60):
        world.put(f"u{n}", *(f"room{m}" for m in range(16)))
    world.run(projector)
    world.check()
    assert len([size for size in sizes if size]) > 60 * 16 // 30


def test_8_the_first_start_is_no_rebuild(world: World) -> None:
    for n in range(10):
        world.put(f"u{n}")
    projector = started(world)
    world.put("ann", LOBBY)
    world.run(projector, 7.0)
    world.check()
    assert projector.counters.rebuilds == projector.counters.gaps == 0


def test_8_lost_state_leads_to_a_rebuild(world: World) -> None:
    projector = started(world)
    world.put("ann", LOBBY)
    world.run(projector, 7.0)
    for shard in range(world.keys.shards):
        world.client.delete(world.keys.rooms_state(shard))
    world.end("ann", has_event=False)
    world.put("bob", LOBBY, has_event=False)
    world.run(projector, 15.0)
    world.check()
    assert projector.counters.rebuilds >= 1


@pytest.mark.parametrize("failed", ["read of a source", "change of rooms"])
@pytest.mark.parametrize("world", [4], indirect=True)
def test_the_lag_grows_while_a_shard_does_not_answer(world: World, failed: str) -> None:
    projector = started(world)
    world.put("ann", *(world.uid_of(shard) for shard in range(4)))
    world.run(projector)
    assert 0 <= projector.counters.lag_s < 1

    def fails(call: Any) -> str:
        is_read = call.script == "rooms/read" and call.keys[0] == world.keys.rooms_state(1)
        return "before" if (is_read if failed.startswith("read") else is_project(call, 1)) else ""

    failing = Failing(projector, fails)
    world.put("ann")
    world.run(projector, 8.0)
    assert 5 < projector.counters.lag_s < 9
    failing.fails = lambda _call: ""
    world.run(projector, 5.0)
    assert projector.counters.lag_s < 1


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("world", [4], indirect=True)
def test_9_a_shard_that_fails_holds_up_no_other(world: World, when: str) -> None:
    projector = started(world)
    here, there = world.uid_of(1, "here"), world.uid_of(2, "there")
    failing = Failing(projector, lambda call: when if is_project(call, 1) else "")
    for n in range(30):
        world.put(f"u{n}", here, there)
        world.run(projector, 0.1)
    assert len(world.members(there)) == 30
    for n in range(10):
        world.end(f"u{n}")
    world.run(projector, 7.0)
    failing.fails = lambda call: ""
    world.run(projector, 7.0)
    world.check()
    # All events are read again for the shard that has failed: the other must not get them twice.
    told = [entry.split()[0] for entry in world.entries(there)]
    assert told == ["occupied", *["joined"] * 30, *["left"] * 10]
    assert projector.counters.rebuilds == projector.counters.differences == 0


@pytest.mark.parametrize("world", [4], indirect=True)
def test_9_no_checkpoint_is_made_for_a_shard_that_is_away_for_another_source(world: World) -> None:
    projector = started(world)
    room = world.uid_of(1, "room")
    sources = [world.uid_of(shard, "user") for shard in (0, 2)]
    for uid in sources:
        world.put(uid, room)
    world.run(projector, 7.0)

    def is_of_the_first(call: Any) -> bool:
        return is_project(call, 1) and call.arguments[0] == 0

    Failing(projector, lambda call: "before" if is_of_the_first(call) else "")
    for _ in range(150):
        for uid in sources:
            world.end(uid)
            world.put(uid, room)
        world.run(projector, 0.1)
        position = world.client.hget(world.keys.room_sources(1), "2").split()[0]
        checkpoint = world.client.hget(world.keys.rooms_state(2), "cursor")
        assert order(checkpoint) <= order(position)


def test_10_rooms_are_right_after_everything_was_lost(world: World) -> None:
    projector = started(world)
    for n in range(30):
        world.put(f"u{n}", LOBBY)
    world.run(projector, 7.0)
    world.client.flushall()
    came_back, world.rooms = world.rooms, {}
    for uid, rooms in came_back.items():
        world.put(uid, *rooms)
    world.run(projector, 15.0)
    world.check()


def test_the_source_that_is_lost_before_users_come_back_empties_rooms(world: World) -> None:
    projector = started(world)
    world.put("ann", LOBBY)
    world.put("bob", LOBBY)
    world.run(projector, 7.0)
    source = world.keys.shard("ann")
    for key in ("events", "online", "meta", "rooms:state"):
        world.client.delete(f"presence:{{{source}}}:{key}")
    for uid in ("ann", "bob"):
        if world.keys.shard(uid) == source:
            del world.rooms[uid]
    world.run(projector, 15.0)
    world.check()


def test_the_comparison_corrects_members_and_counts_differences(world: World) -> None:
    projector = started(world)
    for n in range(10):
        world.put(f"u{n}", LOBBY)
    world.run(projector, 7.0)
    world.end("u0", has_event=False)
    world.put("u1", LOBBY, "other", has_event=False)
    world.put("u2", LOBBY, status="invisible", has_event=False)
    world.run(projector, 40.0)
    world.check()
    assert projector.counters.differences == 3
    assert projector.counters.rebuilds == 0


def test_a_member_who_leaves_late_is_no_difference(world: World) -> None:
    projector = started(world)
    world.put("ann", LOBBY)
    world.put("bob", LOBBY)
    world.run(projector, 7.0)
    world.end("ann")
    (walk, *_) = [walk for walk in projector._walks if walk._shard == world.keys.shard(LOBBY)]
    for _ in range(20):
        walk.step(projector._scripting, world.now)
    assert "ann" in world.members(LOBBY)
    world.run(projector, 7.0)
    world.check()
    assert projector.counters.differences == 0
    assert world.entries(LOBBY)[-1] == "left ann 1"


def test_rooms_above_the_limit_are_refused(world: World) -> None:
    shards = world.keys.shards
    projector = started(world, max_rooms=2 * shards)
    for n in range(40):
        world.put("ann" if n == 0 else f"u{n}", f"room{n}")
    world.run(projector)
    assert sum(world.client.zcard(world.keys.room_sizes(shard)) for shard in range(shards)) == 2 * shards
    assert projector.counters.refused > 0


def test_idle_polls_write_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("presence.rooms.script_calls.LEASE_MS", 60_000)  # or it is renewed meanwhile
    projector = started(world)
    world.put("ann", LOBBY)
    world.run(projector, 1.0)
    dirty = world.client.info("persistence")["rdb_changes_since_last_save"]
    world.run(projector, 0.3)
    assert world.client.info("persistence")["rdb_changes_since_last_save"] == dirty
