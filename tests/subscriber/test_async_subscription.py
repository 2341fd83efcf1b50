"""The asynchronous interface: its own thread, which does not delay cancellation or lose an answer."""

import math
import random
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from presence.store.redis_client import Redis, RedisError
from presence.subscriber import Event, follow, group_cursor, subscribe
from presence.subscriber.async_subscription import Subscription
from presence.subscriber.snapshot import Snapshot
from tests.subscriber.streams import Streams, uids
from tests.support.backends import on_both_backends

DEADLINE_S = 10.0


async def take(subscription: Subscription[Event], count: int) -> list[Event]:
    """Enter the loop, take that many events and leave it with the last one not acknowledged."""
    taken: list[Event] = []
    async for event in subscription:
        taken.append(event)
        if len(taken) == count:
            break
    return taken


def connections(client: Redis) -> int:
    peers: Any = client.client_list()
    return len(peers) - 1


def is_blocked(client: Redis) -> bool:
    return any(peer["cmd"] == "xreadgroup" and "b" in peer["flags"] for peer in client.client_list())


async def wait_until_blocked(client: Redis) -> None:
    with anyio.fail_after(DEADLINE_S):
        while not is_blocked(client):  # noqa: ASYNC110 - Redis sends no notification
            await anyio.sleep(0.005)


@on_both_backends()
async def test_a_blocking_read_does_not_delay_cancellation(
    url: str, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_cursor, "BLOCK_MS", 4000)
    took = []
    async with subscribe(url, group="g", consumer="c") as events:
        for _ in range(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take, events, 1)
                await wait_until_blocked(client)
                started = time.monotonic()
                tasks.cancel_scope.cancel()
            took.append(time.monotonic() - started)
            with anyio.fail_after(3.0):  # less than the read blocks
                while connections(client):  # noqa: ASYNC110 - Redis sends no notification
                    await anyio.sleep(0.005)
    print(f"cancelled in a blocking read: {max(took) * 1000:.1f} ms at most")
    assert max(took) < 2.0, "half of the time that the read blocks"


@on_both_backends()
async def test_no_event_is_lost_or_duplicated_by_cancellations(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.create_group()
    names = [f"u{n}" for n in range(100)]
    handled: list[str] = []
    interrupted = 0
    chance = random.Random(3)
    async with subscribe(url, group="g", consumer="c", claim_idle=0.3) as events:
        streams.write(*names)
        with anyio.fail_after(50):
            while len(handled) < len(names):
                # Every fourth has more time: on a busy machine none arrives within 2 ms.
                patience_s = chance.choice([0.0005, 0.001, 0.002, math.inf])
                with anyio.move_on_after(patience_s) as scope:
                    handled += uids([await anext(events)])  # continues: the loop is not entered again
                interrupted += scope.cancelled_caught
    print(f"cancelled {interrupted} times in {len(handled)} events: lost {len(set(names) - set(handled))}")
    assert interrupted, "calls were interrupted"
    assert sorted(handled) == sorted(names)


@on_both_backends()
async def test_an_error_that_leaves_the_loop_is_in_the_dead_letter(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("poison", "b")

    async def fail_once() -> None:
        async with subscribe(url, group="g", consumer="c", max_deliveries=2) as events:
            async for event in events:
                raise LookupError(*uids([event]))

    for _ in range(2):
        with pytest.raises(LookupError, match="poison"):
            await fail_once()
    with pytest.raises(LookupError, match="b"):
        await fail_once()
    (letter,) = streams.dead()
    assert letter["error"] == "LookupError: poison"


@on_both_backends()
async def test_a_batch_of_no_events_is_refused(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("a")
    async with subscribe(url, group="g", consumer="c") as events:
        for most in (0, -1):
            with anyio.fail_after(DEADLINE_S), pytest.raises(ValueError, match="one event at least"):
                await events.batch(most)
        assert uids(await events.batch(1)) == ["a"]


@on_both_backends()
async def test_a_failed_event_is_delivered_again_later(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.create_group()
    streams.write("a", "b")
    taken = []
    async with subscribe(url, group="g", consumer="c", claim_idle=0.1) as events:
        async for event in events:
            taken += uids([event])
            if len(taken) == 1:
                events.nak(event, 0.1, "not now")
            elif len(taken) == 3:
                break
    assert taken == ["a", "b", "a"]


@on_both_backends()
async def test_following_begins_with_a_snapshot(url: str) -> None:
    async with follow(url) as events:
        assert isinstance(await anext(events), Snapshot)


@on_both_backends()
async def test_a_redis_that_never_answered_is_an_immediate_error(tmp_path: Path) -> None:
    with pytest.raises(RedisError):
        await anext(subscribe(f"unix://{tmp_path}/none.sock"))
