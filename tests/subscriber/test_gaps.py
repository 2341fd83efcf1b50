"""Missing events are reported: trimmed before they were read, or lost by Redis."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from presence.store.redis_client import Redis
from presence.subscriber import (
    BlockingSubscription,
    Event,
    Gap,
    Snapshot,
    follow_sync,
    snapshot,
    subscribe_sync,
)
from presence.subscriber.group_cursor import GroupCursor
from tests.subscriber.streams import Streams, handle, take, uids

NAMES = [f"u{n}" for n in range(100)]
ALONE_OR_IN_A_GROUP = pytest.mark.parametrize("group", [None, "g"], ids=["alone", "in a group"])


@pytest.fixture
def one_shard(client: Redis) -> Streams:
    return Streams(client)


def open_subscription(url: str, group: str | None) -> BlockingSubscription[Event]:
    return subscribe_sync(url, group=group, consumer=group and "c1", after="0", prefetch=10)


@pytest.fixture
def reading(url: str, one_shard: Streams, group: str | None) -> Iterator[BlockingSubscription[Event]]:
    """A subscription that has read and acknowledged a, b and c only."""
    one_shard.write("a", "b", "c")
    with open_subscription(url, group) as events:
        assert uids(handle(events, 3)) == ["a", "b", "c"]
        yield events


def trim(streams: Streams, keep: int) -> None:
    streams.client.xtrim(streams.keys.events(0), maxlen=keep, approximate=False)


@ALONE_OR_IN_A_GROUP
def test_a_gap_by_trimming_precedes_later_events(
    one_shard: Streams, reading: BlockingSubscription[Event]
) -> None:
    one_shard.write(*NAMES)
    trim(one_shard, keep=10)
    gap, *rest = take(reading, 11)
    assert gap == Gap(0, "3-0", "trimmed")
    assert uids(rest) == NAMES[-10:]


@ALONE_OR_IN_A_GROUP
def test_trimming_read_events_is_no_gap(one_shard: Streams, reading: BlockingSubscription[Event]) -> None:
    one_shard.write("d", "e")
    trim(one_shard, keep=3)
    assert uids(take(reading, 2)) == ["d", "e"]


@ALONE_OR_IN_A_GROUP
def test_trimming_everything_when_all_was_read_is_no_gap(
    one_shard: Streams, reading: BlockingSubscription[Event], group: str | None
) -> None:
    trim(one_shard, keep=0)
    assert reading.poll() is None
    one_shard.write("d")
    assert uids(take(reading, 1)) == ["d"]


@ALONE_OR_IN_A_GROUP
def test_an_emptied_redis_is_a_gap_and_then_read_from_its_start(
    one_shard: Streams, reading: BlockingSubscription[Event]
) -> None:
    one_shard.client.flushall()
    one_shard.write("d")
    gap, event = take(reading, 2)
    assert isinstance(gap, Gap)
    assert gap.id == "3-0"
    assert uids([event]) == ["d"]


@ALONE_OR_IN_A_GROUP
def test_an_emptied_redis_with_lower_ids_is_a_gap(
    one_shard: Streams, reading: BlockingSubscription[Event]
) -> None:
    one_shard.client.flushall()
    Streams(one_shard.client).write("x")
    assert take(reading, 1) == [Gap(0, "3-0", "lost_writes")]


@ALONE_OR_IN_A_GROUP
def test_lost_last_writes_are_one_gap(one_shard: Streams, reading: BlockingSubscription[Event]) -> None:
    key = one_shard.keys.events(0)
    saved = one_shard.client.dump(key)
    one_shard.write("lost")
    assert uids(handle(reading, 1)) == ["lost"]
    one_shard.client.restore(key, 0, saved, replace=True)  # type: ignore[arg-type] # it exists
    assert take(reading, 1) == [Gap(0, "4-0", "lost_writes")]
    one_shard.write("d")
    assert uids(take(reading, 1)) == ["d"]


@ALONE_OR_IN_A_GROUP
def test_a_gap_written_by_a_server_is_an_event_in_its_place(
    one_shard: Streams, reading: BlockingSubscription[Event]
) -> None:
    fields = {"v": 1, "type": "gap", "node": "n1", "dropped": 7, "from_ms": 5, "to_ms": 9}
    one_shard.client.xadd(one_shard.keys.events(0), fields, id="3-1")  # type: ignore[arg-type] # invariant
    one_shard.write("d")
    assert handle(reading, 1) == [Gap(0, "3-1", "dropped", 7, 5, 9)]
    assert uids(take(reading, 1)) == ["d"]


def test_resuming_behind_the_trim_is_a_gap(url: str, one_shard: Streams) -> None:
    one_shard.write(*NAMES)
    trim(one_shard, keep=10)
    gap, *rest = take(subscribe_sync(url, after={0: "3-0"}), 11)
    assert gap == Gap(0, "3-0", "trimmed")
    assert uids(rest) == NAMES[-10:]


@ALONE_OR_IN_A_GROUP
def test_beginning_with_all_kept_events_is_no_gap(url: str, one_shard: Streams, group: str | None) -> None:
    one_shard.write(*NAMES)
    trim(one_shard, keep=10)
    with open_subscription(url, group) as events:
        assert uids(take(events, 10)) == NAMES[-10:]


def test_a_group_that_never_read_gets_a_gap_for_trimmed_events(url: str, one_shard: Streams) -> None:
    one_shard.create_group()
    one_shard.write(*NAMES)
    trim(one_shard, keep=10)
    with open_subscription(url, "g") as events:
        assert uids(take(events, 3)) == ["trimmed", *NAMES[90:92]]


def test_a_gap_that_was_not_acknowledged_is_reported_again(url: str, one_shard: Streams) -> None:
    one_shard.write("a", "b")
    with open_subscription(url, "g") as events:
        handle(events, 2)
    one_shard.write(*NAMES)
    trim(one_shard, keep=10)
    for _ in range(2):
        with open_subscription(url, "g") as events:
            assert take(events, 1) == [Gap(0, "2-0", "trimmed")]


def test_trimmed_pending_events_are_one_gap(url: str, one_shard: Streams) -> None:
    one_shard.write(*NAMES)
    with open_subscription(url, "g") as events:
        take(events, 1)
    trim(one_shard, keep=95)
    with open_subscription(url, "g") as events:
        gap, *rest = handle(events, 96)
    assert gap == Gap(0, "1-0", "trimmed", dropped=5)
    assert uids(rest) == NAMES[5:]
    assert one_shard.pending() == 0


# Between two calls: the connection breaks, and the next one reaches the remaining data


class Saved:
    """The data of a Redis at this time."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        keys: Any = client.keys()
        self._values = {key: client.dump(key) for key in keys}

    def restore(self) -> None:
        """Lose all later writes, and every connection, as in a failover."""
        self._client.flushall()
        for key, value in self._values.items():
            self._client.restore(key, 0, value, replace=True)  # type: ignore[arg-type] # it exists
        self._client.client_kill_filter(_type="normal", skipme=True)


