"""A consumer that stops hands back what it has not handled: undelivered, and before anything newer."""

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
from redis.exceptions import ConnectionError as RedisConnectionError

from presence.store.redis_client import Redis
from presence.store.shard_clients import ShardClients
from presence.subscriber import (
    BlockingSubscription,
    Event,
    Gap,
    Subscription,
    entries,
    subscribe,
    subscribe_sync,
)
from presence.subscriber.group import ConsumerOptions, GroupConsumer
from presence.subscriber.group_cursor import GroupCursor
from presence.subscriber.pending_entries import HANDED_BACK, PendingEntries
from presence.subscriber.redis_connections import RedisConnections
from tests.subscriber.streams import Streams, take, uids
from tests.subscriber.test_group import next_within
from tests.support.backends import on_both_backends

NAMES = [f"u{n}" for n in range(10)]
LATE_S = 3600.0  # what comes only after a claim never comes in these tests


def consumer(url: str, name: str | None = "pod-1", **more: Any) -> BlockingSubscription[Event]:
    return subscribe_sync(url, group="g", consumer=name, **more)


def rest(url: str, name: str | None, count: int, **more: Any) -> list[Event]:
    """Let another consumer take that many events, and acknowledge all."""
    with consumer(url, name, **more) as events:
        taken = [next_within(events) for _ in range(count)]
        assert events.poll() is None
    return taken


@pytest.mark.parametrize("after", ["pod-1", "pod-2", None])
@pytest.mark.parametrize("max_deliveries", [1, 2])
def test_what_was_only_read_ahead_was_never_delivered(
    url: str, streams: Streams, after: str | None, max_deliveries: int
) -> None:
    streams.create_group()
    streams.write(*NAMES)
    with consumer(url, max_deliveries=max_deliveries) as events:
        first, second = take(events, 2)  # the first is acknowledged, the second is not
    seen = rest(url, after, 9 if max_deliveries > 1 else 8, max_deliveries=max_deliveries)
    again = [(event.deliveries, *uids([event])) for event in seen if event.deliveries > 1]
    assert {*uids(seen), *uids([first, second])} == set(NAMES)
    if max_deliveries == 1:
        assert [letter["uid"] for letter in streams.dead()] == uids([second])
        assert again == []
    else:
        assert streams.dead() == []
        assert again == [(2, *uids([second]))]


@pytest.mark.parametrize("after", ["pod-1", "pod-2", None])
def test_older_events_come_before_newer_ones_after_a_stop(url: str, client: Redis, after: str | None) -> None:
    streams = Streams(client)
    streams.create_group()
    for kind in ("online", "offline", "online"):
        streams.write("ann", kind=kind)
    with consumer(url, claim_idle=LATE_S) as events:
        take(events, 1)
    streams.write("ann", kind="offline")
    seen = rest(url, after, 4, claim_idle=LATE_S)
    assert [event.id for event in seen] == ["1-0", "2-0", "3-0", "4-0"]


def test_a_consumer_that_waits_gets_what_is_handed_back_before_what_is_written_then(
    url: str, client: Redis
) -> None:
    streams = Streams(client)
    streams.create_group()
    stopping = consumer(url, "pod-1")
    with consumer(url, "pod-2") as waiting:
        assert waiting.poll() is None
        streams.write("a", "b", "c")
        assert uids([next_within(stopping)]) == ["a"]
        stopping.close()
        streams.write("d")
        assert uids([next_within(waiting) for _ in range(4)]) == ["a", "b", "c", "d"]


def test_a_consumer_that_reads_again_after_a_stop_reports_what_was_trimmed_meanwhile(
    url: str, client: Redis
) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("a", "b", "c")
    events = consumer(url)
    with events:
        take(events, 1)
        client.xdel(streams.keys.events(0), "2-0")
    with events:
        first, gap, last = take(events, 3)
    assert gap == Gap(0, "2-0", "trimmed", dropped=1)
    assert uids([first, last]) == ["a", "c"]


