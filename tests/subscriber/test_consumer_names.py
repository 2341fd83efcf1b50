"""Names of consumers: made by the library, used by one process at a time, forgotten when they are idle."""

from typing import Any

import pytest

from presence.store.keys import Keys
from presence.store.redis_client import Redis
from presence.store.shard_clients import ShardClients
from presence.subscriber import (
    BlockingSubscription,
    ConsumerInUse,
    Event,
    consumer_names,
    subscribe_sync,
)
from presence.subscriber.consumer_names import forget_idle
from presence.subscriber.redis_connections import Shards
from tests.subscriber.streams import Streams, take, uids
from tests.subscriber.test_group import next_within
from tests.support.waiting import wait_for

LOCK_S = 0.6


@pytest.fixture(autouse=True)
def short_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_names, "NAME_LOCK_S", LOCK_S)
    monkeypatch.setattr("presence.subscriber.consumer_names.NAME_CHECK_S", LOCK_S / 5)


def consumer(url: str, name: str | None = None) -> BlockingSubscription[Event]:
    return subscribe_sync(url, group="g", consumer=name)


def names(client: Redis, streams: Streams) -> set[str]:
    """Return the names of the group's consumers."""
    return {
        each["name"].decode()
        for shard in range(streams.keys.shards)
        for each in client.xinfo_consumers(streams.keys.events(shard), "g")
    }


def locks(client: Redis) -> list[Any]:
    return list(client.scan_iter("presence:*:consumer:*"))


def test_consumers_without_a_name_each_get_one(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.create_group()
    with consumer(url) as one, consumer(url) as other:
        streams.write("a", "b")
        take(one, 1)
        streams.write("c")
        take(other, 1)
        assert len(names(client, streams)) == 2
        assert locks(client) == [], "names made by the library are unique"


def test_a_consumer_that_stops_is_gone_with_all_its_keys(url: str, streams: Streams, client: Redis) -> None:
    streams.create_group()
    streams.write("a")
    for name in ("pod-1", None):
        before = set(client.keys())
        with consumer(url, name) as events:
            while events.poll() is not None:
                pass
        assert names(client, streams) == set()
        assert set(client.keys()) == before


def test_two_live_consumers_of_one_name_are_noticed_by_the_later_one(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.create_group()
    with consumer(url, "pod-1") as first:
        first.poll()
        streams.write("a", "b")
        with consumer(url, "pod-1") as second:

            def is_refused() -> str:
                first.poll()
                try:
                    second.poll()
                except ConsumerInUse as error:
                    return str(error)
                return ""

            said = wait_for(is_refused, 10 * LOCK_S)
        assert said.startswith("consumer pod-1 of group g is used by process ")
        assert said.count(" process ") == 2
        streams.write("c")
        assert uids([next_within(first)]) == ["c"], "it has lost nothing by the other one"


def test_a_consumer_that_crashed_begins_again_immediately_and_keeps_its_name(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("a", "b")
    crashed = consumer(url, "pod-1")
    assert uids([next(crashed)]) == ["a"]
    crashed._source.close()
    (old,) = (client.get(lock) for lock in locks(client))
    with consumer(url, "pod-1") as events:
        assert uids([next(events), next(events)]) == ["a", "b"]

        def is_its_own() -> bool:
            events.poll()
            return [client.get(lock) for lock in locks(client)] not in ([old], [])

        wait_for(is_its_own, 10 * LOCK_S)


class DelayedAnswers:
    """A Redis in which another process holds the lock; each answer is read so many seconds after the call."""

    def __init__(self, *delays_s: float) -> None:
        self.now = 0.0
        self._delays_s = iter(delays_s)

    def at(self, _key: str) -> "DelayedAnswers":
        return self

    def reachable(self, keys: Keys) -> set[int]:
        return {*range(keys.shards)}

    def eval(self, *_arguments: object) -> bytes:
        self.now += next(self._delays_s)
        return b"process 1"


def test_a_name_is_refused_only_if_the_other_process_held_the_lock_for_longer_than_a_dead_one_can() -> None:
    redis: Any = DelayedAnswers(0.0, 5.0, 0.0)  # this process was stopped before it read the second answer
    shards = Shards("presence")
    shards.keys = Keys("presence")
    lock = consumer_names.NameLock(shards, "g", "pod-1", lambda: redis.now)
    lock.check(redis)
    redis.now = LOCK_S * 0.9
    lock.check(redis)
    assert not lock.is_refused, "Redis gave that answer before the lock of a dead process would have expired"
    with pytest.raises(ConsumerInUse, match="pod-1"):
        lock.check(redis)


def test_only_idle_consumers_without_pending_entries_are_forgotten(
    url: str, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("a")
    key = streams.keys.events(0)
    client.xreadgroup("g", "busy", {key: ">"})
    client.xgroup_createconsumer(key, "g", "idle")
    with ShardClients(url) as clients:
        forget_idle(clients, Shards("presence"), "g", [0])
        assert names(client, streams) == {"busy", "idle"}
        monkeypatch.setattr(consumer_names, "IDLE_CONSUMER_KEPT_S", 0.0)
        forget_idle(clients, Shards("presence"), "g", [0])
    assert names(client, streams) == {"busy"}
    assert streams.pending() == 1


def test_a_consumer_forgets_idle_ones_when_it_begins(
    url: str, streams: Streams, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.create_group()
    for shard in range(streams.keys.shards):
        client.xgroup_createconsumer(streams.keys.events(shard), "g", "idle")
    monkeypatch.setattr(consumer_names, "IDLE_CONSUMER_KEPT_S", 0.0)
    with consumer(url) as events:
        events.poll()
        assert "idle" not in names(client, streams)


def test_a_forgotten_consumer_goes_on_reading(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.create_group()
    with consumer(url, "pod-1") as events:
        events.poll()
        client.xgroup_delconsumer(streams.keys.events(0), "g", "pod-1")
        streams.write("a")
        assert uids([next_within(events)]) == ["a"]
