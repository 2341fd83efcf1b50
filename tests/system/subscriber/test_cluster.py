"""Subscribers of a Redis Cluster: shards are on several servers, and no read can wait for all of them."""

import threading
import time
from collections.abc import Iterator

import pytest

from presence.store.shard_clients import ShardClients
from presence.subscriber import follower, group_cursor, subscribe_sync
from tests.subscriber.people import SHARDS
from tests.subscriber.streams import Streams, take, uids
from tests.support.redis_cluster import Cluster

NAMES = [f"u{n}" for n in range(100)]


@pytest.fixture
def url(redis_cluster: Cluster) -> str:
    return redis_cluster.url


@pytest.fixture
def streams(url: str) -> Iterator[Streams]:
    with ShardClients(url) as access:
        yield Streams(access, SHARDS)


def test_history_and_then_new_events_come_once_and_by_id(url: str, streams: Streams) -> None:
    streams.write(*NAMES)
    with subscribe_sync(url, after="0") as events:
        assert uids(take(events, 100)) == NAMES
        assert events.poll() is None
        streams.write("a", "b")
        assert sorted(uids(take(events, 2))) == ["a", "b"]


def test_new_events_of_a_group_end_its_wait(
    url: str, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_cursor, "BLOCK_MS", 10_000)
    streams.create_group()
    with subscribe_sync(url, group="g", consumer="c") as events:
        threading.Timer(0.1, streams.write, "a").start()
        started = time.monotonic()
        assert uids(take(events, 1)) == ["a"]
    assert time.monotonic() - started < 5


def test_what_a_dead_consumer_had_goes_to_another_and_a_poison_is_given_up(
    url: str, streams: Streams
) -> None:
    streams.create_group()
    streams.write(*NAMES[:20])
    subscribe_sync(url, group="g", consumer="dead").poll()
    with subscribe_sync(url, group="g", consumer="c", claim_idle=0.05, max_deliveries=2) as events:
        seen: list[str] = []
        while len(set(seen)) < 20:
            if (event := events.poll()) is not None:
                seen += uids([event])
                if seen[-1] == "u7":
                    events.nak(event, why="poison")
        while streams.pending():
            events.poll()
    assert {*seen} == {*NAMES[:20]}
    (letter,) = streams.dead()
    assert (letter["uid"], letter["error"]) == ("u7", "poison")


def test_closing_from_another_thread_ends_a_wait(
    url: str, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "BLOCK_MS", 10_000)
    streams.write("a")
    events = subscribe_sync(url, after="0")
    assert uids(take(events, 1)) == ["a"]
    threading.Timer(0.1, events.close).start()
    started = time.monotonic()
    assert events.poll() is None
    assert time.monotonic() - started < 5
