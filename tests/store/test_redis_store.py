"""The store's connection: first contact, errors that pass and errors that do not, closing."""

import threading
import time
from collections.abc import Iterator

import pytest

from presence.store.batches import NO_ENTRY_ID, StoreError, StoreMismatch, StoreUnavailable
from presence.store.keys import Keys
from presence.store.packing import Shape
from presence.store.redis_store import RedisStore
from presence.store.replies import Reply
from tests.store.driving import Hand, events, login, probed
from tests.store.servers import Server


def shape(shards: int = 1) -> Shape:
    return Shape(Keys(shards=shards), maxlen=1000, seen_retention_ms=10**13)


@pytest.fixture
def a(store: RedisStore) -> Hand:
    hand = Hand(store, "a")
    hand.open()
    return hand


@pytest.fixture
def wide_store(server: Server) -> Iterator[RedisStore]:
    """A store that is set to 16 shards."""
    store = RedisStore(server.url, shape(16))
    yield store
    store.close()


def answer(hand: Hand) -> Reply | StoreUnavailable | StoreError:
    (answer,) = hand.store.apply([hand.batch([login("u", "s1")], 2)])
    return answer


def test_first_contact_writes_version_and_shards(store: RedisStore, server: Server) -> None:
    store.check_meta()
    assert server.client.hgetall("presence:meta") == {b"version": b"1", b"shards": b"1"}


def test_other_shards_are_a_mismatch_that_names_both(store: RedisStore, wide_store: RedisStore) -> None:
    store.check_meta()
    with pytest.raises(StoreMismatch, match=r"has shards 1, this node is set to shards 16"):
        wide_store.check_meta()


def test_another_version_is_a_mismatch(store: RedisStore, server: Server) -> None:
    server.client.hset("presence:meta", "version", "2")
    with pytest.raises(StoreMismatch, match=r"has version 2, this node is set to version 1"):
        store.check_meta()


def test_nobody_at_the_address_is_unavailable() -> None:
    store = RedisStore("unix:///nonexistent/redis.sock", shape())
    with pytest.raises(StoreUnavailable):
        store.check_meta()


def test_a_wrong_type_does_not_pass(a: Hand, server: Server) -> None:
    server.client.set("presence:{0}:online", "not a hash")
    got = answer(a)
    assert isinstance(got, StoreError)
    assert "WRONGTYPE" in str(got)


def test_a_busy_server_passes(a: Hand, server: Server) -> None:
    server.client.config_set("busy-reply-threshold", 10)
    loop = threading.Thread(target=run_until_killed, args=(server,))
    loop.start()
    time.sleep(0.1)  # real time: the server's own threshold
    got = answer(a)
    server.client.script_kill()
    loop.join()
    assert isinstance(got, StoreUnavailable)
    assert "BUSY" in str(got)


def run_until_killed(server: Server) -> None:
    store = RedisStore(server.url, shape())
    client = store._scripting.client("")
    with pytest.raises(Exception, match="killed"):
        client.eval("while true do end", 0)
    store.close()


def test_a_killed_server_is_unavailable_and_the_next_call_connects_anew(a: Hand, server: Server) -> None:
    server.kill()
    assert isinstance(answer(a), StoreUnavailable)
    server.start()
    assert probed(a.store, "a").last_id == NO_ENTRY_ID


def test_closing_ends_a_call_in_another_thread(a: Hand, server: Server) -> None:
    server.client.execute_command("CLIENT", "PAUSE", 5000)  # type: ignore[no-untyped-call]  # redis-py's
    got: list[object] = []

    def call() -> None:
        got.append(answer(a))

    waiting = threading.Thread(target=call)
    began = time.monotonic()
    waiting.start()
    time.sleep(0.1)  # real time: the call has to be under way
    a.store.close()
    waiting.join()
    assert time.monotonic() - began < 1.5
    assert isinstance(got[0], StoreUnavailable)


def test_flushed_scripts_are_loaded_again(a: Hand, server: Server) -> None:
    server.client.script_flush()
    assert isinstance(answer(a), Reply)
    assert len(events(server.client)) == 1
