"""Shards that share a server: one connection for all, and a loss of one that does not concern the others."""

from collections.abc import Container, Sequence

import pytest
import trio
from trio.testing import MockClock

from presence.common.errors import StoreUnavailable
from presence.watching.channel import ChannelMessage, Replay, ShardLost
from presence.watching.server_watch import CHECK_INTERVAL_S
from presence.watching.shard_watch import LINGER_S
from presence.watching.user_states import EntryId
from tests.watching.shard import MemoryChannel, MemoryServers, Shard
from tests.watching.test_watch_service import Node, running, written

RETRY_S = 2.0  # above every pause between two attempts


class SharedChannel(MemoryChannel):
    """The channel of a server with all shards, which refuses some of them."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard)
        self.refused: set[int] = set()
        self.opened = 0
        self.is_held = False  # whether what it sends arrives later
        self.joined: set[int] = set()

    def open(self) -> None:
        super().open()
        self.opened += 1

    def receive(self) -> list[ChannelMessage]:
        return [] if self.is_held else super().receive()

    def close(self) -> None:
        super().close()
        self.joined.clear()

    def join(self, shard: int, *, whole: bool) -> None:
        self.joined.add(shard)

    def leave(self, shard: int) -> None:
        self.joined.remove(shard)

    def check(self, shards: Sequence[int]) -> dict[int, EntryId | ShardLost]:
        found = super().check(shards)
        return {**found, **{each: ShardLost("moved") for each in self.refused.intersection(shards)}}

    def replay(self, shard: int, after: EntryId, uids: Container[str]) -> Replay:
        if shard in self.refused:
            raise ShardLost("moved")
        return super().replay(shard, after, uids)


class SharedNode(Node):
    """A node whose two shards are on one server."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = SharedChannel(self.shard)
        self.servers = MemoryServers(lambda _: self.shared, is_one=True)
        self.use(self.records)

    @property
    def losses(self) -> int:
        return int(self.figures("shards")["losses"])


async def test_all_shards_of_a_server_share_a_connection(autojump_clock: MockClock) -> None:
    node = SharedNode()
    async with running(node):
        _, line = await node.watched("ann", "far-1")
        node.shard.write("ann", "online")
        node.shard.write("far-1", "online")
        await trio.sleep(0.1)
        assert written(line) == [("ann", "online"), ("far-1", "online")]
        assert (node.shared.opened, node.shared.joined) == (1, {0, 1})


async def test_a_refused_shard_comes_back_over_the_same_connection_and_misses_nothing(
    autojump_clock: MockClock,
) -> None:
    node = SharedNode()
    async with running(node):
        _, line = await node.watched("ann", "far-1")
        node.shared.refused = {1}
        await trio.sleep(CHECK_INTERVAL_S + 0.1)
        assert node.losses >= 1
        node.shard.write("far-1", "online")
        node.shard.write("ann", "online")
        await trio.sleep(0.1)
        assert written(line) == [("ann", "online")]
        node.shared.refused = set()
        await trio.sleep(RETRY_S)
        node.shard.write("far-1", "away")
        await trio.sleep(0.1)
        assert written(line) == [("far-1", "online"), ("far-1", "away")]
        assert node.shared.opened == 1


async def test_a_shard_joins_again_only_after_all_that_was_sent_before(autojump_clock: MockClock) -> None:
    node = SharedNode()
    async with running(node):
        await node.watched("ann", "far-1")
        node.shared.refused = {1}
        await trio.sleep(CHECK_INTERVAL_S - 0.2)
        node.shared.is_held = True
        await trio.sleep(0.3)
        assert node.shared.joined == {0}
        node.shared.refused = set()
        await trio.sleep(RETRY_S)
        assert node.shared.joined == {0}  # confirmations of its former subscriptions may be on their way
        node.shared.is_held = False
        await trio.sleep(0.1)
        assert node.shared.joined == {0, 1}


async def test_a_lost_connection_loses_all_its_shards_and_they_return_together(
    autojump_clock: MockClock,
) -> None:
    node = SharedNode()
    async with running(node):
        _, line = await node.watched("ann", "far-1")
        looks = node.servers.locations
        node.shared.is_up = False
        await trio.sleep(CHECK_INTERVAL_S + 0.1)
        assert node.losses >= 2
        node.shard.write("ann", "online")
        node.shard.write("far-1", "online")
        node.shared.is_up = True
        await trio.sleep(RETRY_S)
        assert sorted(written(line)) == [("ann", "online"), ("far-1", "online")]
        assert (node.servers.locations - looks) * 2 == node.losses


async def test_a_shard_without_users_leaves_and_the_connection_ends_with_the_last(
    autojump_clock: MockClock,
) -> None:
    node = SharedNode()
    async with running(node):
        watcher, _ = await node.watched("ann", "far-1")
        node.watching.left(watcher)
        _, line = await node.watched("ann")
        await trio.sleep(LINGER_S + 1)
        assert (node.shared.is_connected, node.shared.joined) == (True, {0})
        node.shard.write("ann", "online")
        await trio.sleep(0.1)
        assert written(line) == [("ann", "online")]


async def test_a_shard_without_a_server_is_looked_for_again(autojump_clock: MockClock) -> None:
    node = SharedNode()
    node.servers.homeless = {1}
    async with running(node):
        _, line = await node.watched("ann")
        _, far = node.watch("far-1")
        await trio.sleep(1)
        assert not far.packets()
        node.servers.homeless = set()
        await trio.sleep(RETRY_S)
        assert len(far.packets()) == 1
        assert not line.packets()


async def test_a_channel_that_cannot_be_opened_is_opened_later(autojump_clock: MockClock) -> None:
    node = SharedNode()
    node.shared.is_up = False
    async with running(node):
        _, line = node.watch("ann")
        await trio.sleep(1)
        with pytest.raises(StoreUnavailable):
            node.shared.open()
        node.shared.is_up = True
        await trio.sleep(RETRY_S)
        assert len(line.packets()) == 1
