"""Readers against a real Valkey, with entries as the store's scripts write them."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from presence.embedded import EmbeddedRedis
from presence.reader import PresenceReader
from presence.store.access import Access
from presence.store.client import Redis, open_client
from presence.store.keys import Keys
from presence.store.lease_table import RedisLeaseTable
from presence.store.records import online_state, read_states, stored_shards

KEYS = Keys("presence", 4)


@pytest.fixture
def client(redis_server: EmbeddedRedis) -> Iterator[Redis]:
    with open_client(redis_server.url) as client:
        set_lease(client, "n1")
        yield client


def set_lease(client: Redis, node: str, left_s: float = 3600) -> None:
    client.zadd(KEYS.nodes, {node: round(1000 * (time.time() + left_s))})


def come_online(client: Redis, uid: str, *devices: str, node: str = "n1") -> None:
    sessions = {
        device: {
            "session": f"s-{device}",
            "node": node,
            "generation": 1,
            "login_ms": 1000,
            "arrived_ms": 1001,
            "idle_timeout_ms": 30_000,
        }
        for device in devices
    }
    record = {"id": "5-1", "since_ms": 1000, "sessions": sessions}
    client.hset(KEYS.online(KEYS.shard(uid)), uid, json.dumps(record))


@pytest.fixture
def access(redis_server: EmbeddedRedis) -> Iterator[Access]:
    with Access(redis_server.url) as access:
        yield access


def state(access: Access, uid: str) -> dict[str, Any]:
    return read_states(access, KEYS, [uid])[uid]


def test_user_online_has_his_sessions_by_device(client: Redis, access: Access) -> None:
    come_online(client, "alice", "tablet", "")
    assert state(access, "alice") == {
        "status": "online",
        "since_ms": 1000,
        "last_seen_ms": None,
        "id": "5-1",
        "sessions": [
            {"device": "", "session": "s-", "node": "n1", "login_ms": 1000},
            {"device": "tablet", "session": "s-tablet", "node": "n1", "login_ms": 1000},
        ],
    }


def shown(*sessions: tuple[str, int, dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return the state of a user with these sessions: device, login_ms, what else the record has of it."""
    record = {"id": "5-1", "since_ms": 1000, **more}
    record["sessions"] = {
        device: {"session": f"s-{device}", "node": "n1", "login_ms": login_ms, **fields}
        for device, login_ms, fields in sessions
    }
    state = online_state(json.dumps(record).encode())
    assert state is not None
    return state


AWAY: dict[str, Any] = {"away": True}


def test_user_whose_sessions_are_all_away_is_away_since_then() -> None:
    state = shown(("a", 1, AWAY), ("b", 2, AWAY), state={"id": "7-0", "since_ms": 1500})
    assert (state["status"], state["since_ms"], state["id"]) == ("away", 1500, "7-0")
    assert [session["away"] for session in state["sessions"]] == [True, True]


def test_one_session_that_is_not_away_makes_the_user_online() -> None:
    state = shown(("a", 1, {"meta": "1"}), ("b", 2, {**AWAY, "meta": "2"}))
    assert (state["status"], state["meta"], state["id"]) == ("online", "1", "5-1")
    assert [session.get("away") for session in state["sessions"]] == [None, True]


def test_meta_is_that_of_the_latest_login_if_it_has_one() -> None:
    assert shown(("a", 1, {"meta": "1"}), ("b", 2, {"meta": "2"}))["meta"] == "2"
    assert "meta" not in shown(("a", 1, {"meta": "1"}), ("b", 2, {}))
    assert shown(("é", 1, {"meta": "1"}), ("z", 1, {"meta": "2"}))["meta"] == "1", (
        "the later name, by its bytes"
    )


@pytest.mark.parametrize("damaged", [{"state": {"id": "1-1"}}, {"state": 5}, {"state": None}])
def test_damaged_state_counts_as_absent(damaged: dict[str, Any]) -> None:
    state = shown(("a", 1, {"away": "x", "meta": 7}), **damaged)
    assert (state["status"], state["since_ms"], state["id"]) == ("online", 1000, "5-1")
    assert "meta" not in state


