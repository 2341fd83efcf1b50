"""The control channel on the loop: a cancellation or a lost Redis ends its wait for messages."""

from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from presence.common.errors import StoreUnavailable
from presence.common.runtime import LoopCaller
from presence.outbox.replies import NodeNotice, NodeNoticeKind
from presence.store import control_channel
from presence.store.control_channel import ChangedRooms, ChangedRosters, ControlChannel, ControlMessage
from presence.store.keys import Keys
from presence.store.redis_client import open_client
from presence.store.roster_table import RosterChange, RosterTable
from tests.store.servers import Server
from tests.support.proxy import Proxy

KEYS = Keys()
KICK = '{"type": "kicked", "uid": "u", "device": "", "session": "s", "by": "", "return_allowed": false}'
KICKED = NodeNotice(NodeNoticeKind.KICKED, "u", "", "s")
PATIENCE_S = 10.0


async def test_a_wait_for_messages_is_cancelled_and_begun_again(server: Server) -> None:
    channel, call = ControlChannel(server.url, KEYS), LoopCaller().call
    for node in "ab":
        await call(partial(channel.subscribe, node))
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, channel.next)
                await wait_all_tasks_blocked()
                scope.cancel()
        with pytest.raises(StoreUnavailable):
            await call(channel.next)
    await call(partial(channel.subscribe, "c"))
    assert [server.client.publish(KEYS.control_channel(node), KICK) for node in "abc"] == [0, 0, 1]
    assert await call(channel.next) == [KICKED]
    channel.close()


async def test_a_redis_that_never_answers_is_unavailable(server: Server, folder: Path) -> None:
    with Proxy(str(folder / "redis.sock")) as proxy, trio.fail_after(PATIENCE_S):
        channel = ControlChannel(proxy.url, KEYS, connect=partial(open_client, call_timeout_s=0.1))
        proxy.blackhole()
        with pytest.raises(StoreUnavailable):
            await LoopCaller().call(partial(channel.subscribe, "a"))
        proxy.heal()
        await LoopCaller().call(partial(channel.subscribe, "a"))
        channel.close()


async def test_a_lost_connection_ends_the_wait(server: Server, folder: Path) -> None:
    with Proxy(str(folder / "redis.sock")) as proxy, trio.fail_after(PATIENCE_S):
        channel = ControlChannel(proxy.url, KEYS)
        await LoopCaller().call(partial(channel.subscribe, "a"))
        async with trio.open_nursery() as nursery:

            async def reset() -> None:
                await wait_all_tasks_blocked()
                proxy.reset()

            nursery.start_soon(reset)
            with pytest.raises(StoreUnavailable):
                await LoopCaller().call(channel.next)


async def test_changed_rooms_come_if_the_server_has_rooms(server: Server) -> None:
    call = LoopCaller().call
    for keys in (KEYS, Keys(KEYS.prefix, KEYS.shards, database=3)):
        channel = ControlChannel(server.url, keys, rooms=True)
        await call(partial(channel.subscribe, "a"))
        server.client.publish(keys.room_channel, "lobby game:1")
        server.client.publish(keys.room_channel, b"\xff")
        found: list[ControlMessage] = []
        while len(found) < 2:
            found += await call(channel.next)
        assert found == [ChangedRooms(("lobby", "game:1")), ChangedRooms(("\ufffd",))]
        channel.close()


async def test_changed_rosters_come_over_the_same_connection(server: Server) -> None:
    channel, call = ControlChannel(server.url, KEYS), LoopCaller().call
    await call(partial(channel.subscribe, "a"))
    with closing(RosterTable(server.url, KEYS, 10**6)) as rosters:
        rosters.change([RosterChange("ann", (), ["bob"]), RosterChange("eve", (), ["bob"])])
    server.client.publish(KEYS.control_channel("a"), KICK)
    found: list[ControlMessage] = []
    while len(found) < 2:
        found += await call(channel.next)
    assert found == [ChangedRosters(("ann", "eve")), KICKED]
    channel.close()


async def test_a_server_that_hangs_is_left_and_a_quiet_one_is_not(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_channel, "PING_INTERVAL_S", 0.05)
    monkeypatch.setattr(control_channel, "CALL_TIMEOUT_S", 0.2)
    call = LoopCaller().call
    with Proxy(str(folder / "redis.sock")) as proxy, trio.fail_after(PATIENCE_S):
        channel = ControlChannel(proxy.url, KEYS)
        await call(partial(channel.subscribe, "a"))
        with trio.move_on_after(10 * 0.05 + 0.2) as quiet:
            await call(channel.next)
        assert quiet.cancelled_caught, "it answers, and so is waited for"
        await call(partial(channel.subscribe, "a"))
        server.client.publish(KEYS.control_channel("a"), KICK)
        assert await call(channel.next) == [KICKED]
        proxy.blackhole()
        with pytest.raises(StoreUnavailable):
            await call(channel.next)
        channel.close()


@pytest.mark.timeout(20)
def test_a_channel_that_was_closed_meanwhile_asks_over_no_new_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py reconnects before it sends, and a connection that is subscribed to nothing answers, too."""
    monkeypatch.setattr(control_channel, "PING_INTERVAL_S", 0.05)
    channel = ControlChannel(server.url, KEYS)
    channel.subscribe("a")
    send = channel._connection.send_command

    def closed_before(*words: str, **options: object) -> None:
        if words[0] == "PING":
            channel.close()
        send(*words, **options)

    channel._connection.send_command = closed_before
    with pytest.raises(StoreUnavailable):
        channel.next()
