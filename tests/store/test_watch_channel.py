"""The channels of watched users on a real server: messages, their order, and losses."""

import queue
import threading
from collections.abc import Iterator

import pytest

from presence.common.errors import StoreError, StoreUnavailable
from presence.core.profiles import Profile
from presence.store.channels import WatchChannel
from presence.store.client import open_client
from presence.store.keys import Keys
from presence.watching.channel import ChannelMessage, Pong, Subscribed, Unsubscribed
from presence.watching.user_states import UserEvent, WatchedState, id_text
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


def hear(channel: WatchChannel, count: int) -> list[ChannelMessage]:
    heard: list[ChannelMessage] = []
    while len(heard) < count:
        heard += channel.receive()
    assert len(heard) == count
    return heard


def entries(heard: list[ChannelMessage]) -> list[tuple[str, str]]:
    return [(each.uid, each.state.status) for each in heard if isinstance(each, UserEvent)]


def waiting(channel: WatchChannel) -> "queue.Queue[object]":
    """Let a thread hear; return where it puts what came."""
    came: queue.Queue[object] = queue.Queue()

    def listen() -> None:
        try:
            came.put(channel.receive())
        except (StoreUnavailable, StoreError) as error:
            came.put(error)

    threading.Thread(target=listen, daemon=True).start()
    return came


def test_what_a_user_does_is_heard_as_the_stream_says(channel: WatchChannel, a: Hand) -> None:
    came = waiting(channel)
    channel.update_subscriptions(["ann"], [])
    assert came.get(timeout=PATIENCE_S) == [Subscribed("ann")], "an order wakes whoever waits"
    begun = channel.check()
    a.apply(login("ann", "s1", profile=Profile(True, "{}")), login("cy", "s3"))
    a.apply(login("ann", "s2", "phone"))
    a.apply(update("ann", "s2", "phone", profile=Profile(False, '{"m":2}')))
    a.apply(end("ann", "s2", "phone"), end("ann", "s1"))
    heard = hear(channel, 5)
    assert entries(heard) == [("ann", status) for status in ("away", "online", "online", "away", "offline")]
    first, _, updated, _, offline = [each for each in heard if isinstance(each, UserEvent)]
    assert (updated.state.meta, offline.reason, offline.state.last_seen_ms) == ('{"m":2}', "logout", NOW_MS)
    assert heard[1:] == list(channel.replay(first.id, ["ann"]).entries)
    assert channel.replay((begun[0], begun[1] + 1), ["ann"]).is_broken, "nothing was written by then"
    channel.update_subscriptions(["bob"], ["ann"])
    assert hear(channel, 2) == [Unsubscribed("ann"), Subscribed("bob")]
    a.apply(login("ann", "s1"), login("bob", "s2"))
    assert entries(hear(channel, 1)) == [("bob", "online")]


def test_a_pong_comes_after_all_that_was_published(channel: WatchChannel, a: Hand) -> None:
    channel.update_subscriptions(["ann"], [])
    hear(channel, 1)
    a.apply(login("ann", "s1"))
    position = channel.check()
    channel.ping(position)
    entry, pong = hear(channel, 2)
    assert isinstance(entry, UserEvent)
    assert pong == Pong(entry.id) == Pong(position)


@pytest.mark.parametrize("what", ["kill", "client kill", "close"])
def test_a_loss_is_told_and_another_connection_can_be_opened(
    server: Server, channel: WatchChannel, what: str
) -> None:
    channel.update_subscriptions(["ann"], [])
    hear(channel, 1)
    came = waiting(channel)
    if what == "kill":
        server.kill()
        for call in (channel.open, channel.receive, channel.check):
            with pytest.raises(StoreUnavailable):
                call()
        server.start()
    elif what == "close":
        channel.close()
    else:
        server.client.client_kill_filter(_type="pubsub")
    assert isinstance(came.get(timeout=PATIENCE_S), StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        channel.receive()
    channel.open()
    channel.update_subscriptions(["bob"], [])
    assert hear(channel, 1) == [Subscribed("bob")]


def test_a_replica_is_nobody_to_listen_to(server: Server, channel: WatchChannel) -> None:
    channel.check()
    server.client.execute_command("REPLICAOF", "127.0.0.1", "1")  # type: ignore[no-untyped-call]  # redis-py's
    with pytest.raises(StoreUnavailable, match="primary"):
        channel.check()


def test_a_snapshot_has_everybody_as_of_one_entry(channel: WatchChannel, a: Hand) -> None:
    assert channel.snapshot(["ann"]) == ({"ann": WatchedState("offline")}, (0, 0))
    a.apply(login("ann", "s1"), login("bob", "s2", profile=Profile(True, "{}")), login("cy", "s3"))
    a.apply(end("cy", "s3", last_seen_ms=NOW_MS + 5))
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


def test_a_stream_is_read_in_parts(channel: WatchChannel, a: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("presence.store.watch_reads.REPLAY_PAGE", 2)
    a.apply(login("zoe", "s0"))
    position = channel.check()
    a.apply(*(login(uid, uid) for uid in ("ann", "bob", "cy", "dee", "eve")))
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


@pytest.mark.parametrize("harm", ["FLUSHALL", f"XTRIM {KEYS.events(0)} MAXLEN 1"])
def test_a_stream_that_does_not_reach_back_is_told(
    server: Server, channel: WatchChannel, a: Hand, harm: str
) -> None:
    a.apply(login("ann", "s1"))
    position = channel.check()
    a.apply(login("bob", "s2"), login("cy", "s3"))
    server.client.execute_command(*harm.split())  # type: ignore[no-untyped-call]  # redis-py's
    assert channel.replay(position, ["bob", "cy"]).is_broken


def test_a_channel_hears_a_prefix_that_is_not_ascii(server: Server) -> None:
    keys = Keys("präsenz")
    channel = WatchChannel(server.url, keys, 0)
    channel.open()
    channel.update_subscriptions(["jürgen"], [])
    assert hear(channel, 1) == [Subscribed("jürgen")]
    with open_client(server.url) as client:
        client.publish(keys.user_channel("jürgen"), '{"id":"1-0","type":"offline","uid":"jürgen","at_ms":1}')
    assert entries(hear(channel, 1)) == [("jürgen", "offline")]
    channel.close()
