"""The channels of watched users on a real server: what is heard, in what order, and what a loss does."""

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from presence.changes import Profile
from presence.store.batches import StoreError, StoreUnavailable
from presence.store.client import open_client
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.watch_channel import WatchChannel
from presence.watching.channel import Confirmed, Heard, Left, Pong
from presence.watching.states import Entry, State, id_text
from tests.store.driving import NOW_MS, Hand, end, login, update
from tests.store.servers import Server

KEYS = Keys()
PATIENCE_S = 10.0


@pytest.fixture
def channel(server: Server) -> Iterator[WatchChannel]:
    channel = WatchChannel(server.url, KEYS, 0)
    channel.open()
    yield channel
    channel.close()


@pytest.fixture
def node(store: RedisStore) -> Hand:
    hand = Hand(store, "node")
    hand.open()
    return hand


def hear(channel: WatchChannel, count: int) -> list[Heard]:
    heard: list[Heard] = []
    while len(heard) < count:
        heard += channel.hear()
    assert len(heard) == count
    return heard


def entries(heard: list[Heard]) -> list[tuple[str, str]]:
    return [(each.uid, each.state.status) for each in heard if isinstance(each, Entry)]


def waiting(channel: WatchChannel) -> "queue.Queue[object]":
    """Let a thread hear; return where it puts what came."""
    came: queue.Queue[object] = queue.Queue()

    def listen() -> None:
        try:
            came.put(channel.hear())
        except (StoreUnavailable, StoreError) as error:
            came.put(error)

    threading.Thread(target=listen, daemon=True).start()
    return came


def test_what_a_user_does_is_heard(channel: WatchChannel, node: Hand) -> None:
    channel.order(["ann", "bob"], [])
    assert hear(channel, 2) == [Confirmed("ann"), Confirmed("bob")]
    node.apply(login("ann", "s1"), login("cy", "s2"))
    node.apply(update("ann", "s1", code=3, profile=Profile(True, '{"a":1}')))
    node.apply(end("ann", "s1"))
    heard = hear(channel, 3)
    assert entries(heard) == [("ann", "online"), ("ann", "away"), ("ann", "offline")]
    (_, away, offline) = [each for each in heard if isinstance(each, Entry)]
    assert away.state == State("away", NOW_MS, None, id_text(away.id), '{"a":1}')
    assert (away.reason, offline.reason) == ("away", "logout")
    assert offline.state.last_seen_ms == NOW_MS


def test_a_hint_says_what_the_stream_says(channel: WatchChannel, node: Hand) -> None:
    channel.order(["ann"], [])
    hear(channel, 1)
    begun = channel.check()
    node.apply(login("ann", "s1", profile=Profile(True, "{}")))
    node.apply(login("ann", "s2", "phone"))
    node.apply(update("ann", "s2", "phone", profile=Profile(False, '{"m":2}')))
    node.apply(end("ann", "s2", "phone"), end("ann", "s1"))
    heard = hear(channel, 5)
    assert channel.replay((begun[0], begun[1] + 1), ["ann"]).is_broken, "nothing was written by then"
    first = heard[0]
    assert isinstance(first, Entry)
    assert heard[1:] == list(channel.replay(first.id, ["ann"]).entries)


def test_who_is_left_is_heard_no_more(channel: WatchChannel, node: Hand) -> None:
    channel.order(["ann", "bob"], [])
    hear(channel, 2)
    channel.order([], ["ann"])
    assert hear(channel, 1) == [Left("ann")]
    node.apply(login("ann", "s1"), login("bob", "s2"))
    assert entries(hear(channel, 1)) == [("bob", "online")]


def test_all_that_is_there_comes_at_once(channel: WatchChannel, node: Hand) -> None:
    uids = [f"user-{number}" for number in range(200)]
    channel.order(uids, [])
    hear(channel, 200)
    node.apply(*(login(uid, uid) for uid in uids))
    assert len(channel.hear()) > 20


def test_orders_wake_whoever_waits(channel: WatchChannel) -> None:
    came = waiting(channel)
    channel.order(["ann"], [])
    assert came.get(timeout=PATIENCE_S) == [Confirmed("ann")]


def test_a_pong_comes_after_all_that_was_published(channel: WatchChannel, node: Hand) -> None:
    channel.order(["ann"], [])
    hear(channel, 1)
    node.apply(login("ann", "s1"))
    position = channel.check()
    channel.ping(position)
    entry, pong = hear(channel, 2)
    assert isinstance(entry, Entry)
    assert pong == Pong(entry.id) == Pong(position)