@pytest.mark.parametrize("left_s", [-1, None], ids=["lease ended", "no lease"])
def test_user_whose_nodes_are_silent_is_unknown(client: Redis, access: Access, left_s: float | None) -> None:
    come_online(client, "ann", "phone", node="n2")
    if left_s is not None:
        set_lease(client, "n2", left_s)
    known = state(access, "ann")
    assert (known["status"], known["since_ms"], known["id"]) == ("unknown", 1000, "5-1")
    assert [session["node"] for session in known["sessions"]] == ["n2"]


def test_user_with_one_session_on_a_node_that_lives_is_online(client: Redis, access: Access) -> None:
    come_online(client, "ann", "phone", "tablet", node="n2")
    record = json.loads(client.hget(KEYS.online(KEYS.shard("ann")), "ann") or "")
    record["sessions"]["tablet"]["node"] = "n1"
    client.hset(KEYS.online(KEYS.shard("ann")), "ann", json.dumps(record))
    assert state(access, "ann")["status"] == "online"


@pytest.mark.parametrize(
    ("score", "seen_ms"), [(1_700_000_000_123, 1_700_000_000_123), (float("inf"), None), (None, None)]
)
def test_user_offline_may_have_been_seen(
    client: Redis, access: Access, score: float | None, seen_ms: int | None
) -> None:
    if score is not None:
        client.zadd(KEYS.seen(KEYS.shard("bob")), {"bob": score})
    unknown: dict[str, Any] = {"since_ms": None, "id": None, "sessions": []}
    assert state(access, "bob") == {"status": "offline", "last_seen_ms": seen_ms, **unknown}
    assert read_states(access, KEYS, []) == {}


def test_users_of_all_shards_come_in_the_order_asked_for(client: Redis, access: Access) -> None:
    uids = [f"user-{number}" for number in range(50)]
    assert {KEYS.shard(uid) for uid in uids} == {0, 1, 2, 3}
    for uid in uids[::2]:
        come_online(client, uid, "")
    states = read_states(access, KEYS, [*uids, uids[0]])
    assert list(states) == uids
    assert [states[uid]["status"] for uid in uids] == ["online", "offline"] * 25


def _recorded(**damaged: object) -> str:
    """A record of one session, of which something is not as a server writes it."""
    record = {"session": "s", "node": "n1", "login_ms": 1} | damaged
    return json.dumps({"id": "1-1", "since_ms": damaged.pop("since_ms", 1), "sessions": {"": record}})


@pytest.mark.parametrize(
    "record",
    [
        "no json",
        "[]",
        "{}",
        '{"id":"1-1","since_ms":1,"sessions":{}}',
        "5",
        '{"id":' + "[" * 200_000,
        _recorded(node=[]),
        _recorded(node="\ud800"),
        _recorded(session={}),
        _recorded(login_ms=1e999),
        _recorded(since_ms=1e999),
    ],
)
def test_damaged_record_counts_as_absent(
    client: Redis, access: Access, reader: PresenceReader, record: str
) -> None:
    client.hset("presence:meta", "shards", KEYS.shards)
    client.hset(KEYS.online(KEYS.shard("eve")), "eve", record)
    assert state(access, "eve")["status"] == "offline"
    assert [page.states for page in reader.pages()] == [{}] * KEYS.shards


def test_shards_are_those_that_the_server_stored(client: Redis, access: Access) -> None:
    assert stored_shards(access, "presence") is None
    client.hset("presence:meta", "shards", "16")
    assert stored_shards(access, "presence") == 16


