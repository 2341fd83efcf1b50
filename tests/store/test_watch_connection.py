"""The channels of watched users on a real server: messages, their order, and losses."""

from collections.abc import AsyncIterator

import msgpack
import pytest
import trio
import trio.testing

from presence.common.errors import StoreError, StoreUnavailable
from presence.common.runtime import LoopCaller
from presence.core.profiles import Profile
from presence.store.keys import Keys
from presence.store.redis_client import open_client
from presence.store.watch_connection import MAX_BYTES_PER_READ, MESSAGES_PER_COUNT, WatchServers
from presence.watching.channel import (
    ChannelMessage,
    Pong,
    ShardChanges,
    ShardJoined,
    ShardLost,
    Subscribed,
    Unsubscribed,
)
from presence.watching.user_states import UserEvent, WatchedState, id_text
from tests.store.driving import NOW_MS, Hand, end, login, update
from tests.store.servers import Server
from tests.support.shard_channel import ShardChannel

KEYS = Keys()


@pytest.fixture
async def channel(server: Server) -> AsyncIterator[ShardChannel]:
    channel = ShardChannel(server.url, KEYS)
    await channel.open()
    yield channel
    channel.close()


def entries(messages: list[ChannelMessage]) -> list[tuple[str, str]]:
    return [(each.uid, each.state.status) for each in messages if isinstance(each, UserEvent)]


async def test_messages_about_a_user_match_the_stream(channel: ShardChannel, a: Hand) -> None:
    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            assert await channel.receive() == [Subscribed("ann")]

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        channel.channel.update_subscriptions(["ann"], [])  # wakes the call that waits
    start = await channel.check()
    a.apply(login("ann", "s1", profile=Profile("away", "{}")), login("cy", "s3"))
    a.apply(login("ann", "s2", "phone"))
    a.apply(update("ann", "s2", "phone", profile=Profile(meta='{"m":2}')))
    a.apply(end("ann", "s2", "phone"), end("ann", "s1"))
    messages = await channel.hear(5)
    assert entries(messages) == [
        ("ann", status) for status in ("away", "online", "online", "away", "offline")
    ]
    first, _, updated, _, offline = [each for each in messages if isinstance(each, UserEvent)]
    assert (updated.state.meta, offline.reason, offline.state.last_seen_ms) == ('{"m":2}', "logout", NOW_MS)
    assert messages[1:] == list((await channel.replay(first.id, ["ann"])).entries)
    assert (await channel.replay((start[0], start[1] + 1), ["ann"])).is_broken, (
        "no entry had been written by then"
    )
    channel.channel.update_subscriptions(["bob"], ["ann"])
    assert await channel.hear(2) == [Unsubscribed("ann"), Subscribed("bob")]
    a.apply(login("ann", "s1"), login("bob", "s2"))
    assert entries(await channel.hear(1)) == [("bob", "online")]


async def test_a_pong_follows_all_published_messages(channel: ShardChannel, a: Hand) -> None:
    await channel.subscribe("ann")
    a.apply(login("ann", "s1"))
    position = await channel.check()
    channel.channel.ping(7)
    entry, pong = await channel.hear(2)
    assert isinstance(entry, UserEvent)
    assert (entry.id, pong) == (position, Pong(7))


async def test_a_ping_is_answered_before_anything_is_subscribed_to(server: Server) -> None:
    (channel,) = [WatchServers(server.url, KEYS).channel(server.url)]
    await LoopCaller().call(channel.open)
    channel.ping(1)
    assert await LoopCaller().call(channel.receive) == [Pong(1)]
    channel.close()


@pytest.mark.parametrize("what", ["kill", "client kill"])
async def test_a_lost_connection_is_reported_and_another_can_be_opened(
    server: Server, channel: ShardChannel, what: str
) -> None:
    await channel.subscribe("ann")
    if what == "kill":
        server.kill()
        for read in (channel.check, channel.receive):
            with pytest.raises(StoreUnavailable):
                await read()
        with pytest.raises(StoreUnavailable):
            await channel.open()
        server.start()
    else:
        server.client.client_kill_filter(_type="pubsub")
    with pytest.raises(StoreUnavailable):
        await channel.receive()
    channel.close()
    with pytest.raises(StoreUnavailable):
        await channel.receive()
    await channel.open()
    channel.channel.update_subscriptions(["bob"], [])
    assert await channel.hear(1) == [Subscribed("bob")]


async def test_messages_come_before_the_loss_that_follows_them(
    server: Server, channel: ShardChannel, a: Hand
) -> None:
    await channel.subscribe("ann")
    a.apply(login("ann", "s1"))
    server.client.ping()  # the writer's answer may leave before the message; that of a later turn does not
    server.kill()
    assert entries(await channel.hear(1)) == [("ann", "online")]
    with pytest.raises(StoreUnavailable):
        await channel.receive()


async def test_a_refusal_of_one_shard_loses_that_shard_only(server: Server, a: Hand) -> None:
    keys = Keys(shards=2)
    channel = WatchServers(server.url, keys).channel(server.url)
    await LoopCaller().call(channel.open)
    server.client.set(keys.events(1), "damaged")
    found = await LoopCaller().call(lambda: channel.check([0, 1]))
    assert (type(found[0]), type(found[1])) == (tuple, ShardLost)
    with pytest.raises(ShardLost):
        await LoopCaller().call(lambda: channel.snapshot(1, ["ann"]))
    await LoopCaller().call(lambda: channel.snapshot(0, ["ann"]))
    channel.close()