def test_whoever_waits_is_told_of_the_close(channel: WatchChannel) -> None:
    came = waiting(channel)
    channel.close()
    assert isinstance(came.get(timeout=PATIENCE_S), StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        channel.check()


@pytest.mark.parametrize("what", ["kill", "client kill"])
def test_a_loss_is_told_and_another_connection_can_be_opened(
    server: Server, channel: WatchChannel, what: str
) -> None:
    channel.order(["ann"], [])
    hear(channel, 1)
    came = waiting(channel)
    if what == "kill":
        server.kill()
        server.start()
    else:
        server.client.client_kill_filter(_type="pubsub")
    assert isinstance(came.get(timeout=PATIENCE_S), StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        channel.hear()
    channel.open()
    channel.order(["bob"], [])
    assert hear(channel, 1) == [Confirmed("bob")]


def test_a_server_that_is_away_is_told(server: Server, channel: WatchChannel) -> None:
    server.kill()
    for call in (channel.open, channel.hear, channel.check):
        with pytest.raises(StoreUnavailable):
            call()


def test_a_replica_is_nobody_to_listen_to(server: Server, channel: WatchChannel) -> None:
    channel.check()
    server.client.execute_command("REPLICAOF", "127.0.0.1", "1")  # type: ignore[no-untyped-call]  # redis-py's
    with pytest.raises(StoreUnavailable, match="primary"):
        channel.check()


def test_a_refused_subscription_is_told(server: Server) -> None:
    server.client.execute_command(  # type: ignore[no-untyped-call]  # redis-py's
        "ACL", "SETUSER", "deaf", "on", "nopass", "+@all", "~*", "resetchannels"
    )
    channel = WatchChannel(server.url.replace("unix://", "unix://deaf:x@"), KEYS, 0)
    channel.open()
    channel.order(["ann"], [])
    with pytest.raises(StoreError):
        channel.hear()
    channel.close()


def test_many_users_in_one_order(channel: WatchChannel) -> None:
    uids = [f"user-{number}" for number in range(5_000)]
    channel.order(uids, [])
    assert hear(channel, 5_000) == [Confirmed(uid) for uid in uids]


def test_a_snapshot_has_everybody_as_of_one_entry(channel: WatchChannel, node: Hand) -> None:
    assert channel.snapshot(["ann"]) == ({"ann": State("offline")}, (0, 0))
    node.apply(login("ann", "s1"), login("bob", "s2", profile=Profile(True, "{}")), login("cy", "s3"))
    node.apply(end("cy", "s3", last_seen_ms=NOW_MS + 5))
    states, as_of = channel.snapshot(["ann", "bob", "cy", "dee"])
    assert {uid: state.status for uid, state in states.items()} == {
        "ann": "online",
        "bob": "away",
        "cy": "offline",
        "dee": "offline",
    }
    assert (states["bob"].meta, states["cy"].last_seen_ms) == ("{}", NOW_MS + 5)
    assert as_of == channel.check()
    assert states["ann"].id < states["bob"].id < id_text(as_of)


def test_a_stream_is_read_in_parts(
    channel: WatchChannel, node: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presence.store.snapshots.REPLAY_PAGE", 2)
    node.apply(login("zoe", "s0"))
    position = channel.check()
    node.apply(*(login(uid, uid) for uid in ("ann", "bob", "cy", "dee", "eve")))
    found: list[str] = []
    sizes = []
    while True:
        part = channel.replay(position, ["ann", "cy", "eve"])
        found += [entry.uid for entry in part.entries]
        sizes.append(part.size)
        position = part.position
        if part.is_end:
            break
    assert found == ["ann", "cy", "eve"]
    assert sizes == [2, 2, 1]
    assert position == channel.check()
    assert channel.replay(position, ["ann"]).size == 0


def lose(server: Server) -> None:
    server.client.flushall()


def trim(server: Server) -> None:
    server.client.xtrim(KEYS.events(0), maxlen=1, approximate=False)


@pytest.mark.parametrize("harm", [trim, lose])
def test_a_stream_that_does_not_reach_back_is_told(
    server: Server, channel: WatchChannel, node: Hand, harm: Callable[[Server], None]
) -> None:
    node.apply(login("ann", "s1"))
    position = channel.check()
    node.apply(login("bob", "s2"), login("cy", "s3"))
    harm(server)
    assert channel.replay(position, ["bob", "cy"]).is_broken


def test_a_channel_hears_a_prefix_that_is_not_ascii(server: Server) -> None:
    keys = Keys("präsenz")
    channel = WatchChannel(server.url, keys, 0)
    channel.open()
    channel.order(["jürgen"], [])
    assert hear(channel, 1) == [Confirmed("jürgen")]
    with open_client(server.url) as client:
        client.publish(keys.user_channel("jürgen"), '{"id":"1-0","type":"offline","uid":"jürgen","at_ms":1}')
    assert entries(hear(channel, 1)) == [("jürgen", "offline")]
    channel.close()
