"""Data of the present version that servers of an earlier release wrote: read, and gone on with."""

from collections.abc import Iterator

import pytest

from presence.outbox.replies import ReplyStatus
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from presence.store.watch_reads import read_snapshot
from presence.subscriber import Offline, Online, Snapshot, follow_sync, subscribe_sync
from tests.store.driving import Hand, check_alternation, end, events, login, write_former_data
from tests.store.servers import Server

KEYS = Keys(shards=2)
NODES = ("node-594d675e92f4", "node-ddab7ec36386")
PAIRS = [("eve", "phone"), ("eve", "desk"), ("bob", ""), ("gus", ""), ("ida", "")]


@pytest.fixture
def former(server: Server) -> Server:
    write_former_data(server.client)
    return server


@pytest.fixture
def store(former: Server) -> Iterator[RedisStore]:
    store = RedisStore(former.url, Shape(KEYS, maxlen=1000, seen_retention_ms=10**13, device_events=True))
    store.check_meta(range(2))
    yield store
    store.close()


def test_states_and_events_of_an_earlier_release_are_read(former: Server) -> None:
    states = {
        **read_snapshot(former.client, KEYS, 0, ["bob", "eve", "gus", "ida", "fay"], detail=True).states,
        **read_snapshot(former.client, KEYS, 1, ["hal"]).states,
    }
    assert {uid: state.status for uid, state in states.items()} == {
        **{
            "bob": "online",
            "eve": "online",
            "gus": "away",
            "ida": "online",
            "fay": "offline",
            "hal": "offline",
        }
    }
    found = {(uid, each.device) for uid, state in states.items() for each in state.devices or ()}
    assert found == {*PAIRS}
    assert states["ida"].meta == '{"v":1}'
    assert states["fay"].last_seen_ms == 1795805766012
    with follow_sync(former.url) as follower:
        snapshot = next(follower)
        assert isinstance(snapshot, Snapshot)
        assert snapshot.online.keys() == {"bob", "eve", "gus", "ida"}
    with subscribe_sync(former.url, after="0") as entries:
        seen = [each for each in iter(entries.poll, None) if isinstance(each, Online | Offline)]
    assert len(seen) == 8
    assert [(each.uid, each.reason) for each in seen if isinstance(each, Offline)] == [
        ("fay", "logout"),
        ("hal", "closed"),
    ]


def test_users_of_an_earlier_release_go_on_return_and_are_swept(former: Server, store: RedisStore) -> None:
    hand = Hand(store, "c")
    assert hand.open().status is ReplyStatus.OK
    hand.apply(login("bob", "s1"), login("fay", "s2"), login("ida", "s3", "tablet"))
    for node in NODES:
        hand.fence(node)
        assert hand.sweep(node).done
    hand.apply(end("bob", "s1"), end("ida", "s3", "tablet"))
    stream = events(former.client)
    assert check_alternation(stream) == {"fay"}
    ended = {each["uid"]: each["reason"] for each in stream if each["type"] == "offline"}
    assert ended == {
        "fay": "logout",
        "bob": "logout",
        "ida": "logout",
        "gus": "node_down",
        "eve": "node_down",
    }