@pytest.mark.parametrize("stored", ["0", "-1", "many", ""])
def test_what_is_no_number_of_shards_is_an_error(client: Redis, access: Access, stored: str) -> None:
    client.hset("presence:meta", "shards", stored)
    with pytest.raises(ValueError, match="presence:meta"):
        stored_shards(access, "presence")


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
    staying = [f"stays-{n}" for n in range(500)]
    put_online(client, staying)
    named: set[str] = set()
    for number, page in enumerate(reader.pages(size=50)):
        named |= page.states.keys()
        put_online(client, [f"comes-{number}-{n}" for n in range(50)])
    assert set(staying) <= named


@pytest.mark.parametrize("cursor", ["x", "0", "9-0", "-1-0", "0-1-2"])
def test_what_is_no_cursor_is_refused(reader: PresenceReader, cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        reader.page(cursor)


def test_a_page_tells_whose_nodes_are_silent(client: Redis, reader: PresenceReader) -> None:
    put_online(client, ["ann"])
    set_lease(client, "n1", -1)
    assert [each["status"] for page in reader.pages() for each in page.states.values()] == ["unknown"]


def test_threads_may_share_a_reader(client: Redis, reader: PresenceReader) -> None:
    uids = [f"user-{n}" for n in range(200)]
    put_online(client, uids)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(reader.state, uids))
    assert [answer["status"] for answer in answers] == ["online"] * 200


@pytest.fixture
def table(redis_server: EmbeddedRedis) -> Iterator[RedisLeaseTable]:
    table = RedisLeaseTable(redis_server.url, KEYS, lease_s=10)
    yield table
    table.close()


def test_a_node_is_told_as_it_told_of_itself(table: RedisLeaseTable, reader: PresenceReader) -> None:
    told = {"readiness": "ready", "sessions": 7, "pid": "none", "later": 1}
    table.renew("n1", 1, json.dumps(told), [])
    (node,) = reader.nodes()
    assert (node.node, node.status, node.readiness, node.sessions) == ("n1", "alive", "ready", 7)
    assert (node.pid, node.host, node.sweeper) == (None, None, None)
    assert node.lease_left_s == pytest.approx(10, abs=2)


def test_nodes_are_silent_before_they_are_dead_and_gone_when_they_are_swept(
    client: Redis, table: RedisLeaseTable, reader: PresenceReader
) -> None:
    for node in ("b", "a", "c"):
        table.renew(node, 1, "{}", [])
    set_lease(client, "b", -5)
    set_lease(client, "c", -50)
    assert table.claim("c", "1", "1 a 1")
    table.renew("swept", 1, "{}", [])
    assert table.claim("swept", "1", "")
    table.claim("new", "", "0 n2 1")
    nodes = [(each.node, each.status, each.sweeper) for each in reader.nodes()]
    assert nodes == [("a", "alive", None), ("b", "silent", None), ("c", "dead", "a"), ("new", "dead", "n2")]
    left_s = [each.lease_left_s for each in reader.nodes()]
    assert left_s[1] == pytest.approx(-5, abs=2)
    assert left_s[3] is None


@pytest.mark.parametrize("stats", ["no json", "[]", '{"a":' + "[" * 200_000])
def test_damaged_stats_tell_nothing(table: RedisLeaseTable, reader: PresenceReader, stats: str) -> None:
    table.renew("n1", 1, stats, [])
    assert reader.nodes()[0].sessions is None


def test_a_reader_gives_meta_as_the_map_that_the_client_gave(
    client: Redis, redis_server: EmbeddedRedis
) -> None:
    for uid, text in (("ann", '{"a":{"$bin":"00"}}'), ("bob", "{")):
        session = {"session": "s", "node": "n1", "login_ms": 1, "meta": text}
        record = json.dumps({"id": "5-1", "since_ms": 1, "sessions": {"": session}})
        client.hset("presence:{0}:online", uid, record)
    with PresenceReader(redis_server.url) as reader:
        (page,) = reader.pages()
        for states in (page.states, reader.states(["ann", "bob"])):
            assert states["ann"]["meta"] == states["ann"]["sessions"][0]["meta"] == {"a": b"\0"}
            assert "meta" not in states["bob"]
