"""Damaged or foreign values in Redis: they count as absent and do not stop anything."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from presence.common.errors import StoreError, StoreMismatch
from presence.core.profiles import Profile
from presence.outbox.replies import Reply, ReplyStatus
from presence.outbox.steps import Counter
from presence.store.keys import Keys
from presence.store.redis_store import RedisLeaseTable, RedisStore
from tests.store.driving import (
    Hand,
    brief_events,
    end,
    events,
    hold,
    login,
    online_sessions,
    probed,
    record,
    update,
)
from tests.store.servers import Server

KEYS = Keys()
DAMAGED_RECORDS = [
    '{"sessions":{"":{"session":"x"}}}',
    '{"id":"1-1","sessions":{"":{"session":"s1","node":"a","login_ms":1,"arrived_ms":1}}}',
    '{"id":"1-1","since_ms":1,"sessions":{"":{"session":"x","login_ms":1,"arrived_ms":1}}}',
    '{"id":"1-1","since_ms":1,"sessions":{"":{"session":"x","node":"b"}}}',
    '{"id":"1-1","since_ms":1,"sessions":{"phone":7}}',
]
DAMAGED_INBOXES = ["{not json", "7", "[7]", '[{"uid":"u"}]', '[{"n":1,"uid":"u","device":""}]']


@pytest.fixture
def server(emptied_server: Server) -> Server:
    return emptied_server


@pytest.mark.parametrize("text", DAMAGED_RECORDS)
def test_a_login_replaces_a_damaged_record(a: Hand, server: Server, text: str) -> None:
    server.client.hset(KEYS.online(0), "u", text)
    assert a.apply(login("u", "s1", age_s=3)).status is ReplyStatus.OK
    assert online_sessions(server.client) == {("u", "", "s1")}
    has_online_event = '"id":"1-1"' in text  # which is left of it
    assert len(events(server.client)) == (0 if has_online_event else 1)


@pytest.mark.parametrize("text", [*DAMAGED_RECORDS, None])
@pytest.mark.parametrize("by", ["end", "restore", "sweep", "retirement"])
def test_the_end_of_a_session_ends_a_user_whose_record_is_lost(
    a: Hand, b: Hand, server: Server, text: str | None, by: str
) -> None:
    a.apply(login("u", "s1"), login("w", "s2"))
    if text is None:
        server.client.hdel(KEYS.online(0), "u")
    else:
        server.client.hset(KEYS.online(0), "u", text)
    if by in {"end", "restore"}:
        a.apply(end("u", "another"))
        assert len(events(server.client)) == 2, "of a session that was not recorded"
        a.apply(end("u", "s1"), end("w", "s2"), restores=by == "restore")
    elif by == "retirement":
        a.open(2)
        a.retire()
    else:
        b.fence("a")
        assert b.sweep("a").ended == 2
    assert sorted(brief_events(server.client)[2:]) == [
        ("offline", uid, "node_down" if by in {"sweep", "retirement"} else "logout") for uid in ("u", "w")
    ]
    assert server.client.hlen(KEYS.online(0)) == 0


def test_a_damaged_state_counts_as_absent(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1"))
    text = record(server.client, "u")
    text["state"] = {"id": 7}
    text["sessions"][""] |= {"away": "yes", "meta": ["x"]}
    server.client.hset(KEYS.online(0), "u", json.dumps(text))
    a.apply(update("u", "s1", profile=Profile(meta="{}")))
    event = events(server.client)[1]
    assert (event["type"], event["status"], event["meta"]) == ("update", "online", "{}")


def test_a_damaged_pending_login_counts_as_absent(a: Hand, b: Hand, server: Server) -> None:
    b.apply(login("u", "sb"))
    a.apply(hold("u", "sa", "desk"))
    server.client.hset(KEYS.pending_logins(0, "a"), "u", '[["desk"], 7, {"x": 1}]')
    b.apply(end("u", "sb"))
    assert [event["type"] for event in events(server.client)] == ["online", "offline"]


@pytest.mark.parametrize("inbox", DAMAGED_INBOXES)
def test_a_damaged_inbox_does_not_stop_the_probe(a: Hand, server: Server, inbox: str) -> None:
    server.client.hset(KEYS.node(0, "a"), mapping={"inbox": inbox, "inbox_n": 1})
    probe = probed(a.store, "a")
    assert (probe.inbox, probe.inbox_n) == ((), 1)
    server.client.hset(KEYS.node(0, "a"), "inbox_n", "x")
    assert probed(a.store, "a").inbox_n == 0


# Values that no node writes


@pytest.mark.parametrize("by", ["sweep", "retirement"])
def test_an_unknown_field_does_not_stop_a_sweep(a: Hand, b: Hand, server: Server, by: str) -> None:
    a.apply(login("u", "s1"))
    server.client.hset(KEYS.sessions(0, "a"), mapping={"what": "ever", "v ": "garbage", b"\xff": b"\xff"})
    if by == "retirement":
        a.open(2)
        assert a.retire().ended == 1
    else:
        b.fence("a")
        reply = b.sweep("a")
        assert (reply.ended, reply.done or b.sweep("a").done) == (1, True)


@pytest.mark.parametrize(
    "trace", [b"", b"x", b"1", b"1 1", b"-1 0 0", "\u00b2 \u00b2 0".encode(), b"9" * 5_000]
)
def test_a_damaged_trace_is_ignored(a: Hand, server: Server, trace: bytes) -> None:
    server.client.hset(KEYS.peer_traces(0), mapping={"other": trace, b"\xff": b"1 1 0"})
    peer_traces = probed(a.store, "a").peer_traces
    assert set(peer_traces) <= {"other"}
    assert not any(each.complete or each.fenced for each in peer_traces.values()) or trace == b"1 1"


def test_invalid_utf_8_does_not_stop_the_lease_table(server: Server) -> None:
    nodes, leases, *_ = KEYS.lease_keys
    damaged: dict[Any, Any] = {
        b"\xff": b"1",
        "b": b"\xfe 7 x",
        "c": "1 a \u00b2",
        "d": b"1 a " + b"9" * 5_000,
    }
    server.client.hset(leases, mapping=damaged)
    ends: dict[Any, Any] = {b"\xff": 1, "b": float("inf"), "c": float("-inf")}
    server.client.zadd(nodes, ends)
    table = RedisLeaseTable(server.url, KEYS, 10.0)
    rows = table.renew("a", 1, "{}", [])
    table.close()
    assert rows is not None
    assert set(rows) == {"a", "b", "c", "d"}
    assert [(rows[name].sweeper_n, rows[name].lease_end_ms) for name in "bcd"] == [(0, 0)] * 3


@pytest.mark.parametrize("kept", [b"", b"\xc1", b"\x07", b"\x80", b"\x91" * 5_000])
def test_a_damaged_cached_reply_is_refused(a: Hand, server: Server, kept: bytes) -> None:
    a.apply(login("u", "s1"))
    server.client.hset(KEYS.node(0, "a"), "reply", kept)
    (answer,) = a.store.apply([a.batch([login("u", "s1")], a.n)])
    assert isinstance(answer, Reply)
    assert answer.status is ReplyStatus.UNKNOWN, "the node opens another generation and compares"


@pytest.mark.parametrize("stored", [b"\xff", b"3"])
def test_a_damaged_version_is_a_mismatch(store: RedisStore, server: Server, stored: bytes) -> None:
    server.client.hset(KEYS.meta, "version", stored)
    with pytest.raises(StoreMismatch):
        store.check_meta()


# Numbers that JSON cannot write, but Redis' decoder reads

INFINITE = ["1e999", "-1e999", "nan", "1" + "0" * 400]


def with_number(server: Server, uid: str, name: str, number: str) -> None:
    """Write a number into a user's record, as the text that it is."""
    text = record(server.client, uid)
    where = text["sessions"][""] if name in text["sessions"][""] else text
    where[name] = "NUMBER"
    damaged = json.dumps(text, separators=(",", ":")).replace('"NUMBER"', number)
    server.client.hset(KEYS.online(0), uid, damaged)


