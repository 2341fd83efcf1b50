"""What read.lua makes of the events of users, in whatever order their fields are."""

from contextlib import closing
from typing import Any

from benchmarks.rooms.load import RoomLoad
from presence.rooms.script_calls import BEGIN, ITEM, read_call, unpacked
from presence.rooms.source_shard import SourceRead
from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.redis_client import Redis
from presence.store.script_runner import Scripting

KEYS = Keys()
EPOCH = b"e" * 16
PLACES = {2: b"type", 4: b"uid", 8: b"reason", 20: b"at_ms"}  # where read.lua expects these names


def read_all(url: str) -> dict[bytes, list[bytes]]:
    """Return the items of each room, from the first event on."""
    scripting = Scripting(url)
    with closing(scripting):
        scripting.one(read_call(KEYS, 0, "p", BEGIN, EPOCH))
        status, *values = unpacked(scripting.one(read_call(KEYS, 0, "p", b"0-0", EPOCH)))
    assert status == b"read"
    groups, found, first = SourceRead(*values).groups, {}, 0
    while first < len(groups):
        room, size = groups[first : first + 2]
        found[room] = groups[first + 2 : first + 2 + size]
        first += 2 + size
    return found


def write_all_kinds_of_events(url: str) -> None:
    with closing(RoomLoad(url, KEYS)) as load:
        for number, status in enumerate(("online", "away", "busy", "dnd", "invisible")):
            uid: Any = f"u{number}"
            load.show(uid, ("lobby",), status)  # type: ignore[arg-type]
            load.show(uid, ("lobby", "yard"), status)  # type: ignore[arg-type]
            load.show(uid, ("yard",), "away")
            load.show(uid, ("yard",), "online")
            load.show(uid, ("yard",), "invisible")
            load.show(uid, (), "invisible")
            load.show(uid, ("game-1", "game-2"), "busy")
        load.end("u0")
        load.write(1)


def raw_events(client: Redis) -> list[tuple[bytes, list[bytes]]]:
    client.set_response_callback("XRANGE", lambda answer, **_: answer)
    found: Any = client.xrange(KEYS.events(0))
    return [(id, fields) for id, fields in found]


def test_the_items_do_not_depend_on_the_order_of_fields(client: Redis, module_redis: EmbeddedRedis) -> None:
    write_all_kinds_of_events(module_redis.url)
    found = read_all(module_redis.url)
    events = raw_events(client)
    assert {fields[3] for _, fields in events} == {b"online", b"rooms", b"away", b"update", b"offline"}
    client.delete(KEYS.events(0))
    for id, fields in events:
        backwards = [text for i in range(len(fields) - 2, -1, -2) for text in fields[i : i + 2]]
        client.xadd(KEYS.events(0), dict(zip(backwards[::2], backwards[1::2], strict=True)), id)
    assert read_all(module_redis.url) == found


def test_fields_that_all_events_have_are_where_reading_is_fast(
    client: Redis, module_redis: EmbeddedRedis
) -> None:
    write_all_kinds_of_events(module_redis.url)
    for _, fields in raw_events(client):
        assert {place: fields[place] for place in PLACES} == PLACES


def test_an_item_has_the_value_of_the_member_or_only_the_event_of_one_who_left(
    client: Redis, module_redis: EmbeddedRedis
) -> None:
    with closing(RoomLoad(module_redis.url, KEYS)) as load:
        load.show("ann", ("lobby",), "invisible")
        load.show("ann", ("yard",), "away")
        load.end("ann")
        load.write(1)
    (came, _), *_, (left, _) = raw_events(client)
    found = read_all(module_redis.url)
    assert [*found] == [b"lobby", b"yard"]
    assert found[b"lobby"][:2] == [b"ann", came + b" i"]
    assert b" " not in found[b"lobby"][-ITEM + 1], "ann has left"
    assert found[b"yard"][1].endswith(b" a")
    assert found[b"yard"][-ITEM + 1] == left
    assert found[b"yard"][-1] == b"logout"
