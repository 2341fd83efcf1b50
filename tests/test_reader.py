"""Readers against a real Valkey, with entries as the store's scripts write them."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from presence.embedded import EmbeddedRedis
from presence.reader import Page, PresenceReader, read_states, stored_shards
from presence.store.client import Redis, open_client
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


def put_online(client: Redis, uids: list[str]) -> None:
    client.hset("presence:meta", "shards", KEYS.shards)
    session = {"session": "s", "node": "n1", "login_ms": 1000}
    record = json.dumps({"id": "5-1", "since_ms": 1000, "sessions": {"": session}})
    with client.pipeline(transaction=False) as pipe:
        for uid in uids:
            pipe.hset(KEYS.online(KEYS.shard(uid)), uid, record)
        pipe.execute()


@pytest.fixture
def reader(redis_server: EmbeddedRedis) -> Iterator[PresenceReader]:
    with PresenceReader(redis_server.url) as reader:
        yield reader


def test_a_reader_finds_the_shards_that_the_server_stored(client: Redis, reader: PresenceReader) -> None:
    put_online(client, ["ann", "bob"])
    states = reader.states(["bob", "ann", "eve"])
    assert [(uid, state["status"]) for uid, state in states.items()] == [
        ("bob", "online"),
        ("ann", "online"),
        ("eve", "offline"),
    ]
    assert reader.state("ann") == states["ann"]


def test_the_count_is_over_all_shards(client: Redis, reader: PresenceReader) -> None:
    assert reader.count() == 0
    put_online(client, [f"user-{n}" for n in range(1000)])
    assert reader.count() == 1000


def test_pages_name_everybody_and_are_bounded(client: Redis, reader: PresenceReader) -> None:
    uids = [f"user-{n}" for n in range(20_000)]
    put_online(client, uids)
    pages = list(reader.pages(size=100))
    largest = max(len(page.states) for page in pages)
    print(f"pages: {len(pages)} of at most {largest} users for 20,000 online, asked for 100")
    assert {uid for page in pages for uid in page.states} == set(uids)
    assert largest <= 200


def test_a_page_goes_on_where_another_reader_stopped(
    redis_server: EmbeddedRedis, client: Redis, reader: PresenceReader
) -> None:
    uids = [f"user-{n}" for n in range(1000)]
    put_online(client, uids)
    seen: list[str] = []
    cursor: str | None = None
    while True:
        with PresenceReader(redis_server.url) as each:
            page = each.page(cursor, size=300)
        seen += page.states
        if page.cursor is None:
            break
        cursor = page.cursor
    assert sorted(seen) == sorted(uids)


def test_users_who_stay_are_named_though_others_come_and_go(client: Redis, reader: PresenceReader) -> None:
    staying = [f"stays-{n}" for n in range(2000)]
    put_online(client, staying)
    named: set[str] = set()
    for number, page in enumerate(reader.pages(size=50)):
        named |= page.states.keys()
        put_online(client, [f"comes-{number}-{n}" for n in range(200)])
    assert set(staying) <= named


def test_a_page_of_nobody_is_the_last(reader: PresenceReader) -> None:
    assert reader.page() == Page({}, None)


@pytest.mark.parametrize("cursor", ["x", "0", "9-0", "-1-0", "0-1-2"])
def test_what_is_no_cursor_is_refused(reader: PresenceReader, cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        reader.page(cursor)


def test_a_damaged_record_is_on_no_page(client: Redis, reader: PresenceReader) -> None:
    client.hset(KEYS.online(0), "eve", "no json")
    assert reader.page().states == {}


def test_threads_may_share_a_reader(client: Redis, reader: PresenceReader) -> None:
    uids = [f"user-{n}" for n in range(200)]
    put_online(client, uids)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(reader.state, uids))
    assert [answer["status"] for answer in answers] == ["online"] * 200
