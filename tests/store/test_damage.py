"""Values in Redis that somebody else wrote or broke: they count as absent, and stop nothing."""

from typing import Any

import pytest

from presence.store.batches import StoreError, StoreMismatch
from presence.store.keys import Keys
from presence.store.lease_table import RedisLeaseTable
from presence.store.redis_store import RedisStore
from presence.store.replies import Status
from tests.store.driving import Hand, check_alternation, end, events, login, online_sessions, probed
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
def a(store: RedisStore) -> Hand:
    hand = Hand(store, "a")
    hand.open()
    return hand


@pytest.mark.parametrize("record", DAMAGED_RECORDS)
def test_a_login_replaces_a_damaged_record(a: Hand, server: Server, record: str) -> None:
    server.client.hset(KEYS.online(0), "u", record)
    assert a.apply(login("u", "s1", age_s=3)).status is Status.OK
    assert online_sessions(server.client) == {("u", "", "s1")}


@pytest.mark.parametrize("record", DAMAGED_RECORDS)
def test_an_end_passes_by_a_damaged_record(a: Hand, server: Server, record: str) -> None:
    a.apply(login("u", "s1"))
    server.client.hset(KEYS.online(0), "u", record)
    assert a.apply(end("u", "s1"), login("w", "s2")).status is Status.OK
    assert check_alternation(events(server.client)) == {"u", "w"}


@pytest.mark.parametrize("inbox", DAMAGED_INBOXES)
def test_a_damaged_inbox_does_not_stop_the_probe(a: Hand, server: Server, inbox: str) -> None:
    server.client.hset(KEYS.node(0, "a"), mapping={"inbox": inbox, "inbox_n": 1})
    probe = probed(a.store, "a")
    assert (probe.inbox, probe.inbox_n) == ((), 1)


# What stands where no node would write it


def test_a_field_nobody_knows_does_not_keep_a_sweep_from_its_end(
    a: Hand, store: RedisStore, server: Server
) -> None:
    dead = Hand(store, "dead")
    dead.open()
    dead.apply(login("u", "s1"))
    server.client.hset(KEYS.node(0, "dead"), mapping={"what": "ever", "v ": "garbage", b"\xff": b"\xff"})
    a.fence("dead")
    reply = a.sweep("dead")
    assert (reply.ended, reply.done or a.sweep("dead").done) == (1, True)


def test_a_damaged_field_does_not_stop_a_retirement(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1"))
    server.client.hset(KEYS.node(0, "a"), "w ", "garbage")
    a.open(2)
    reply = a.retire()
    assert (reply.status, reply.ended) == (Status.OK, 1)


@pytest.mark.parametrize(
    "trace", [b"", b"x", b"1", b"1 1", b"-1 0 0", "\u00b2 \u00b2 0".encode(), b"9" * 5_000]
)
def test_a_damaged_trace_is_passed_over(a: Hand, server: Server, trace: bytes) -> None:
    server.client.hset(KEYS.traces(0), mapping={"other": trace, b"\xff": b"1 1 0"})
    others = probed(a.store, "a").others
    assert set(others) <= {"other"}
    assert not any(each.complete or each.fenced for each in others.values()) or trace == b"1 1"


def test_bytes_that_are_no_text_do_not_stop_the_table_of_leases(server: Server) -> None:
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
def test_a_damaged_answer_that_was_kept_is_refused(a: Hand, server: Server, kept: bytes) -> None:
    a.apply(login("u", "s1"))
    server.client.hset(KEYS.node(0, "a"), "reply", kept)
    (answer,) = a.store.apply([a.batch([login("u", "s1")], a.n)])
    assert isinstance(answer, StoreError)


@pytest.mark.parametrize("stored", [b"\xff", b"2"])
def test_a_damaged_version_is_no_ours(store: RedisStore, server: Server, stored: bytes) -> None:
    server.client.hset(KEYS.meta, "version", stored)
    with pytest.raises(StoreMismatch):
        store.check_meta()


def test_a_damaged_number_of_the_inbox_counts_as_none(a: Hand, server: Server) -> None:
    server.client.hset(KEYS.node(0, "a"), "inbox_n", "x")
    assert probed(a.store, "a").inbox_n == 0
