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
    messages: list[ChannelMessage] = []
    while len(messages) < count:
        messages += channel.receive()
    assert len(messages) == count
    return messages


def entries(messages: list[ChannelMessage]) -> list[tuple[str, str]]:
    return [(each.uid, each.state.status) for each in messages if isinstance(each, UserEvent)]


def receive_in_thread(channel: WatchChannel) -> "queue.Queue[object]":
    """Receive in a thread; return the queue of its results."""
    received: queue.Queue[object] = queue.Queue()

    def listen() -> None:
        try:
            received.put(channel.receive())
        except (StoreUnavailable, StoreError) as error:
            received.put(error)

    threading.Thread(target=listen, daemon=True).start()
    return received


def test_messages_about_a_user_match_the_stream(channel: WatchChannel, a: Hand) -> None:
    received = receive_in_thread(channel)
    channel.update_subscriptions(["ann"], [])
    assert received.get(timeout=PATIENCE_S) == [Subscribed("ann")], (
        "a new subscription wakes the waiting thread"
    )
    start = channel.check()
    a.apply(login("ann", "s1", profile=Profile("away", "{}")), login("cy", "s3"))
    a.apply(login("ann", "s2", "phone"))
    a.apply(update("ann", "s2", "phone", profile=Profile(meta='{"m":2}')))
    a.apply(end("ann", "s2", "phone"), end("ann", "s1"))
    messages = hear(channel, 5)
    assert entries(messages) == [
        ("ann", status) for status in ("away", "online", "online", "away", "offline")
    ]
    first, _, updated, _, offline = [each for each in messages if isinstance(each, UserEvent)]
    assert (updated.state.meta, offline.reason, offline.state.last_seen_ms) == ('{"m":2}', "logout", NOW_MS)
    assert messages[1:] == list(channel.replay(first.id, ["ann"]).entries)
    assert channel.replay((start[0], start[1] + 1), ["ann"]).is_broken, "no entry had been written by then"
    channel.update_subscriptions(["bob"], ["ann"])
    assert hear(channel, 2) == [Unsubscribed("ann"), Subscribed("bob")]
    a.apply(login("ann", "s1"), login("bob", "s2"))
    assert entries(hear(channel, 1)) == [("bob", "online")]


def test_a_pong_follows_all_published_messages(channel: WatchChannel, a: Hand) -> None:
    channel.update_subscriptions(["ann"], [])
    hear(channel, 1)
    a.apply(login("ann", "s1"))
    position = channel.check()
    channel.ping(position)
    entry, pong = hear(channel, 2)
    assert isinstance(entry, UserEvent)
    assert pong == Pong(entry.id) == Pong(position)


@pytest.mark.parametrize("what", ["kill", "client kill", "close"])
def test_a_lost_connection_is_reported_and_another_can_be_opened(
    server: Server, channel: WatchChannel, what: str
) -> None:
    channel.update_subscriptions(["ann"], [])
    hear(channel, 1)
    received = receive_in_thread(channel)
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
    assert isinstance(received.get(timeout=PATIENCE_S), StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        channel.receive()
    channel.open()
    channel.update_subscriptions(["bob"], [])
    assert hear(channel, 1) == [Subscribed("bob")]


def test_a_replica_is_refused(server: Server, channel: WatchChannel) -> None:
    channel.check()
    server.client.execute_command("REPLICAOF", "127.0.0.1", "1")  # type: ignore[no-untyped-call]  # redis-py's
    with pytest.raises(StoreUnavailable, match="primary"):
        channel.check()


def test_a_snapshot_has_all_users_as_of_one_entry(channel: WatchChannel, a: Hand) -> None:
    assert channel.snapshot(["ann"]) == ({"ann": WatchedState("offline")}, (0, 0))
    a.apply(login("ann", "s1"), login("bob", "s2", profile=Profile("away", "{}")), login("cy", "s3"))
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


def test_a_stream_is_read_in_pages(channel: WatchChannel, a: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_stream_that_does_not_reach_back_is_reported(
    server: Server, channel: WatchChannel, a: Hand, harm: str
) -> None:
    a.apply(login("ann", "s1"))
    position = channel.check()
    a.apply(login("bob", "s2"), login("cy", "s3"))
    server.client.execute_command(*harm.split())  # type: ignore[no-untyped-call]  # redis-py's
    assert channel.replay(position, ["bob", "cy"]).is_broken


def test_a_channel_supports_a_prefix_that_is_not_ascii(server: Server) -> None:
    keys = Keys("präsenz")
    channel = WatchChannel(server.url, keys, 0)
    channel.open()
    channel.update_subscriptions(["jürgen"], [])
    assert hear(channel, 1) == [Subscribed("jürgen")]
    with open_client(server.url) as client:
        client.publish(keys.user_channel("jürgen"), '{"id":"1-0","type":"offline","uid":"jürgen","at_ms":1}')
    assert entries(hear(channel, 1)) == [("jürgen", "offline")]
    channel.close()