def test_what_is_handed_back_during_a_read_that_waits_comes_before_what_it_returns(
    url: str, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Streams(client)
    streams.create_group()
    stopping = consumer(url, "pod-1", max_deliveries=1)
    read = GroupCursor._read_blocking

    def read_late(*arguments: Any) -> Any:
        monkeypatch.setattr(GroupCursor, "_read_blocking", read)
        stopping.close()
        streams.write("d", "e")
        return read(*arguments)

    streams.write("a", "b", "c")
    assert uids([next_within(stopping)]) == ["a"]
    stopping.ack(next_within(stopping))
    with consumer(url, "pod-2", max_deliveries=1) as waiting:
        monkeypatch.setattr(GroupCursor, "_read_blocking", read_late)
        seen = [next_within(waiting) for _ in range(3)]
    assert [(event.deliveries, *uids([event])) for event in seen] == [(1, "c"), (1, "d"), (1, "e")]


def test_what_was_handed_back_comes_first_although_looking_for_it_broke_off(
    url: str, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object) -> None:
        monkeypatch.undo()
        raise RedisConnectionError("lost")

    streams = Streams(client)
    streams.create_group()
    with consumer(url, "pod-2") as waiting:
        assert waiting.poll() is None
        streams.write("a", "b", "c")
        with consumer(url, "pod-1") as stopping:
            take(stopping, 1)
        streams.write("d")
        monkeypatch.setattr(PendingEntries, "handed_back", lose)
        assert waiting.poll() is None
        assert uids([next_within(waiting) for _ in range(4)]) == ["a", "b", "c", "d"]


def test_what_is_handed_back_wakes_a_consumer_without_anything_new(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.create_group()
    with consumer(url, "pod-2") as waiting:
        assert waiting.poll() is None
        streams.write("a", "b")
        with consumer(url, "pod-1") as stopping:
            take(stopping, 1)
        assert uids([next_within(waiting), next_within(waiting)]) == ["a", "b"]


def test_more_than_a_page_is_handed_back_in_order(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.create_group()
    names = [f"u{n}" for n in range(350)]
    streams.write(*names[:250])
    with consumer(url, prefetch=250) as events:
        take(events, 1)
    streams.write(*names[250:])
    assert uids(rest(url, None, 350, claim_idle=LATE_S)) == names


def test_two_consumers_never_both_get_what_was_handed_back(url: str, streams: Streams) -> None:
    streams.create_group()
    names = [f"u{n}" for n in range(200)]
    streams.write(*names)
    with consumer(url, prefetch=200) as events:
        take(events, 1)
    seen: list[str] = []
    with consumer(url, "pod-2", prefetch=20) as one, consumer(url, "pod-3", prefetch=20) as other:
        while len(seen) < len(names):
            seen += uids([event for each in (one, other) if (event := each.poll())])
    assert sorted(seen) == sorted(names)


def test_an_event_trimmed_after_it_was_read_ahead_is_a_gap_for_the_next(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("a", "b", "c")
    with consumer(url) as events:
        take(events, 1)
        client.xtrim(streams.keys.events(0), maxlen=1, approximate=False)
    assert streams.pending() == 3
    assert uids(rest(url, "pod-1", 2)) == ["trimmed", "c"]


def test_a_consumer_that_died_has_delivered_what_it_handed_out_and_nothing_else(
    url: str, client: Redis
) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("poison", "a", "b")
    dead = consumer(url, max_deliveries=1)
    assert uids([next(dead)]) == ["poison"]
    dead._source.close()
    seen = rest(url, "pod-1", 2, max_deliveries=1)
    assert [(event.deliveries, *uids([event])) for event in seen] == [(1, "a"), (1, "b")]
    (letter,) = streams.dead()
    assert (letter["uid"], letter["deliveries"], letter["consumer"]) == ("poison", "1", "pod-1")


def test_a_consumer_that_dies_between_reading_and_handing_out_has_delivered_nothing(
    url: str, client: Redis
) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("a")
    dead = consumer(url, max_deliveries=1)
    dead._source.fetch()
    dead._source.close()
    assert uids(rest(url, "pod-1", 1, max_deliveries=1)) == ["a"]


async def drain_after_first(events: Subscription[Event], seen: list[str]) -> None:
    async for event in events:
        seen += uids([event])
        events.drain()


@on_both_backends()
async def test_a_drained_loop_ends_with_its_event_acknowledged_and_hands_back_the_others(
    url: str, client: Redis
) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("a", "b", "c")
    seen: list[str] = []
    async with subscribe(url, group="g") as events:
        with anyio.fail_after(10):
            await drain_after_first(events, seen)
        assert client.xpending(streams.keys.events(0), "g")["consumers"] == [
            {"name": HANDED_BACK.encode(), "pending": 2}
        ]
    assert seen == ["a"]
    assert uids(rest(url, None, 2)) == ["b", "c"]


def test_a_drained_loop_that_waits_ends(url: str, streams: Streams) -> None:
    streams.create_group()
    with consumer(url) as events:
        threading.Timer(0.1, events.drain).start()
        assert list(events) == []
        assert events.poll() is None
        assert events.batch(3) == []


def test_what_a_drained_consumer_still_has_can_be_settled(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("a", "b", "c", "d")
    with consumer(url, auto_ack=False) as events:
        a, b, c = events.batch(3)
        events.drain()
        assert events.batch(1) == []
        events.ack(b)
        events.term(c, "never")
    assert uids(rest(url, None, 2)) == [*uids([a]), "d"]
    assert [letter["uid"] for letter in streams.dead()] == ["c"]


@pytest.mark.parametrize("run", [trio.run, anyio.run], ids=["trio", "asyncio"])
def test_a_cancelled_consumer_hands_back(url: str, client: Redis, run: Callable[..., Any]) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("a", "b", "c")
    seen: list[str] = []

    async def read_until_cancelled() -> None:
        async with subscribe(url, group="g", consumer="pod-1", max_deliveries=1) as events:
            async for event in events:
                seen.extend(uids([event]))

    async def cancel() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read_until_cancelled)
            with anyio.fail_after(10):
                while len(seen) < 3:  # noqa: ASYNC110 - the reader rings no bell
                    await anyio.sleep(0.01)
            streams.write("d", "e")
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()

    run(cancel)
    left = {"d", "e"} - set(seen)
    assert uids(rest(url, None, len(left), max_deliveries=1)) == sorted(left)


@on_both_backends()
async def test_a_call_cancelled_when_it_has_found_an_event_does_not_count_as_a_delivery(
    url: str, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("a")
    async with entries(url, group="g", max_deliveries=1) as events:
        source = events._source
        hand_out, is_counted, may_end = source.hand_out, threading.Event(), threading.Event()

        def slow() -> bool:
            done = hand_out()
            is_counted.set()
            may_end.wait(10)
            return done

        monkeypatch.setattr(source, "hand_out", slow)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anext, events)
            with anyio.fail_after(10):
                while not is_counted.is_set():  # noqa: ASYNC110 - it is set in a thread
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        may_end.set()
    (entry,) = rest(url, None, 1, max_deliveries=1)
    assert (uids([entry]), entry.deliveries) == (["a"], 1)


@pytest.mark.parametrize("owns_name", [True, False])
def test_a_consumer_that_has_lost_its_name_hands_nothing_back(
    url: str, client: Redis, owns_name: bool
) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("a")
    options = ConsumerOptions("g", "one name for all")
    source = GroupConsumer(RedisConnections(url), "presence", options, owns_name=lambda: owns_name)
    with closing(source):
        source.fetch()
        source.stop(keeps_handed_out=False)
    name = HANDED_BACK if owns_name else options.consumer
    rows: Any = client.xpending_range(streams.keys.events(0), "g", "-", "+", 10)
    assert [row["consumer"].decode() for row in rows] == [name]


def test_an_event_whose_handing_out_broke_off_does_not_count_as_delivered(
    url: str, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = ShardClients.exchange

    def lose(*arguments: Any) -> Any:
        monkeypatch.undo()
        exchange(*arguments)
        raise RedisConnectionError("the answer is lost")

    streams = Streams(client)
    streams.create_group()
    streams.write("a", "b")
    with consumer(url, max_deliveries=1) as events:
        events._source.fetch()
        monkeypatch.setattr(ShardClients, "exchange", lose)
        with pytest.raises(RedisConnectionError):  # it is the first call
            events.poll()
    seen = rest(url, None, 2, max_deliveries=1)
    assert [(event.deliveries, *uids([event])) for event in seen] == [(1, "a"), (1, "b")]


def test_a_stop_while_redis_is_away_is_only_a_warning(
    url: str, streams: Streams, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RedisConnectionError("it is away")

    streams.create_group()
    streams.write("a")
    with consumer(url) as events:
        next(events)
        monkeypatch.setattr(PendingEntries, "hand_back", fail)
    assert caplog.messages == ["cannot hand back events to the group, others get them later: it is away"]
    assert streams.pending() == 1