async def test_a_replica_is_refused(server: Server, channel: ShardChannel) -> None:
    await channel.check()
    server.client.execute_command("REPLICAOF", "127.0.0.1", "1")  # type: ignore[no-untyped-call]  # redis-py's
    with pytest.raises(StoreUnavailable, match="primary"):
        await channel.check()


async def test_a_server_that_refuses_this_user_is_lost_for_all_shards(
    server: Server, channel: ShardChannel
) -> None:
    server.client.execute_command("ACL", "SETUSER", "default", "-xinfo")  # type: ignore[no-untyped-call]  # redis-py's
    for _ in range(2):
        with pytest.raises(StoreError, match="xinfo"):
            await channel.check()


async def test_a_snapshot_has_all_users_as_of_one_entry(channel: ShardChannel, a: Hand) -> None:
    assert await channel.snapshot(["ann"]) == ({"ann": WatchedState("offline")}, (0, 0))
    a.apply(login("ann", "s1"), login("bob", "s2", profile=Profile("away", "{}")), login("cy", "s3"))
    a.apply(end("cy", "s3", last_seen_ms=NOW_MS + 5))
    states, as_of = await channel.snapshot(["ann", "bob", "cy", "dee"])
    assert {uid: state.status for uid, state in states.items()} == {
        "ann": "online",
        "bob": "away",
        "cy": "offline",
        "dee": "offline",
    }
    assert (states["bob"].meta, states["cy"].last_seen_ms) == ("{}", NOW_MS + 5)
    assert as_of == await channel.check()
    assert states["ann"].id < states["bob"].id < id_text(as_of)


async def test_a_stream_is_read_in_pages(
    channel: ShardChannel, a: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presence.store.watch_reads.REPLAY_PAGE", 2)
    a.apply(login("zoe", "s0"))
    position = await channel.check()
    a.apply(*(login(uid, uid) for uid in ("ann", "bob", "cy", "dee", "eve")))
    found: list[str] = []
    sizes = []
    while True:
        part = await channel.replay(position, ["ann", "cy", "eve"])
        found += [entry.uid for entry in part.entries]
        sizes.append(part.size)
        position = part.position
        if part.is_end:
            break
    assert found == ["ann", "cy", "eve"]
    assert sizes == [2, 2, 1]
    assert position == await channel.check()
    assert (await channel.replay(position, ["ann"])).size == 0


@pytest.mark.parametrize("harm", ["FLUSHALL", f"XTRIM {KEYS.events(0)} MAXLEN 1"])
async def test_a_stream_that_does_not_reach_back_is_reported(
    server: Server, channel: ShardChannel, a: Hand, harm: str
) -> None:
    a.apply(login("ann", "s1"))
    position = await channel.check()
    a.apply(login("bob", "s2"), login("cy", "s3"))
    server.client.execute_command(*harm.split())  # type: ignore[no-untyped-call]  # redis-py's
    assert (await channel.replay(position, ["bob", "cy"])).is_broken


@pytest.mark.parametrize("keys", [Keys("präsenz"), Keys("a:{0}:user:b")])
async def test_any_prefix_is_supported(server: Server, keys: Keys) -> None:
    channel = ShardChannel(server.url, keys)
    await channel.open()
    channel.channel.update_subscriptions(["jürgen"], [])
    assert await channel.hear(1) == [Subscribed("jürgen")]
    with open_client(server.url) as client:
        client.publish(keys.user_channel("jürgen"), '{"id":"1-0","type":"offline","uid":"jürgen","at_ms":1}')
    assert entries(await channel.hear(1)) == [("jürgen", "offline")]
    channel.close()


async def test_all_changes_of_a_shard_arrive_as_messages_of_whole_calls(server: Server) -> None:
    keys = Keys("a:{0}:user:b")
    channel = ShardChannel(server.url, keys)
    await channel.open(whole=True)
    assert await channel.hear(1) == [ShardJoined(0)]
    foreign: list[object] = [
        1,
        ["1-0"],
        ["1-0", "2-0", ["ann"]],
        ["1-0", "x", []],
        ["1-0", 2, []],
        ["1-0", "2-0", [1, b""]],
    ]
    with open_client(server.url) as client:
        for message in (b"", b"\xc1", *map(msgpack.packb, foreign)):
            client.publish(keys.changes_channel(0), message)
        client.publish(keys.changes_channel(0), msgpack.packb(["1-0", "2-0", ["jürgen", b"\x90"]]))
    assert await channel.hear(1) == [ShardChanges(0, (1, 0), (2, 0), [("jürgen", b"\x90")])]
    channel.channel.leave(0)
    channel.channel.join(0, whole=False)
    await channel.subscribe("jürgen")
    assert server.client.pubsub_numsub(keys.changes_channel(0), keys.watchers_channel(0)) == [
        (keys.changes_channel(0).encode(), 0),
        (keys.watchers_channel(0).encode(), 1),
    ]
    channel.close()


async def test_one_read_has_a_bound_in_bytes(server: Server) -> None:
    channel = ShardChannel(server.url, KEYS)
    await channel.open(whole=True)
    await channel.hear(1)
    change = msgpack.packb(["1-0", "2-0", ["ann", b"x" * MAX_BYTES_PER_READ]])
    with open_client(server.url) as client:
        for _ in range(20):
            client.publish(KEYS.changes_channel(0), change)
    lengths: list[int] = []
    while sum(lengths) < 20:
        lengths.append(len(await channel.receive()))
    assert max(lengths) <= MESSAGES_PER_COUNT
    channel.close()
