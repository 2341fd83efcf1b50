"""Damaged or foreign values in Redis: they count as absent and do not stop anything."""

import json
from typing import Any

import pytest

from presence.common.errors import StoreError, StoreMismatch
from presence.core.profiles import Profile
from presence.outbox.replies import ReplyStatus
from presence.store.keys import Keys
from presence.store.redis_store import RedisLeaseTable, RedisStore
from tests.store.driving import (
    Hand,
    check_alternation,
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


@pytest.mark.parametrize("text", DAMAGED_RECORDS)
def test_a_login_replaces_a_damaged_record_and_an_end_ignores_it(a: Hand, server: Server, text: str) -> None:
    server.client.hset(KEYS.online(0), "u", text)
    assert a.apply(login("u", "s1", age_s=3)).status is ReplyStatus.OK
    assert online_sessions(server.client) == {("u", "", "s1")}
    server.client.hset(KEYS.online(0), "u", text)
    assert a.apply(end("u", "s1"), login("w", "s2")).status is ReplyStatus.OK
    assert check_alternation(events(server.client)) == {"u", "w"}


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
    server.client.hset(KEYS.pending(0, "a"), "u", '[["desk"], 7, {"x": 1}]')
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
    server.client.hset(KEYS.traces(0), mapping={"other": trace, b"\xff": b"1 1 0"})
    others = probed(a.store, "a").others
    assert set(others) <= {"other"}
    assert not any(each.complete or each.fenced for each in others.values()) or trace == b"1 1"


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
    assert isinstance(answer, StoreError)


@pytest.mark.parametrize("stored", [b"\xff", b"3"])
def test_a_damaged_version_is_a_mismatch(store: RedisStore, server: Server, stored: bytes) -> None:
    server.client.hset(KEYS.meta, "version", stored)
    with pytest.raises(StoreMismatch):
        store.check_meta()
