"""Refusals of real servers: what passes with time, what waits for an operator, and that both are got over."""

import threading
import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from presence.store.batches import StoreError, StoreUnavailable
from presence.store.control_channel import ControlChannel
from presence.store.keys import Keys
from presence.store.packing import Shape
from presence.store.redis_store import RedisStore
from presence.store.replies import Reply
from tests.store.driving import Hand, login, story
from tests.store.servers import Server

SHAPE = Shape(Keys(), maxlen=1000, seen_retention_ms=10**13)
PASSWORD = "p@ss:/w%ord?#[]é & more"
Answer = Reply | StoreUnavailable | StoreError


@pytest.fixture
def a(store: RedisStore) -> Hand:
    hand = Hand(store, "a")
    hand.open()
    return hand


def ask(server: Server, *words: str) -> None:
    server.client.execute_command(*words)  # type: ignore[no-untyped-call]  # redis-py's


def answer(hand: Hand) -> Answer:
    (answer,) = hand.store.apply([hand.batch([login("u", "s1")], 2)])
    return answer


# What a server is told, the code with which it refuses then, and what mends it.
PASSING = {
    "too few replicas": (
        ["CONFIG SET min-replicas-to-write 1"],
        "NOREPLICAS",
        "CONFIG SET min-replicas-to-write 0",
    ),
    "a replica that has lost its primary": (
        ["CONFIG SET replica-serve-stale-data no", "REPLICAOF 127.0.0.1 1"],
        "MasterDown",
        "REPLICAOF NO ONE",
    ),
    "a replica": (["REPLICAOF 127.0.0.1 1"], "ReadOnly", "REPLICAOF NO ONE"),
    "no memory": (["CONFIG SET maxmemory 1"], "OutOfMemory", "CONFIG SET maxmemory 0"),
}


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_is_taken_when_it_has(a: Hand, server: Server, name: str) -> None:
    harm, code, mend = PASSING[name]
    for words in harm:
        ask(server, *words.split())
    got = answer(a)
    assert isinstance(got, StoreUnavailable), got
    assert code in str(got)
    ask(server, *mend.split())
    assert isinstance(answer(a), Reply)
    assert len(story(server.client)) <= 1, "a replica that is a primary again has another history"


def test_a_server_that_loads_its_data_passes(a: Hand, server: Server) -> None:
    server.client.config_set("key-load-delay", 100)  # microseconds a key
    server.client.config_set("loading-process-events-interval-bytes", 1024)
    ask(server, "DEBUG", "POPULATE", "2000")
    reload = threading.Thread(target=ask, args=(server, "DEBUG", "RELOAD"))
    reload.start()
    time.sleep(0.1)
    got = answer(a)
    reload.join()
    assert isinstance(got, StoreUnavailable), got
    assert "Loading" in str(got)
    assert isinstance(answer(a), Reply)


@pytest.fixture
def as_user(server: Server) -> Iterator[RedisStore]:
    """A store whose user may do everything, and whose password is full of special characters."""
    ask(server, "ACL", "SETUSER", "some:one", "on", f">{PASSWORD}", "+@all", "~*", "&*")
    store = RedisStore(server.url.replace("unix://", f"unix://some%3Aone:{quote(PASSWORD, safe='')}@"), SHAPE)
    yield store
    store.close()


def test_a_user_and_a_password_may_have_any_characters(as_user: RedisStore, server: Server) -> None:
    as_user.check_meta()
    (client,) = [c for c in server.client.client_list() if c["user"] == "some:one"]
    assert client["cmd"] in {"hmget", "hsetnx"}


def test_a_missing_password_is_refused_at_once(server: Server) -> None:
    store = RedisStore(server.url, SHAPE)
    server.client.config_set("requirepass", "hunter2")
    with pytest.raises(StoreError, match="Authentication required"):
        store.check_meta()


def test_a_wrong_password_is_refused_at_once_and_not_shown(server: Server) -> None:
    store = RedisStore(server.url.replace("unix://", "unix://:hunter2@"), SHAPE)
    server.client.config_set("requirepass", "hunter3")
    with pytest.raises(StoreError, match="invalid username-password pair") as caught:
        store.check_meta()
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize("rule", ["-xadd", "-evalsha", "-hdel", "-pubsub", "resetkeys", "resetchannels"])
def test_a_missing_permission_is_refused_and_nothing_is_done_until_it_is_given(
    as_user: RedisStore, server: Server, rule: str
) -> None:
    hand = Hand(as_user, "a")
    hand.open()
    ask(server, "ACL", "SETUSER", "some:one", rule)
    for _ in range(3):
        got = answer(hand)
        assert type(got) is StoreError, got
        assert story(server.client) == []
    ask(server, "ACL", "SETUSER", "some:one", "+@all", "~*", "&*")
    assert isinstance(answer(hand), Reply)
    assert story(server.client) == [("online", "u", "login")]


def test_a_user_who_is_shut_out_is_refused_until_let_in_again(as_user: RedisStore, server: Server) -> None:
    hand = Hand(as_user, "a")
    hand.open()
    ask(server, "ACL", "SETUSER", "some:one", "off")
    ask(server, "CLIENT", "KILL", "USER", "some:one")
    got = answer(hand)
    assert type(got) is StoreError, got
    ask(server, "ACL", "SETUSER", "some:one", "on")
    assert isinstance(answer(hand), Reply)


def test_a_control_channel_that_may_not_be_heard_is_refused(server: Server) -> None:
    ask(server, "ACL", "SETUSER", "deaf", "on", ">secret", "+@all", "~*", "resetchannels")
    channel = ControlChannel(server.url.replace("unix://", "unix://deaf:secret@"), Keys())
    with pytest.raises(StoreError, match="NoPermission"):
        channel.subscribe("a")