def test_a_snapshot_has_nothing_that_was_lost_before_it_was_complete(
    url: str, one_shard: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, online = one_shard.client, one_shard.keys.online(0)
    record = '{"id":"1-0","since_ms":1,"sessions":{"":{"session":"s","node":"n"}}}'
    pages = snapshot.pages

    def lose(*arguments: Any) -> Iterator[dict[bytes, bytes]]:
        """Lose data when the end of the stream is already known."""
        monkeypatch.undo()
        one_shard.write("ann", kind="offline")
        client.hdel(online, "ann")
        yield from pages(*arguments)
        saved.restore()

    one_shard.write("ann")
    client.hset(online, "ann", record)
    with follow_sync(url) as events:
        assert isinstance(events.poll(), Snapshot)
        one_shard.write("bob", "ben")
        client.xdel(one_shard.keys.events(0), "1-0")  # a gap, and so another snapshot
        saved = Saved(client)
        monkeypatch.setattr(snapshot, "pages", lose)
        gap, taken = itertools.islice(events, 2)
    assert isinstance(gap, Gap)
    assert isinstance(taken, Snapshot)
    assert set(taken.online) == {"ann"}, "her offline event is lost"


def test_a_group_gets_a_gap_for_lost_writes_before_it_waits(
    url: str, one_shard: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = GroupCursor.read

    def lose(*arguments: Any) -> Any:
        monkeypatch.undo()
        answer = read(*arguments)
        saved.restore()
        one_shard.write("new")
        return answer

    with open_subscription(url, "g") as events:
        assert events.poll() is None
        one_shard.write("kept")
        assert uids(handle(events, 1)) == ["kept"]
        saved = Saved(one_shard.client)
        one_shard.write("lost")
        assert uids(handle(events, 1)) == ["lost"]
        monkeypatch.setattr(GroupCursor, "read", lose)
        gap, event = take(events, 2)
    assert gap == Gap(0, "2-0", "lost_writes")
    assert uids([event]) == ["new"]
