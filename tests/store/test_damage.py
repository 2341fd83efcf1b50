"""Values in Redis that somebody else wrote or broke: they count as absent, and stop nothing."""

import pytest

from presence.store.batches import Status
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from tests.store.driving import Hand, check_alternation, end, events, login, online_sessions
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
    (probe,) = a.store.probe("a", [0])
    assert (probe.inbox, probe.inbox_n) == ((), 1)
