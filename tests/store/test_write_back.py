"""A batch reads and writes Redis once for many users; nobody can tell it from one item after the other."""

import pytest

from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.replies import Status
from tests.store.driving import (
    NOW_MS,
    Hand,
    check_alternation,
    end,
    events,
    listen,
    login,
    online_sessions,
    owned,
    register,
    story,
)
from tests.store.driving import record as on_record
from tests.store.servers import Server

KEYS = Keys()
MORE_THAN_A_CALL_TAKES = 1100


@pytest.fixture
def a(store: RedisStore) -> Hand:
    hand = Hand(store, "a")
    hand.open()
    return hand


def test_items_of_one_user_in_a_batch_see_each_other(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1"), end("u", "s1"), login("u", "s2"), login("u", "s3", "phone"), end("u", "s2"))
    assert [kind for kind, _, _ in story(server.client)] == ["online", "offline", "online"]
    assert check_alternation(events(server.client)) == {"u"}
    assert online_sessions(server.client) == {("u", "phone", "s3")} == owned(server.client, "a")
    assert server.client.zscore(KEYS.seen(0), "u") is None


def test_the_last_word_of_a_batch_on_a_user_stands(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1"))
    a.apply(
        end("u", "s1", last_seen_ms=NOW_MS + 5), login("u", "s2"), end("u", "s2", last_seen_ms=NOW_MS + 7)
    )
    assert check_alternation(events(server.client)) == set()
    assert (server.client.hlen(KEYS.online(0)), owned(server.client, "a")) == (0, set())
    assert server.client.zscore(KEYS.seen(0), "u") == NOW_MS + 7


def test_a_batch_larger_than_one_call_takes(a: Hand, server: Server) -> None:
    users = range(MORE_THAN_A_CALL_TAKES)
    a.apply(*(login(f"u{i}", f"s{i}") for i in users))
    assert online_sessions(server.client) == {(f"u{i}", "", f"s{i}") for i in users}
    assert len(owned(server.client, "a")) == MORE_THAN_A_CALL_TAKES
    a.apply(*(end(f"u{i}", f"s{i}", last_seen_ms=NOW_MS + i) for i in users))
    assert check_alternation(events(server.client)) == set()
    assert (server.client.hlen(KEYS.online(0)), owned(server.client, "a")) == (0, set())
    last = MORE_THAN_A_CALL_TAKES - 1
    assert server.client.zscore(KEYS.seen(0), f"u{last}") == NOW_MS + last


@pytest.mark.parametrize("device", ['"', "\\", 'a","b', "é\u2028", "/", "%d", "x" * 64])
def test_any_device_can_stand_in_a_record(a: Hand, server: Server, device: str) -> None:
    a.apply(login("u", "s1", device))
    assert set(on_record(server.client, "u")["sessions"]) == {device}
    assert a.apply(end("u", "s1", device)).status is Status.OK
    assert check_alternation(events(server.client)) == set()
    assert on_record(server.client, "u") is None


def test_a_record_in_another_spelling_is_the_same(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1"))
    text = server.client.hget(KEYS.online(0), "u")
    assert isinstance(text, bytes)
    server.client.hset(KEYS.online(0), "u", text.replace(b":", b": "))
    a.apply(end("u", "another"))
    assert on_record(server.client, "u") is not None
    a.apply(end("u", "s1"))
    assert check_alternation(events(server.client)) == set()


def test_a_first_session_is_on_record_with_every_field(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1", "phone"))
    record = on_record(server.client, "u")
    session = record["sessions"]["phone"]
    assert record["id"] == events(server.client)[0]["id"]
    assert record["since_ms"] == int(events(server.client)[0]["since_ms"])
    assert (session["session"], session["node"], session["generation"]) == ("s1", "a", 1)
    assert session["idle_timeout_ms"] == 30_000
    a.apply(register("u", "s1", "phone"))
    assert on_record(server.client, "u") == record, "a registration of the same session changes nothing"


def test_a_subscriber_to_a_pattern_hears(a: Hand, server: Server) -> None:
    listener = server.client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]  # redis-py's
    listener.psubscribe("presence:*line")
    listener.get_message(timeout=1)
    a.apply(login("u", "s1"), end("u", "s1"))
    heard = [listener.get_message(timeout=1) for _ in range(2)]
    listener.close()
    assert [message["channel"].decode() for message in heard] == [KEYS.online_channel, KEYS.offline_channel]


def test_nothing_is_published_where_nobody_listens(a: Hand, server: Server) -> None:
    def published() -> int:
        stats = server.client.info("commandstats")
        return int(stats.get("cmdstat_publish", {}).get("calls", 0))

    before = published()
    a.apply(login("u", "s1"), end("u", "s1"))
    assert published() == before
    listener = listen(server.client, KEYS.offline_channel)
    a.apply(login("u", "s2"), end("u", "s2"))
    listener.close()
    assert published() == before + 1, "the offline event, and no online event"
