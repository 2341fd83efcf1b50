"""Readers against a real Valkey, with records as the store's scripts write them."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from presence.reader import PresenceReader, UserFilter
from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.records import online_state
from presence.store.redis_client import Redis, open_client
from presence.store.redis_store import RedisLeaseTable
from tests.support.odd_inputs import NO_NAMES

KEYS = Keys("presence", 4)


@pytest.fixture
def client(redis_server: EmbeddedRedis) -> Iterator[Redis]:
    with open_client(redis_server.url) as client:
        set_lease(client, "n1")
        client.hset(KEYS.meta, "shards", KEYS.shards)
        yield client


@pytest.fixture
def reader(redis_server: EmbeddedRedis) -> Iterator[PresenceReader]:
    with PresenceReader(redis_server.url) as reader:
        yield reader


@pytest.fixture
def table(redis_server: EmbeddedRedis) -> Iterator[RedisLeaseTable]:
    table = RedisLeaseTable(redis_server.url, KEYS, lease_s=10)
    yield table
    table.close()


def set_lease(client: Redis, node: str, left_s: float = 3600) -> None:
    client.zadd(KEYS.nodes, {node: round(1000 * (time.time() + left_s))})


def recorded(*sessions: tuple[str, int, dict[str, Any]], **more: Any) -> str:
    """Return the record of a user with these sessions: device, login_ms, other fields."""
    record = {"id": "5-1", "since_ms": 1000, **more}
    record["sessions"] = {
        device: {"session": f"s-{device}", "node": "n1", "login_ms": login_ms, **fields}
        for device, login_ms, fields in sessions
    }
    return json.dumps(record)


PLAIN = recorded(("", 1000, {}))


def put_online(client: Redis, uids: list[str], record: str = PLAIN) -> None:
    with client.pipeline(transaction=False) as pipe:
        for uid in uids:
            pipe.hset(KEYS.online(KEYS.shard(uid)), uid, record)
        pipe.execute()


# States


def test_an_online_user_has_sessions_by_device(client: Redis, reader: PresenceReader) -> None:
    put_online(client, ["ann"], recorded(("tablet", 2, {"generation": 1, "arrived_ms": 3}), ("", 1, {})))
    assert reader.state("ann") == {
        "status": "online",
        "since_ms": 1000,
        "last_seen_ms": None,
        "id": "5-1",
        "sessions": [
            {"device": "", "session": "s-", "node": "n1", "login_ms": 1},
            {"device": "tablet", "session": "s-tablet", "node": "n1", "login_ms": 2},
        ],
    }


AWAY: dict[str, Any] = {"away": True}
SINCE = {"state": {"id": "7-0", "since_ms": 1500}}


@pytest.mark.parametrize(
    ("record", "status", "since_ms", "meta"),
    [
        (recorded(("a", 1, AWAY), ("b", 2, AWAY), **SINCE), "away", 1500, None),
        (recorded(("a", 1, {"meta": "1"}), ("b", 2, {**AWAY, "meta": "2"})), "online", 1000, "1"),
        (recorded(("a", 1, {"meta": "1"}), ("b", 2, {"meta": "2"})), "online", 1000, "2"),
        (recorded(("a", 1, {"meta": "1"}), ("b", 2, {})), "online", 1000, None),
        # The later name, by its bytes.
        (recorded(("é", 1, {"meta": "1"}), ("z", 1, {"meta": "2"})), "online", 1000, "1"),
        (recorded(("a", 1, {"away": "x", "meta": 7}), state={"id": "1-1"}), "online", 1000, None),
        (recorded(("a", 1, {"away": "x", "meta": 7}), state=5), "online", 1000, None),
    ],
)
def test_a_users_state_is_that_of_the_latest_session_that_is_not_away(
    record: str, status: str, since_ms: int, meta: str | None
) -> None:
    state = online_state(record.encode())
    assert state is not None
    assert (state["status"], state["since_ms"], state.get("meta")) == (status, since_ms, meta)
    assert state["id"] == ("7-0" if since_ms == 1500 else "5-1")


@pytest.mark.parametrize("left_s", [-1, None], ids=["lease ended", "no lease"])
def test_a_user_whose_nodes_are_all_silent_is_unknown(
    client: Redis, reader: PresenceReader, left_s: float | None
) -> None:
    if left_s is not None:
        set_lease(client, "n2", left_s)
    put_online(client, ["ann"], recorded(("phone", 1, {"node": "n2"})))
    put_online(client, ["bob"], recorded(("phone", 1, {"node": "n2"}), ("tv", 1, {})))
    states = reader.states(["ann", "bob"])
    assert [each["status"] for each in states.values()] == ["unknown", "online"]
    assert (states["ann"]["since_ms"], states["ann"]["id"]) == (1000, "5-1")
    assert [each["status"] for page in reader.pages() for each in page.states.values()].count("unknown") == 1


@pytest.mark.parametrize(
    ("score", "seen_ms"), [(1_700_000_000_123, 1_700_000_000_123), (float("inf"), None), (None, None)]
)
def test_an_offline_user_may_have_a_last_seen_time(
    client: Redis, reader: PresenceReader, score: float | None, seen_ms: int | None
) -> None:
    if score is not None:
        client.zadd(KEYS.seen(KEYS.shard("bob")), {"bob": score})
    unknown: dict[str, Any] = {"since_ms": None, "id": None, "sessions": []}
    assert reader.state("bob") == {"status": "offline", "last_seen_ms": seen_ms, **unknown}
    assert reader.states([]) == {}


def test_users_of_all_shards_are_returned_in_the_requested_order_in_any_thread(
    client: Redis, reader: PresenceReader
) -> None:
    uids = [f"user-{number}" for number in range(50)]
    put_online(client, uids[::2])
    states = reader.states([*uids, uids[0]])
    assert list(states) == uids
    assert [states[uid]["status"] for uid in uids] == ["online", "offline"] * 25
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(reader.state, uids)) == [*states.values()]


def test_meta_is_the_clients_map(client: Redis, reader: PresenceReader) -> None:
    for uid, text in (("ann", '{"a":{"$bin":"00"}}'), ("bob", "{")):
        put_online(client, [uid], recorded(("", 1, {"meta": text})))
    pages = {uid: state for page in reader.pages() for uid, state in page.states.items()}
    for states in (pages, reader.states(["ann", "bob"])):
        assert states["ann"]["meta"] == states["ann"]["sessions"][0]["meta"] == {"a": b"\0"}
        assert "meta" not in states["bob"]


@pytest.mark.parametrize(
    "record",
    [
        "no json",
        "[]",
        "{}",
        "5",
        '{"id":' + "[" * 200_000,
        recorded(),
        recorded(("", 1, {"node": []})),
        recorded(("", 1, {"node": "\ud800"})),
        recorded(("", 1, {"session": {}})),
        recorded(("", 1, {"login_ms": 1e999})),
        recorded(("", 1, {}), since_ms=1e999),
    ],
)
def test_a_damaged_record_counts_as_absent(client: Redis, reader: PresenceReader, record: str) -> None:
    put_online(client, ["eve"], record)
    assert reader.state("eve")["status"] == "offline"
    assert [page.states for page in reader.pages()] == [{}] * KEYS.shards


@pytest.mark.parametrize("stored", ["0", "-1", "many", ""])
def test_an_invalid_number_of_shards_is_an_error(client: Redis, reader: PresenceReader, stored: str) -> None:
    client.hset(KEYS.meta, "shards", stored)
    with pytest.raises(ValueError, match="presence:meta"):
        reader.state("ann")


# Pages


def test_pages_have_all_users_who_stay_and_are_bounded_with_any_reader(
    redis_server: EmbeddedRedis, client: Redis
) -> None:
    staying = {f"stays-{n}" for n in range(2000)}
    put_online(client, [*staying])
    named: set[str] = set()
    cursor: str | None = None
    for number in range(1000):
        with PresenceReader(redis_server.url) as each:
            page = each.page(cursor, size=100)
            assert each.count() == len(staying) + 50 * number
        assert len(page.states) <= 300
        named |= page.states.keys()
        if (cursor := page.cursor) is None:
            break
        put_online(client, [f"comes-{number}-{n}" for n in range(50)])
    assert cursor is None
    assert staying <= named


@pytest.mark.parametrize("cursor", ["x", "0", "9-0", "-1-0", "0-1-2", f"0-{2**64}"])
def test_an_invalid_cursor_is_refused(reader: PresenceReader, cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        reader.page(cursor)


def put_teams(client: Redis, count: int) -> None:
    """Put users online: `a*` with a phone, or away without one, and `b*` with a desktop at a silent node."""
    set_lease(client, "gone", -5)
    records = {
        0: recorded(("", 1, {"class": "phone"})),
        1: recorded(("", 1, {"class": "desktop", "node": "gone"})),
    }
    for kind, record in records.items():
        put_online(client, [f"{'ab'[kind]}*{n}" for n in range(count)], record)
    put_online(client, [f"a*{n}" for n in range(0, count, 10)], recorded(("", 1, {"away": True})))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (UserFilter(uid_prefix="a*"), 600),
        (UserFilter(uid_prefix="*"), 0),
        (UserFilter(device_class="phone"), 540),
        (UserFilter(node="gone"), 600),
        (UserFilter(status="away"), 60),
        (UserFilter(status="unknown"), 600),
        (UserFilter(uid_prefix="a*1", status="online"), 100),
        (UserFilter(uid_prefix="b", node="n1"), 0),
    ],
)
def test_pages_have_the_wanted_users(
    client: Redis, reader: PresenceReader, wanted: UserFilter, expected: int
) -> None:
    put_teams(client, 600)
    listed = [uid for page in reader.pages(size=50, wanted=wanted) for uid in page.states]
    assert len(listed) == len(set(listed)) == expected


def test_a_page_goes_on_until_it_has_wanted_users(client: Redis, reader: PresenceReader) -> None:
    put_online(client, [f"u{n}" for n in range(5000)])
    put_online(client, [f"rare{n}" for n in range(20)])
    pages = list(reader.pages(size=10, wanted=UserFilter(uid_prefix="rare")))
    assert sum(len(page.states) for page in pages) == 20
    assert all(page.states for page in pages[:-1])


def test_a_search_ends_in_time(
    client: Redis, reader: PresenceReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presence.reader.SEARCH_S", 0.0)
    put_online(client, [f"u{n}" for n in range(5000)])
    page = reader.page(size=10, wanted=UserFilter(uid_prefix="nobody"))
    assert (page.states, page.cursor is None) == ({}, False)


# Nodes


def test_a_node_has_the_values_that_it_reported(table: RedisLeaseTable, reader: PresenceReader) -> None:
    stats_reported = {"readiness": "ready", "sessions": 7, "pid": "none", "later": 1}
    for name, stats in (
        ("n1", json.dumps(stats_reported)),
        ("n2", "no json"),
        ("n3", '{"a":' + "[" * 200_000),
    ):
        table.renew(name, 1, stats, [])
    node, *damaged = reader.nodes()
    assert (node.node, node.status, node.readiness, node.sessions) == ("n1", "alive", "ready", 7)
    assert (node.pid, node.host, node.sweeper) == (None, None, None)
    assert node.lease_left_s == pytest.approx(10, abs=2)
    assert [each.sessions for each in damaged] == [None, None]


def test_nodes_are_silent_before_they_are_dead_and_absent_after_their_sweep(
    client: Redis, table: RedisLeaseTable, reader: PresenceReader
) -> None:
    client.delete(KEYS.nodes)
    for node in ("b", "a", "c", "swept"):
        table.renew(node, 1, "{}", [])
    set_lease(client, "b", -5)
    set_lease(client, "c", -50)
    assert table.claim("c", "1", "1 a 1")
    assert table.claim("swept", "1", "")
    table.claim("new", "", "0 n2 1")
    nodes = [(each.node, each.status, each.sweeper) for each in reader.nodes()]
    assert nodes == [("a", "alive", None), ("b", "silent", None), ("c", "dead", "a"), ("new", "dead", "n2")]
    left_s = [each.lease_left_s for each in reader.nodes()]
    assert left_s[1] == pytest.approx(-5, abs=2)
    assert left_s[3] is None


@pytest.mark.parametrize("name", NO_NAMES.values(), ids=NO_NAMES)
def test_what_no_uid_can_be_is_an_error_instead_of_an_offline_user(reader: PresenceReader, name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid uid"):
        reader.states(["ann", name])
