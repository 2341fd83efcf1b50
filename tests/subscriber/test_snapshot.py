"""A snapshot, and the events that follow it."""

import itertools
import json
from typing import Any

import pytest

from presence.store.redis_client import Redis
from presence.subscriber import Gap, Shown, Snapshot, follow_sync
from tests.subscriber.streams import Streams, uids


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"away": True}, Shown("away", 5)),
        ({"meta": '{"v":1}'}, Shown("online", 5, {"v": 1})),
        ({"away": True, "meta": '{"v":1}'}, Shown("away", 5, {"v": 1})),
        ({}, None),
    ],
    ids=["away", "meta", "away and meta", "neither"],
)
def test_a_snapshot_has_the_status_and_meta_of_each_record(
    url: str, client: Redis, fields: dict[str, Any], shown: Shown | None
) -> None:
    session = {"session": "s", "node": "n", "login_ms": 1, **fields}
    record = {"id": "9-0", "since_ms": 5, "sessions": {"": session}}
    client.hset(Streams(client).keys.online(0), "ann", json.dumps(record))
    with follow_sync(url, updates=True) as events:
        snapshot = next(events)
    assert isinstance(snapshot, Snapshot)
    assert snapshot.shown == ({"ann": shown} if shown else {})


def test_no_event_from_before_a_new_snapshot_follows_it(url: str, client: Redis) -> None:
    streams = Streams(client)
    streams.write("seen")
    with follow_sync(url) as events:
        assert isinstance(next(events), Snapshot)
        streams.write("in the snapshot", "also in it")
        client.xdel(streams.keys.events(0), "1-0")
        gap, snapshot = itertools.islice(events, 2)
        assert isinstance(gap, Gap)
        assert isinstance(snapshot, Snapshot)
        streams.write("new")
        assert uids([next(events)]) == ["new"]  # type: ignore[list-item]  # it is no snapshot
