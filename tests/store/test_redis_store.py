"""The store's connections: first contact, refusals of real servers (temporary or not), closing."""

import re
import threading
import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from presence.common.errors import StoreError, StoreMismatch, StoreUnavailable
from presence.outbox.replies import Reply, ReplyStatus
from presence.outbox.steps import NO_ENTRY_ID
from presence.reader import PresenceReader
from presence.store.control_channel import ControlChannel
from presence.store.keys import Keys
from presence.store.redis_client import RedisError
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from tests.store.driving import Hand, brief_events, end, login, probed
from tests.store.servers import Server, is_redis_6
from tests.support.shard_channel import ShardChannel

SHAPE = Shape(Keys(), maxlen=1000, seen_retention_ms=10**13)
PASSWORD = "p@ss:/w%ord?#[]é & more"


def ask(server: Server, *words: str) -> None:
    server.client.execute_command(*words)  # type: ignore[no-untyped-call]  # redis-py's


def answer(hand: Hand) -> Reply | StoreUnavailable | StoreError:
    (answer,) = hand.store.apply([hand.batch([login("u", "s1")], 2)])
    return answer


# First contact


def test_first_contact_writes_version_and_shards_and_other_values_are_a_mismatch(server: Server) -> None:
    store, wide = RedisStore(server.url, SHAPE), RedisStore(server.url, Shape(Keys(shards=16), 1000, 10**13))
    store.check_meta()
    assert server.client.hgetall("presence:meta") == {b"version": b"2", b"shards": b"1"}
    with pytest.raises(StoreMismatch, match=r"has shards 1, this node is set to shards 16"):
        wide.check_meta()
    server.client.hset("presence:meta", "version", "3")
    with pytest.raises(
        StoreMismatch, match=r"has data of version '3', this release knows version 2: use the release"
    ):
        store.check_meta()
    server.client.config_set("requirepass", "hunter3")
    for password, refusal in (
        ("", "Authentication required"),
        (":hunter2@", "invalid username-password pair"),
    ):
        stranger = RedisStore(server.url.replace("unix://", f"unix://{password}"), SHAPE)
        with pytest.raises(StoreError, match=refusal) as caught:
            stranger.check_meta()
        assert "hunter" not in str(caught.value)
    server.kill()
    with pytest.raises(StoreUnavailable):
        store.check_meta()


def test_a_new_shard_gets_its_version_from_the_node_that_opens_it(store: RedisStore, server: Server) -> None:
    store.check_meta([0])
    assert not server.client.exists("presence:{0}:meta")
    assert Hand(store, "a").open().status is ReplyStatus.OK
    assert server.client.hgetall("presence:{0}:meta") == {b"version": b"2"}


@pytest.mark.parametrize("version", ["1", "3"])
def test_a_shard_of_another_version_is_a_mismatch_and_is_not_opened(
    store: RedisStore, server: Server, version: str
) -> None:
    server.client.hset("presence:{0}:meta", "version", version)
    with pytest.raises(StoreMismatch, match=rf"\{{0\}}:meta has data of version '{version}', this release"):
        store.check_meta([0])
    with pytest.raises(StoreError, match=f"has version {version}, not 2"):
        Hand(store, "a").open()
    assert not server.client.exists("presence:{0}:node:a")


@pytest.mark.parametrize("field", ["version", "shards"])
@pytest.mark.parametrize("value", [b"", b"1e999", b"\xff\x1b"])
def test_damaged_metadata_are_refused_with_the_repair(server: Server, field: str, value: bytes) -> None:
    store = RedisStore(server.url, SHAPE)
    store.check_meta()
    server.client.hset("presence:meta", field, value)
    with pytest.raises(StoreMismatch, match=r"is damaged.*redis-cli DEL presence:meta") as caught:
        store.check_meta()
    assert str(caught.value).isprintable()
    ask(server, "DEL", "presence:meta")
    store.check_meta()


def test_the_key_of_another_type_is_named_with_the_repair(server: Server) -> None:
    ask(server, "SET", "presence:meta", "x")
    store = RedisStore(server.url, SHAPE)
    with pytest.raises(StoreError, match="redis-cli DEL presence:meta"):
        store.check_meta()
    with pytest.raises(StoreError, match="redis-cli DEL presence:meta"):
        store.transact("presence:meta", [("HLEN", "presence:meta")])
    with pytest.raises(StoreError, match="redis-cli DEL presence:meta"):
        store.commands("presence:meta", [("XINFO", "GROUPS", "presence:meta")])
    with PresenceReader(server.url) as reader, pytest.raises(RedisError, match="redis-cli DEL presence:meta"):
        reader.states(["ann"])


