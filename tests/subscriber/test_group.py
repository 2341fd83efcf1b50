"""A consumer group: at least once, acknowledged by the next iteration, claimed from dead consumers."""

import math
import threading
import time
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from presence.store.redis_client import Redis, RedisError
from presence.store.shard_clients import ShardClients
from presence.subscriber import BlockingSubscription, Event, subscribe_sync
from presence.subscriber.events import Entry, Gap
from presence.subscriber.group import ConsumerOptions, GroupConsumer
from presence.subscriber.group_cursor import GroupCursor
from presence.subscriber.pending_entries import PendingEntries
from presence.subscriber.redis_connections import RedisConnections
from tests.subscriber.streams import Streams, handle, take, uids

DEADLINE_S = 10.0


def consumer(url: str, name: str = "c1", **more: object) -> BlockingSubscription[Event]:
    return subscribe_sync(url, group="g", consumer=name, **more)  # type: ignore[arg-type] # of the test's choice


def next_within(subscription: BlockingSubscription[Event]) -> Event:
    deadline = time.monotonic() + DEADLINE_S
    while (event := subscription.poll()) is None:
        assert time.monotonic() < deadline, "no event arrived"
    return event


def test_an_event_is_acknowledged_when_the_next_is_requested(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("a", "b")
    with consumer(url) as events:
        next(events)
        assert streams.pending() == 2, "both were prefetched"
        next(events)
        assert streams.pending() == 1


def test_a_batch_has_all_ready_events_up_to_the_limit_and_is_acknowledged_as_one(
    url: str, client: Redis
) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("a", "b", "c")
    with consumer(url) as events:
        assert uids(events.batch(2)) == ["a", "b"]
        assert streams.pending() == 3, "all were read"
        (last,) = events.batch(100)
        assert uids([last]) == ["c"]
        assert streams.pending() == 1
        events.ack(last)
        events.flush()
        assert streams.pending() == 0


@pytest.mark.parametrize("most", [0, -1])
def test_a_batch_of_no_events_is_refused_and_settles_nothing(url: str, client: Redis, most: int) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("a")
    with consumer(url) as events:
        next(events)
        with pytest.raises(ValueError, match="one event at least"):
            events.batch(most)
        assert streams.pending() == 1


def test_a_batch_waits_for_the_first_event(url: str, streams: Streams) -> None:
    with consumer(url) as events:
        assert events.poll() is None
        writer = threading.Timer(0.2, streams.write, ["a"])  # later than some empty reads
        writer.start()
        assert uids(events.batch(100)) == ["a"]
        writer.join()


def test_a_new_group_begins_with_new_events(url: str, streams: Streams) -> None:
    streams.write("old")
    with consumer(url) as events:
        events.poll()
        streams.write("new")
        assert uids([next(events)]) == ["new"]


def test_events_of_an_abandoned_loop_are_delivered_again(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("a", "b", "c")
    with consumer(url) as events:
        take(events, 1)
        again = take(events, 3)
    assert uids(again) == ["a", "b", "c"]
    assert [event.deliveries for event in again] == [2, 1, 1]


def test_a_consumer_that_returns_under_its_name_resumes_its_own_events(url: str, streams: Streams) -> None:
    streams.create_group()
    names = [f"u{n}" for n in range(250)]
    streams.write(*names)
    with consumer(url, prefetch=250) as events:
        done = uids(take(events, 51))[:50]
    with consumer(url) as events:
        rest = uids(take(events, 200))
    assert not set(done) & set(rest)
    assert sorted(done + rest) == sorted(names)


def test_events_of_a_silent_consumer_are_claimed(url: str, streams: Streams) -> None:
    streams.create_group()
    names = [f"u{n}" for n in range(150)]
    streams.write(*names)
    with consumer(url, "dead", prefetch=150 * 16) as dead:
        next(dead)
        with consumer(url, "alive", claim_idle=0.1) as alive:
            claimed = [next_within(alive) for _ in names]
            alive.ack(claimed[-1])
    assert sorted(uids(claimed)) == sorted(names)
    assert sorted(event.deliveries for event in claimed) == [1] * 149 + [2], "only one was handed out before"
    assert streams.pending() == 0


def test_a_consumer_whose_events_were_claimed_does_not_return_them(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.create_group()
    names = [f"u{n}" for n in range(5)]
    streams.write(*names)
    with (
        consumer(url, "paused", claim_idle=0.3) as paused,
        consumer(url, "other", claim_idle=0.3) as other,
    ):
        first = next(paused)
        others = [next_within(other) for _ in names]
        other.ack(others[-1])
        other.flush()
        assert paused.poll() is None
    assert uids([first]) == names[:1]
    # What was handed out counts as silent later than what was read ahead before that.
    assert sorted(uids(others)) == names
    assert [uid for uid in uids(others) if uid != names[0]] == names[1:]


def test_an_entry_read_ahead_is_renewed_unless_another_has_claimed_it_by_then(
    url: str, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("a", "b", "c", "trimmed")
    key, now = streams.keys.events(0), 0.0
    options = ConsumerOptions("g", "c1", claim_idle_s=60.0)
    with closing(GroupConsumer(RedisConnections(url), "presence", options, clock=lambda: now)) as source:
        source.fetch()
        client.xclaim(key, "g", "c1", 0, ["1-0", "2-0", "3-0"], idle=59_000, justid=True)
        client.xdel(key, "4-0")
        ask = ShardClients.ask

        def claimed_before_the_renewal(access: ShardClients, *arguments: Any, **more: Any) -> Any:
            answer = ask(access, *arguments, **more)
            client.xclaim(key, "g", "other", 59_000, ["2-0"])
            return answer

        monkeypatch.setattr(ShardClients, "ask", claimed_before_the_renewal)
        now = 30.0  # a renewal is due
        source.fetch()
        assert [getattr(source.next(), "id", None) for _ in range(4)] == ["1-0", "3-0", "4-0", None]
    rows: Any = client.xpending_range(key, "g", "1-0", "3-0", 3)
    assert [(row["consumer"], row["time_since_delivered"] < 30_000) for row in rows] == [
        (b"c1", True),
        (b"other", True),
        (b"c1", True),
    ]


def test_entries_of_an_unknown_type_are_skipped_and_acknowledged(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.create_group()
    client.xadd(streams.keys.events(0), {"v": 1, "type": "away", "uid": "u"}, id="0-1")
    streams.write("a")
    with consumer(url) as events:
        assert uids(handle(events, 1)) == ["a"]
    assert streams.pending() == 0


def test_an_entry_that_another_consumer_claims_first_is_left_to_it(
    url: str, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Streams(client)
    streams.create_group()
    key, now = streams.keys.events(0), 0.0
    options = ConsumerOptions("g", "c1", claim_idle_s=10.0)
    with closing(GroupConsumer(RedisConnections(url), "presence", options, clock=lambda: now)) as source:
        source.fetch()
        streams.write("a")
        client.xreadgroup("g", "dead", {key: ">"})
        client.xclaim(key, "g", "dead", 0, ["1-0"], idle=60_000, justid=True)
        ask = ShardClients.ask

        def claimed_before_the_claim(access: ShardClients, *arguments: Any, **more: Any) -> Any:
            if more.get("is_atomic"):  # the claim is; what precedes it has found the entry free
                client.xclaim(key, "g", "other", 59_000, ["1-0"])
            return ask(access, *arguments, **more)

        monkeypatch.setattr(ShardClients, "ask", claimed_before_the_claim)
        now = 60.0  # listing entries that are idle is due
        source.fetch()
        assert source.next() is None
    rows: Any = client.xpending_range(key, "g", "-", "+", 10)
    assert [row["consumer"] for row in rows] == [b"other"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"consumer": "c"},
        {"group": ""},
        {"group": "g", "consumer": ""},
        {"group": "g", "consumer": "handed-back"},
    ]
    + [{"group": "g", name: 0} for name in ("max_deliveries", "claim_idle", "prefetch")]
    + [{"group": "g", "claim_idle": value} for value in (math.nan, math.inf, timedelta(seconds=-1))]
    + [{"group": "g", "after": {0: "1-0"}}, {"group": "g", "after": "yesterday"}, {"after": "1-"}],
)
def test_invalid_arguments_are_refused(url: str, arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"group|above zero|finite|an entry id"):
        subscribe_sync(url, **arguments)  # type: ignore[arg-type] # of the test's choice


def test_a_redis_that_never_answered_is_an_immediate_error() -> None:
    with pytest.raises(RedisError, match="refused"):
        next(consumer("redis://127.0.0.1:1"))


def test_events_of_a_lost_answer_are_delivered_again_immediately_and_in_order(
    url: str, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("a", "b")
    read = GroupCursor.read

    def lose(
        place: GroupCursor, access: ShardClients, name: str, count: int
    ) -> tuple[list[Gap], list[Entry], set[int]]:
        monkeypatch.undo()
        read(place, access, name, count)
        raise RedisConnectionError("the answer is lost")

    with consumer(url, prefetch=2) as events:
        first = next(events)
        assert uids([first]) == ["a"]
        events.nak(first, 60)
        assert uids([next(events)]) == ["b"]
        streams.write("c", "d")
        monkeypatch.setattr(GroupCursor, "read", lose)
        assert uids([next_within(events), next_within(events)]) == ["c", "d"]
        assert events.poll() is None, "the failed event waits"
        assert [letter["uid"] for letter in streams.dead()] == []


@pytest.mark.parametrize("step", ["own", "stale", "renew", "claim"])
def test_a_redis_emptied_during_a_turn_is_a_gap(
    url: str, client: Redis, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("a", "b")
    call = getattr(PendingEntries, step)

    def empty_before(*arguments: Any) -> Any:
        monkeypatch.undo()
        client.flushall()
        return call(*arguments)

    with consumer(url, claim_idle=0.05) as events:
        first = next(events)
        assert uids([first]) == ["a"]
        if step == "claim":
            events.nak(first)
        if step == "own":
            events._source.close()  # an answer may have been lost
        monkeypatch.setattr(PendingEntries, step, empty_before)
        time.sleep(0.03)
        received = [next_within(events)]
        while not isinstance(received[-1], Gap):
            received.append(next_within(events))
        assert received[-1].reason == "lost_writes"
        streams = Streams(client)
        streams.write("c")
        assert uids([next_within(events)]) == ["c"]
