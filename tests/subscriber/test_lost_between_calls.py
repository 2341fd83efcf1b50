"""Writes that Redis loses between two calls: the connection breaks, and the next one reaches what is left."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from presence.store.client import Redis
from presence.subscriber import Gap, Snapshot, follow_sync, subscribe_sync
from tests.subscriber.relay import Relay
from tests.subscriber.streams import Streams, take, uids

RECORD = json.dumps({"id": "1-0", "since_ms": 1, "sessions": {"": {"session": "s", "node": "n"}}})


@pytest.fixture
def relay(url: str) -> Iterator[Relay]:
    with Relay(url) as relay:
        yield relay


class Saved:
    """A Redis as it was at a moment."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        keys: Any = client.keys()
        self._values = {key: client.dump(key) for key in keys}

    def restore(self) -> None:
        """Lose all writes since."""
        self._client.flushall()
        for key, value in self._values.items():
            self._client.restore(key, 0, value, replace=True)  # type: ignore[arg-type] # it exists


def test_a_snapshot_holds_nothing_that_was_lost_before_it_was_complete(client: Redis, relay: Relay) -> None:
    streams = Streams(client)
    online = streams.keys.online(0)

    def leave() -> None:
        streams.write("ann", kind="offline")
        client.hdel(online, "ann")

    streams.write("ann")
    client.hset(online, "ann", RECORD)
    with follow_sync(relay.url) as events:
        assert isinstance(events.poll(), Snapshot)
        streams.write("bob", "ben")
        client.xdel(streams.keys.events(0), "1-0")  # a gap, and so another snapshot
        saved = Saved(client)
        relay.after(b"xinfo", lambda: None)  # the look why that entry is missing
        relay.after(b"xrevrange", leave)  # where the stream ends, before the pages are read
        relay.after(b"hscan", saved.restore, closes=True)
        gap, snapshot = itertools.islice(events, 2)
    assert relay.is_done
    assert isinstance(gap, Gap)
    assert isinstance(snapshot, Snapshot)
    assert set(snapshot.online) == {"ann"}, "her offline event is lost"


def test_a_group_is_told_of_what_was_lost_before_it_waits(client: Redis, relay: Relay) -> None:
    streams = Streams(client)

    def lose() -> None:
        saved.restore()
        streams.write("new")

    with subscribe_sync(relay.url, group="g", consumer="c", after="0") as events:
        assert events.poll() is None
        streams.write("kept")
        assert uids(take(events, 1)) == ["kept"]
        events.acknowledge()
        saved = Saved(client)
        streams.write("lost")
        assert uids(take(events, 1)) == ["lost"]
        events.acknowledge()
        relay.after(b"xinfo", lose, closes=True)  # the look before it waits for what is new
        gap, event = take(events, 2)
    assert relay.is_done
    assert gap == Gap(0, "2-0", "lost_writes")
    assert uids([event]) == ["new"]
