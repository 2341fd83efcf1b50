"""Events are settled one by one: acknowledged, refused until later, or given up; beside the implicit way."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from presence.store.redis_client import Redis
from presence.subscriber import (
    BlockingSubscription,
    Entry,
    Event,
    Offline,
    Online,
    entries,
    entries_sync,
    follow_sync,
    subscribe,
    subscribe_sync,
)
from presence.subscriber.snapshot import Period, Shown
from tests.subscriber.streams import AT_MS, Streams, handle, take, uids
from tests.subscriber.test_group import next_within
from tests.support.backends import on_both_backends

LATE_S = 3600.0


@pytest.fixture
def shard(client: Redis) -> Streams:
    """One shard, where a group is to read three events."""
    streams = Streams(client)
    streams.create_group()
    streams.write("a", "b", "c")
    return streams


def consumer(url: str, **more: Any) -> BlockingSubscription[Event]:
    return subscribe_sync(url, group="g", **more)


def left(shard: Streams) -> list[str]:
    """Return the ids of pending entries."""
    rows: Any = shard.client.xpending_range(shard.keys.events(0), "g", "-", "+", 100)
    return [row["message_id"].decode() for row in rows]


def test_events_of_a_batch_are_settled_one_by_one(url: str, shard: Streams) -> None:
    with consumer(url) as events:
        a, b, c = events.batch(3)
        events.nak(b, LATE_S)
        events.ack(c)
        events.term(a, "never")
        events.flush()
        assert left(shard) == ["2-0"]
        assert events.poll() is None
        assert left(shard) == ["2-0"], "asking for the next one acknowledges nothing that was refused"
    (letter,) = shard.dead()
    assert (letter["uid"], letter["error"], letter["deliveries"]) == ("a", "never", "1")


def test_what_is_acknowledged_is_so_in_redis_after_a_flush(url: str, shard: Streams) -> None:
    with consumer(url) as events:
        event = next(events)
        events.ack(event)
        events.flush()
        assert left(shard) == ["2-0", "3-0"]


@on_both_backends()
async def test_the_same_methods_are_on_both_faces(url: str, client: Redis) -> None:
    shard = Streams(client)
    shard.create_group()
    shard.write("a", "b", "c", "d")
    async with entries(url, group="g") as events:
        a, b, c = await events.batch(3)
        events.ack(a)
        events.nak(b, timedelta(hours=1), why=LookupError("later"))
        events.term(c, LookupError("never"))
        await events.flush()
        assert left(shard) == ["2-0", "4-0"]
        assert client.hgetall(shard.keys.errors(0, "g")) == {b"2-0": b"LookupError: later"}
        await events.close()
    with entries_sync(url, group="g") as again:
        entry = again.poll()
    assert isinstance(entry, Entry)
    assert (entry.id, entry.fields["uid"]) == ("4-0", "d")


@on_both_backends()
async def test_handlers_that_run_in_parallel_settle_in_any_order(url: str, client: Redis) -> None:
    shard = Streams(client)
    shard.create_group()
    shard.write(*(f"u{n}" for n in range(20)))
    running: list[str] = []

    async def handler(events: Any, event: Any) -> None:
        running.append(event.id)
        while len(running) < 20:  # noqa: ASYNC110 - each waits for the last
            await anyio.sleep(0.005)
        (events.nak if event.id == "7-0" else events.ack)(event)

    with anyio.fail_after(20):
        async with entries(url, group="g", auto_ack=False, prefetch=5) as events:
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(handler, events, await anext(events))
            again = await anext(events)
            assert (again.id, again.deliveries) == ("7-0", 2)
            events.ack(again)
    assert left(shard) == []


def test_threads_settle_while_the_loop_waits(url: str, shard: Streams) -> None:
    with consumer(url, auto_ack=False) as events:
        for event in events.batch(3):
            threading.Timer(0.05, events.ack, [event]).start()
        while left(shard):
            assert events.poll() is None


def test_an_event_that_nobody_settles_comes_again(url: str, shard: Streams) -> None:
    with consumer(url, auto_ack=False, claim_idle=0.2) as events:
        assert len(events.batch(3)) == 3
        again = [next_within(events) for _ in range(3)]
        assert sorted((event.deliveries, *uids([event])) for event in again) == [(2, "a"), (2, "b"), (2, "c")]


def test_an_event_refused_without_a_delay_comes_next(url: str, shard: Streams) -> None:
    with consumer(url, claim_idle=LATE_S) as events:
        a = next(events)
        events.nak(a)
        again = take(events, 3)
    assert [(event.deliveries, *uids([event])) for event in again] == [(2, "a"), (1, "b"), (1, "c")]


def test_an_event_refused_with_a_delay_comes_after_it(url: str, shard: Streams) -> None:
    with consumer(url, claim_idle=LATE_S) as events:
        events.nak(next(events), timedelta(seconds=0.1))
        assert uids([next_within(events) for _ in range(3)]) == ["b", "c", "a"]


def test_a_delay_outlasts_a_stop_within_the_time_of_claims(url: str, shard: Streams) -> None:
    with consumer(url, claim_idle=0.5) as events:
        a, *_others = events.batch(3)
        events.nak(a, 0.3)
        events.drain()
        assert events.poll() is None
    with consumer(url, claim_idle=0.5) as events:
        assert events.poll() is None
        assert uids([next_within(events)]) == ["a"]


def test_an_event_refused_as_often_as_it_may_be_is_a_dead_letter_at_once(url: str, shard: Streams) -> None:
    with consumer(url, max_deliveries=2) as events:
        for _ in range(2):
            events.nak(next(events), why=LookupError("poison"))
        assert uids([next(events)]) == ["b"]
    (letter,) = shard.dead()
    assert (letter["uid"], letter["deliveries"], letter["error"]) == ("a", "2", "LookupError: poison")


def test_what_is_settled_already_is_left_alone(url: str, shard: Streams) -> None:
    with consumer(url) as events:
        a = next(events)
        next(events)
        events.nak(a)
        events.term(a, "never")
        events.ack(a)
        assert uids([next(events)]) == ["c"]
    assert shard.dead() == []


def test_a_gap_found_while_reading_settles_no_event(url: str, shard: Streams) -> None:
    with consumer(url) as events:
        handle(events, 3)
        shard.write("d", "e", "f")
        shard.client.xtrim(shard.keys.events(0), maxlen=1, approximate=False)
        gap, last = events.batch(2)
        assert uids([gap, last]) == ["trimmed", "f"]
        for settle in (events.ack, events.nak, lambda each: events.term(each, "never")):
            settle(gap)
        events.flush()
        assert left(shard) == ["6-0"]


def test_a_gap_of_the_server_is_acknowledged_as_the_entry_it_is(url: str, shard: Streams) -> None:
    fields: dict[Any, Any] = {"v": 1, "type": "gap", "node": "n1", "dropped": 7, "from_ms": 5, "to_ms": 9}
    shard.client.xadd(shard.keys.events(0), fields, id="3-1")
    with consumer(url) as events:
        *_others, gap = events.batch(4)
        events.ack(gap)
        events.flush()
        assert left(shard) == ["1-0", "2-0", "3-0"]


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), timedelta(-1)])
def test_a_wrong_delay_is_refused_and_settles_nothing(url: str, shard: Streams, delay: Any) -> None:
    with consumer(url) as events:
        event = next(events)
        with pytest.raises(ValueError, match=r"delay|duration"):
            events.nak(event, delay)
        events.ack(event)
        events.flush()
    assert left(shard) == ["2-0", "3-0"]


def test_without_a_group_nothing_can_be_refused(url: str, shard: Streams) -> None:
    with subscribe_sync(url, after="0") as events:
        event = next(events)
        events.ack(event)
        events.flush()
        for settle in (events.nak, lambda each: events.term(each, "never")):
            with pytest.raises(ValueError, match="without a group"):
                settle(event)


def test_a_loop_without_a_group_can_be_drained(url: str, shard: Streams) -> None:
    seen = []
    with subscribe_sync(url, after="0") as events:
        for event in events:
            seen += uids([event])
            if len(seen) == 2:
                events.drain()
    assert seen == ["a", "b"]
    with follow_sync(url) as following:
        following.drain()
        assert list(following) == []


@on_both_backends()
async def test_a_number_of_days_is_no_way_to_pass_strings(url: str) -> None:
    with pytest.raises(TypeError):
        subscribe(url, group="g", claim_idle="60")  # type: ignore[arg-type]  # it is the point


def test_times_of_events_are_also_given_as_datetimes(url: str, shard: Streams) -> None:
    shard.write("a", kind="offline")
    with consumer(url) as events:
        came, *_others, left_ = events.batch(4)
    assert isinstance(came, Online)
    assert isinstance(left_, Offline)
    begin = datetime.fromtimestamp(AT_MS / 1000, UTC)
    assert (came.since, came.last_seen) == (begin, begin + timedelta(milliseconds=1))
    assert left_.at == begin + timedelta(milliseconds=2)
    assert Period(AT_MS, "1-0").since == Shown("away", AT_MS).since == begin
