"""Redis goes away and comes back, with and without its data."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from presence.store.embedded import find_binary
from presence.subscriber import (
    BlockingSubscription,
    Event,
    Gap,
    Snapshot,
    follow_sync,
    snapshot,
    subscribe_sync,
)
from tests.store.servers import Server
from tests.subscriber.streams import Streams, take, uids

KEEPS = pytest.mark.parametrize("keep", [True, False], ids=["with its data", "without its data"])
ALONE_OR_IN_A_GROUP = pytest.mark.parametrize("group", [None, "g"], ids=["alone", "in a group"])
SHARDS = pytest.mark.parametrize("shards", [1, 16])


@pytest.fixture
def redis(keep: bool) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:
        server = Server(find_binary(), Path(folder), keep=keep)
        yield server
        server.close()


def restart(redis: Server, events: BlockingSubscription[Event]) -> None:
    redis.kill()
    for _ in range(3):
        assert events.poll() is None
    redis.start()


@SHARDS
@KEEPS
@ALONE_OR_IN_A_GROUP
def test_events_go_on_and_what_was_lost_is_told(
    redis: Server, keep: bool, group: str | None, shards: int
) -> None:
    streams = Streams(redis.client, shards)
    names = [f"u{n}" for n in range(40)]
    streams.write(*names)
    seen_events: list[Event] = []
    with subscribe_sync(redis.url, group=group, consumer=group, after="0") as events:
        seen = take(events, 40)
        assert sorted(uids(seen)) == sorted(names)
        restart(redis, events)  # the last of them is acknowledged when Redis is back
        if not keep:
            streams.client.hset(streams.keys.meta, mapping={"version": 2, "shards": shards})
        names = [f"v{n}" for n in range(40)]
        streams.write(*names)
        while (event := events.poll()) is not None or len(seen_events) < 40:
            seen_events += [event] if event else []
    gaps = [event for event in seen_events if isinstance(event, Gap)]
    came = sorted(uids([event for event in seen_events if not isinstance(event, Gap)]))
    kept = "kept" if keep else "lost"
    print(f"restart, S = {shards}, data {kept}, {group or 'alone'}: {len(came)} of 40 came, {len(gaps)} gaps")
    assert came == sorted(names)
    assert {gap.shard for gap in gaps} == (
        set() if keep else {event.shard for event in seen} | also(group, shards)
    )


def also(group: str | None, shards: int) -> set[int]:
    """The group is lost in all shards, those without events too."""
    return set(range(shards)) if group else set()


@pytest.mark.parametrize("keep", [True])
def test_a_snapshot_begins_anew_when_another_process_would_give_the_next_page(
    redis: Server, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    everybody = {f"user-{n}" for n in range(2000)}
    record = '{"id":"1-0","since_ms":5,"sessions":{"":{}}}'
    redis.client.hset("presence:{0}:online", mapping=dict.fromkeys(everybody, record))
    read, pages = snapshot.pages, []

    def restarting(*arguments: Any) -> Iterator[dict[bytes, bytes]]:
        for page in read(*arguments):
            pages.append(page)
            if len(pages) == 2:
                redis.kill()
                redis.start()
            yield page

    monkeypatch.setattr(snapshot, "USERS_PER_PAGE", 100)
    with follow_sync(redis.url) as events:
        assert isinstance(next(events), Snapshot)  # it has worked
    monkeypatch.setattr(snapshot, "pages", restarting)
    with follow_sync(redis.url) as events:
        events._retry.succeeded()
        first = next(events)
    assert isinstance(first, Snapshot)
    assert first.online.keys() == everybody
