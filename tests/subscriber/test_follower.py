"""Reading from any position, each event once, in order."""

import logging
import time
from collections.abc import Mapping

import pytest

from loadtest.servers import SERVE_NO_STALE_DATA, LocalRedis
from presence.store.redis_client import Redis, RedisError
from presence.subscriber import Online, entries_sync, subscribe_sync
from tests.subscriber.streams import Streams, take, uids
from tests.support.proxy import Proxy


def test_new_events_are_those_after_the_loop_began(url: str, streams: Streams) -> None:
    streams.write("old")
    with subscribe_sync(url) as events:
        assert events.poll() is None
        # No read was waiting when these were written.
        streams.write("a", "b")
        assert uids(take(events, 2)) == ["a", "b"]


def test_long_history_is_read_completely_once_and_merged_by_id(url: str, streams: Streams) -> None:
    names = [f"u{n}" for n in range(3000)]
    streams.write(*names)
    with subscribe_sync(url, after="0") as events:
        assert sorted(uids(take(events, 3000))) == sorted(names)
        assert events.poll() is None


def test_reading_begins_after_the_given_id(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.write("a", "b", "c")
    assert uids(take(subscribe_sync(url, after="2-0"), 1)) == ["c"]


def test_reading_resumes_after_the_last_event_of_each_shard(url: str, streams: Streams) -> None:
    names = [f"u{n}" for n in range(100)]
    streams.write(*names)
    with subscribe_sync(url, after="0") as events:
        first = take(events, 40)
    places = {event.shard: event.id for event in first}
    with subscribe_sync(url, after=places) as events:
        assert uids(first) + uids(take(events, 60)) == names


def test_a_shard_without_a_position_begins_with_all_that_is_kept(url: str, client: Redis) -> None:
    streams = Streams(client, 16)
    names = [f"u{n}" for n in range(100)]
    streams.write(*names)
    with subscribe_sync(url, after={}) as events:
        assert sorted(uids(take(events, 100))) == sorted(names)


@pytest.mark.parametrize(
    ("after", "error", "complaint"),
    [
        ({"0": "1-0"}, TypeError, "after: its keys are numbers of shards, such as 0, not '0'"),
        ({-1: "1-0"}, ValueError, "after: no shard -1"),
        ({0: "1-0", 16: "1-0"}, ValueError, "after: no shard 16, the shards are 0 to 15"),
    ],
    ids=["from JSON", "negative", "too high"],
)
def test_a_position_of_no_shard_is_an_error(
    url: str, client: Redis, after: Mapping[int, str], error: type[Exception], complaint: str
) -> None:
    Streams(client, 16).write("a")
    with pytest.raises(error, match=complaint):
        next(subscribe_sync(url, after=after))


@pytest.mark.parametrize("group", [None, "g"], ids=["alone", "in a group"])
def test_a_prefix_without_a_server_is_logged_once(
    url: str, client: Redis, group: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    Streams(client)
    with (
        caplog.at_level(logging.WARNING, "presence.subscriber"),
        subscribe_sync(url, group=group, consumer=group) as right,
        subscribe_sync(url, group=group, consumer=group, prefix="presense") as wrong,
    ):
        for events in (right, wrong, wrong):
            assert events.poll() is None
    (line,) = caplog.messages
    assert line.startswith("no data below prefix 'presense' at ")


@pytest.mark.parametrize("group", [None, "g"], ids=["alone", "in a group"])
def test_shards_of_a_server_that_starts_later_are_read_from_their_first_entry(
    url: str, client: Redis, group: str | None
) -> None:
    with subscribe_sync(url, group=group, consumer=group) as events:
        assert events.poll() is None
        streams = Streams(client, 3)
        names = [f"u{n}" for n in range(9)]
        streams.write(*names)
        assert uids(take(events, 9)) == names


def test_reading_continues_after_a_failed_call(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.write("a")
    with subscribe_sync(url, after="0") as events:
        assert uids(take(events, 1)) == ["a"]
        client.rename(streams.keys.events(0), "aside")
        client.set(streams.keys.events(0), "no stream")
        with pytest.raises(RedisError):
            next(events)
        client.rename("aside", streams.keys.events(0))
        streams.write("b")
        assert uids(take(events, 1)) == ["b"]


def test_entries_of_unknown_types_are_returned_unchanged(url: str, client: Redis) -> None:
    streams = Streams(client)
    client.xadd(streams.keys.events(0), {"type": "away", "uid": b"\xff"}, id="1-0")
    with entries_sync(url, after="0") as entries:
        entry = next(entries)
    assert (entry.shard, entry.id) == (0, "1-0")
    assert getattr(entry, "fields") == {"type": "away", "uid": r"\xff"}  # noqa: B009 - not a gap


def test_an_invalid_number_of_shards_is_an_error(url: str, client: Redis) -> None:
    client.hset("presence:meta", "shards", "many")
    with pytest.raises(ValueError, match="presence:meta"):
        next(subscribe_sync(url))


def test_a_former_primary_that_has_lost_its_own_primary_is_left() -> None:
    # The connection stays open and serves only reads: nothing else shows that it is the wrong server.
    with (
        LocalRedis(extra=SERVE_NO_STALE_DATA) as old,
        LocalRedis(extra=SERVE_NO_STALE_DATA) as new,
        Proxy(old.path) as name,
        subscribe_sync(name.url) as events,
    ):
        Streams(old.client).write("ann")
        assert events.poll() is None
        name.retarget(new.path)
        old.client.replicaof("127.0.0.1", 1)  # no server is there
        Streams(new.client).write("ann", "bob")
        deadline = time.monotonic() + 10
        while not isinstance(event := events.poll(), Online) or event.uid != "bob":
            assert time.monotonic() < deadline