@pytest.mark.parametrize("number", INFINITE)
@pytest.mark.parametrize("name", ["since_ms", "login_ms", "idle_timeout_ms"])
def test_an_infinite_number_makes_a_record_absent_and_stops_no_one_else(
    a: Hand, b: Hand, server: Server, name: str, number: str
) -> None:
    b.apply(login("u", "s1"))
    with_number(server, "u", name, number)
    assert a.apply(login("w", "s2"), login("u", "s3", "desk")).status is ReplyStatus.OK
    assert [each["uid"] for each in events(server.client)] == ["u", "w"]
    assert set(record(server.client, "u")["sessions"]) == {"desk"}


@pytest.mark.parametrize("number", INFINITE)
def test_an_infinite_number_in_a_field_that_no_one_reads_is_dropped(
    a: Hand, b: Hand, server: Server, number: str
) -> None:
    b.apply(login("u", "s1"))
    with_number(server, "u", "unknown", number)
    assert a.apply(login("w", "s2"), login("u", "s3", "desk")).status is ReplyStatus.OK
    assert [each["uid"] for each in events(server.client)] == ["u", "w"]
    kept = record(server.client, "u")
    assert ("unknown" in kept, set(kept["sessions"])) == (False, {"", "desk"})


@pytest.mark.parametrize("number", INFINITE)
def test_infinite_numbers_in_a_list_that_no_one_reads_stop_no_one(
    a: Hand, b: Hand, server: Server, number: str
) -> None:
    b.apply(login("u", "s1"))
    with_number(server, "u", "unknown", f"[{','.join([number] * 20)},1]")
    assert a.apply(login("w", "s2"), login("u", "s3", "desk")).status is ReplyStatus.OK
    assert record(server.client, "u")["unknown"] == [None] * 20 + [1]


