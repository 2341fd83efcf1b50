"""Readers against a real Valkey, with entries as the store's scripts write them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from presence.embedded import EmbeddedRedis
from presence.reader import EventReader, read_states, stored_shards
from presence.store.client import Redis, RedisError, open_client
from presence.store.keys import Keys

KEYS = Keys("presence", 4)


@pytest.fixture
def client(redis_server: EmbeddedRedis) -> Iterator[Redis]:
    with open_client(redis_server.url) as client:
        yield client


def come_online(client: Redis, uid: str, *devices: str) -> None:
    sessions = {
        device: {
            "session": f"s-{device}",
            "node": "n1",
            "generation": 1,
            "login_ms": 1000,
            "arrived_ms": 1001,
            "idle_timeout_ms": 30_000,
        }
        for device in devices
    }
    record = {"id": "5-1", "since_ms": 1000, "sessions": sessions}
    client.hset(KEYS.online(KEYS.shard(uid)), uid, json.dumps(record))


def state(client: Redis, uid: str) -> dict[str, Any]:
    return read_states(client, KEYS, [uid])[uid]


def test_user_online_has_his_sessions_by_device(client: Redis) -> None:
    come_online(client, "alice", "tablet", "")
    assert state(client, "alice") == {
        "status": "online",
        "since_ms": 1000,
        "last_seen_ms": None,
        "id": "5-1",
        "sessions": [
            {"device": "", "session": "s-", "node": "n1", "login_ms": 1000},
            {"device": "tablet", "session": "s-tablet", "node": "n1", "login_ms": 1000},
        ],
    }


def test_user_offline_was_last_seen(client: Redis) -> None:
    client.zadd(KEYS.seen(KEYS.shard("bob")), {"bob": 1_700_000_000_123})
    assert state(client, "bob") == {
        "status": "offline",
        "since_ms": None,
        "last_seen_ms": 1_700_000_000_123,
        "id": None,
        "sessions": [],
    }


def test_user_nobody_heard_of_is_offline(client: Redis) -> None:
    assert state(client, "nobody")["status"] == "offline"
    assert state(client, "nobody")["last_seen_ms"] is None


def test_users_of_all_shards_come_in_the_order_asked_for(client: Redis) -> None:
    uids = [f"user-{number}" for number in range(50)]
    assert {KEYS.shard(uid) for uid in uids} == {0, 1, 2, 3}
    for uid in uids[::2]:
        come_online(client, uid, "")
    states = read_states(client, KEYS, [*uids, uids[0]])
    assert list(states) == uids
    assert [states[uid]["status"] for uid in uids] == ["online", "offline"] * 25


def test_asking_for_nobody_is_no_error(client: Redis) -> None:
    assert read_states(client, KEYS, []) == {}


@pytest.mark.parametrize("record", ["no json", "[]", "{}", '{"id":"1-1","since_ms":1,"sessions":{}}', "5"])
def test_damaged_record_counts_as_absent(client: Redis, record: str) -> None:
    client.hset(KEYS.online(KEYS.shard("eve")), "eve", record)
    assert state(client, "eve")["status"] == "offline"


def test_shards_are_those_that_the_server_stored(client: Redis) -> None:
    assert stored_shards(client, "presence") is None
    client.hset("presence:meta", "shards", "16")
    assert stored_shards(client, "presence") == 16


@pytest.mark.parametrize("stored", ["0", "-1", "many", ""])
def test_what_is_no_number_of_shards_is_an_error(client: Redis, stored: str) -> None:
    client.hset("presence:meta", "shards", stored)
    with pytest.raises(ValueError, match="presence:meta"):
        stored_shards(client, "presence")


def write(client: Redis, shard: int, entry_id: str, uid: str = "u") -> None:
    client.xadd(KEYS.events(shard), {"v": 1, "type": "online", "uid": uid}, id=entry_id)


def ids(reader: EventReader) -> list[tuple[int, str]]:
    return [(event.shard, event.id) for event in reader.read(10)]


def test_new_events_are_those_after_the_reader_began(client: Redis) -> None:
    client.hset("presence:meta", "shards", 2)
    write(client, 0, "5-0")
    reader = EventReader(client, "presence")
    # No read was waiting when these came.
    write(client, 0, "6-0")
    write(client, 1, "7-0")
    assert ids(reader) == [(0, "6-0"), (1, "7-0")]
    assert ids(reader) == []


def test_history_is_merged_by_id(client: Redis) -> None:
    client.hset("presence:meta", "shards", 2)
    for shard, entry_id in ((0, "9-0"), (0, "10-2"), (1, "10-1"), (1, "10-10")):
        write(client, shard, entry_id)
    assert ids(EventReader(client, "presence", "0")) == [(0, "9-0"), (1, "10-1"), (0, "10-2"), (1, "10-10")]


def test_reading_begins_after_the_id_given(client: Redis) -> None:
    for entry_id in ("1-0", "2-0", "3-0"):
        write(client, 0, entry_id)
    assert ids(EventReader(client, "presence", "2-0")) == [(0, "3-0")]


def test_long_history_comes_whole_and_once(client: Redis) -> None:
    with client.pipeline() as pipe:
        for number in range(1, 1201):
            pipe.xadd(KEYS.events(0), {"n": number}, id=f"{number}-0")
        pipe.execute()
    reader = EventReader(client, "presence", "0")
    numbers: list[int] = []
    while events := reader.read(10):
        numbers += [int(event.fields["n"]) for event in events]
    assert numbers == list(range(1, 1201))


def test_shards_of_a_server_that_starts_later_are_read_from_their_first_entry(client: Redis) -> None:
    reader = EventReader(client, "presence")
    assert ids(reader) == []
    client.hset("presence:meta", "shards", 3)
    write(client, 2, "1-0")
    assert ids(reader) == [(2, "1-0")]


def test_reader_goes_on_after_a_failed_call(client: Redis) -> None:
    write(client, 0, "1-0")
    reader = EventReader(client, "presence", "0")
    assert ids(reader) == [(0, "1-0")]
    client.rename(KEYS.events(0), "aside")
    client.set(KEYS.events(0), "no stream")
    with pytest.raises(RedisError):
        reader.read(10)
    client.rename("aside", KEYS.events(0))
    write(client, 0, "2-0")
    assert ids(reader) == [(0, "2-0")]


def test_bytes_that_are_no_text_are_escaped(client: Redis) -> None:
    client.xadd(KEYS.events(0), {"uid": b"\xff\xfe"}, id="1-0")
    assert EventReader(client, "presence", "0").read(10)[0].fields == {"uid": r"\xff\xfe"}