# The commands that break a server, the code of its refusals, and the command that fixes it.
REFUSALS = {
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
    "a replica": (["REPLICAOF 127.0.0.1 1"], "READONLY|ReadOnly", "REPLICAOF NO ONE"),
    "no memory": (["CONFIG SET maxmemory 1"], "OOM|OutOfMemory", "CONFIG SET maxmemory 0"),
    "a foreign key": (["SET presence:{0}:online x"], "WRONGTYPE", "DEL presence:{0}:online"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refused_batch_is_accepted_when_the_cause_is_gone(a: Hand, server: Server, name: str) -> None:
    harm, code, fix = REFUSALS[name]
    for words in harm:
        ask(server, *words.split())
    got = answer(a)
    assert type(got) is (StoreError if code == "WRONGTYPE" else StoreUnavailable), got
    assert re.search(code, str(got))  # redis-py has classes for some; Redis 6 wraps the code
    ask(server, *fix.split())
    assert isinstance(answer(a), Reply)
    assert len(brief_events(server.client)) <= 1, "a former replica has another replication id"


@pytest.fixture
def as_user(server: Server) -> Iterator[RedisStore]:
    """A store whose user has all permissions and a password full of special characters."""
    ask(server, "ACL", "SETUSER", "some:one", "on", f">{PASSWORD}", "+@all", "~*", "&*")
    store = RedisStore(server.url.replace("unix://", f"unix://some%3Aone:{quote(PASSWORD, safe='')}@"), SHAPE)
    yield store
    store.close()


def test_a_permission_withdrawn_for_reading_doubles_no_event(as_user: RedisStore, server: Server) -> None:
    hand = Hand(as_user, "a")
    hand.open()
    hand.apply(login("u", "s1"))
    ask(server, "ACL", "SETUSER", "some:one", "-smembers")
    batch = hand.batch([login("w", "s2"), end("u", "s1")], hand.n + 1)
    for _ in range(3):
        (refused,) = as_user.apply([batch])
        assert isinstance(refused, StoreError)
        assert brief_events(server.client) == [("online", "u", "login")]
    ask(server, "ACL", "SETUSER", "some:one", "+smembers")
    assert hand.send(batch).status is ReplyStatus.OK
    assert [uid for _, uid, _ in brief_events(server.client)] == ["u", "w", "u"]


@pytest.mark.parametrize(
    "rule", ["-xadd", "-evalsha", "-hdel", "-pubsub", "resetkeys", "resetchannels", "off"]
)
def test_a_missing_permission_refuses_every_batch_until_it_is_granted(
    as_user: RedisStore, server: Server, binary: str, rule: str
) -> None:
    if rule in {"-hdel", "resetchannels"} and is_redis_6(binary):
        pytest.skip("before Redis 7 a script cannot ask what it may do; no call of this batch needs that")
    hand = Hand(as_user, "a")
    hand.open()
    ask(server, "ACL", "SETUSER", "some:one", rule)
    if rule == "off":
        ask(server, "CLIENT", "KILL", "USER", "some:one")
    for _ in range(3):
        got = answer(hand)
        assert type(got) is StoreError, got
        assert brief_events(server.client) == []
    ask(server, "ACL", "SETUSER", "some:one", "on", "+@all", "~*", "&*")
    assert isinstance(answer(hand), Reply)
    assert brief_events(server.client) == [("online", "u", "login")]


async def test_a_channel_without_permission_is_refused(server: Server) -> None:
    ask(server, "ACL", "SETUSER", "deaf", "on", ">secret", "+@all", "~*", "resetchannels")
    url = server.url.replace("unix://", "unix://deaf:secret@")
    with pytest.raises(StoreError, match="NoPermission"):
        ControlChannel(url, Keys()).subscribe("a")
    watch = ShardChannel(url, Keys())
    await watch.open()
    with pytest.raises(StoreError, match="NoPermission"):
        await watch.receive()
    watch.close()


# Later failures


def test_a_killed_server_is_unavailable_and_the_next_call_reconnects(a: Hand, server: Server) -> None:
    server.kill()
    assert isinstance(answer(a), StoreUnavailable)
    server.start()
    assert probed(a.store, "a").last_id == NO_ENTRY_ID


def test_closing_ends_a_call_in_another_thread(a: Hand, server: Server) -> None:
    ask(server, "CLIENT", "PAUSE", "5000")
    threading.Timer(0.1, a.store.close).start()  # real time: the call has to be in progress
    began = time.monotonic()
    assert isinstance(answer(a), StoreUnavailable)
    assert time.monotonic() - began < 1.5