@pytest.mark.parametrize("number", INFINITE)
def test_an_infinite_number_does_not_stop_a_sweep(a: Hand, b: Hand, server: Server, number: str) -> None:
    a.apply(*(login(f"u{i}", f"s{i}") for i in range(9)))
    with_number(server, "u4", "idle_timeout_ms", number)
    with_number(server, "u5", "arrived_ms", number)
    b.fence("a")
    swept = b.sweep("a")
    assert (swept.ended, swept.wait_ms, swept.done) == (9, 0, True)
    gone = [each["uid"] for each in events(server.client) if each["type"] == "offline"]
    assert sorted(gone) == sorted(f"u{i}" for i in range(9))


@pytest.mark.parametrize("name", ["reply", "trail"])
@pytest.mark.parametrize("kept", [b"", b"\xc1", b"\x07", b"\x80", b"\x91\x01", b"\x91" * 5_000])
def test_a_damaged_reply_or_trail_does_not_stop_an_opening(
    a: Hand, server: Server, name: str, kept: bytes
) -> None:
    a.open(2)
    a.apply(login("u", "s1"))
    server.client.hset(KEYS.node(0, "a"), name, kept)
    opened = a.open(3).opened
    assert opened is not None
    assert opened.batch_history[0].counter == Counter("a", 2, 2)


@pytest.mark.parametrize("number", INFINITE)
def test_an_infinite_number_in_an_inbox_does_not_stop_notices(
    a: Hand, b: Hand, server: Server, number: str
) -> None:
    a.apply(login("u", "s1"))
    server.client.hset(KEYS.node(0, "a"), mapping={"inbox": f'[{{"n":{number}}}]', "inbox_n": 1})
    b.apply(login("u", "s2"))
    assert [each.session for each in probed(a.store, "a").inbox] == ["s1"]


@pytest.mark.parametrize("kind", ["left", "sessions", "seen", "traces", "holding"])
def test_a_key_of_another_type_doubles_no_event_and_the_repair_completes_the_batch(
    a: Hand, b: Hand, server: Server, kind: str
) -> None:
    a.apply(login("u", "s1"))
    key = {
        "left": KEYS.left(0),
        "sessions": KEYS.sessions(0, "a"),
        "seen": KEYS.seen(0),
        "traces": KEYS.peer_traces(0),
        "holding": KEYS.pending_nodes(0),
    }[kind]
    kept = server.client.dump(key)
    server.client.set(key, "foreign")
    batch = a.batch([login("w", "s2"), end("u", "s1"), hold("v", "s3")], a.n + 1)
    batch = replace(batch, complete=True)
    for _ in range(3):
        (refused,) = a.store.apply([batch])
        assert isinstance(refused, StoreError)
        assert key in str(refused) or kind in {"seen", "holding"}, "a write that is refused names its key"
        assert [each["uid"] for each in events(server.client)] in (["u"], ["u", "w", "u"])
    server.client.delete(key)
    if kept is not None:
        server.client.restore(key, 0, kept)
    assert a.send(batch).status is ReplyStatus.OK
    assert [each["uid"] for each in events(server.client)] == ["u", "w", "u"]


@pytest.mark.parametrize("key", ["events", "online", "seen", "left", "node", "sessions"])
def test_a_value_of_another_type_is_named_with_its_repair(a: Hand, server: Server, key: str) -> None:
    a.apply(login("u", "s1"))
    name = getattr(KEYS, key)(0, *(["a"] if key in {"node", "sessions"} else []))
    server.client.delete(name)
    server.client.set(name, "x")
    batch = a.batch([login("w", "s2"), end("u", "s1")], a.n + 1)
    for _ in range(2):
        (refused,) = a.store.apply([batch])
        assert isinstance(refused, StoreError)
        assert f"redis-cli DEL {name}" in str(refused)


def test_a_value_of_another_type_of_another_node_is_named(a: Hand, b: Hand, server: Server) -> None:
    a.apply(login("u", "s1"))
    name = KEYS.node(0, "a")
    server.client.delete(name)
    server.client.set(name, "x")
    with pytest.raises(StoreError, match=re.escape(f"redis-cli DEL {name}")):
        b.apply(login("u", "s2"))  # whether the other is fenced decides on its notice


@pytest.mark.parametrize("key", ["node", "sessions"])
def test_a_value_of_another_type_of_a_dead_node_is_named(a: Hand, b: Hand, server: Server, key: str) -> None:
    a.apply(login("u", "s1"))
    b.fence("a")
    name = getattr(KEYS, key)(0, "a")
    server.client.delete(name)
    server.client.set(name, "x")
    with pytest.raises(StoreError, match=re.escape(f"redis-cli DEL {name}")):
        b.sweep("a")


def test_an_end_leaves_nothing_in_the_index_where_another_login_has_repaired_the_record(
    a: Hand, b: Hand, server: Server
) -> None:
    a.apply(login("u", "s1"))
    kept: Any = server.client.hget(KEYS.online(0), "u")
    server.client.hset(KEYS.online(0), "u", kept[:60])
    b.apply(login("u", "s2", "desk"))
    a.apply(end("u", "s1"))
    b.apply(end("u", "s2", "desk"))
    b.fence("a")
    assert b.sweep("a").ended == 0
    assert [each["type"] for each in events(server.client)] == ["online", "offline"]
