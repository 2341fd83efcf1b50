"""The channel to one server as one shard uses it, from a test of trio."""

from collections.abc import Collection, Sequence

import trio

from presence.common.runtime import LoopCaller
from presence.store.keys import Keys
from presence.store.watch_connection import WatchServers
from presence.watching.channel import ChannelMessage, Replay, ServerChannel, ShardLost
from presence.watching.user_states import EntryId, ShardSnapshot

PATIENCE_S = 10.0


class ShardChannel:
    """Looks for the server of a shard, and uses its channel for that shard alone."""

    def __init__(self, url: str, keys: Keys, shard: int = 0) -> None:
        self._servers = WatchServers(url, keys)
        self._shard = shard
        self.call = LoopCaller().call
        self.channel: ServerChannel

    async def open(self, *, whole: bool = False) -> None:
        found = await self.call(lambda: self._servers.locate([self._shard], anew=True))
        self.channel = self._servers.channel(found[self._shard])
        await self.call(self.channel.open)
        self.channel.join(self._shard, whole=whole)

    async def receive(self) -> list[ChannelMessage]:
        with trio.fail_after(PATIENCE_S):
            return await self.call(self.channel.receive)

    async def hear(self, count: int) -> list[ChannelMessage]:
        """Receive this many messages, and no more."""
        messages: list[ChannelMessage] = []
        while len(messages) < count:
            messages += await self.receive()
        assert len(messages) == count
        return messages

    async def subscribe(self, *uids: str) -> None:
        self.channel.update_subscriptions(uids, ())
        await self.hear(len(uids))

    async def snapshot(self, uids: Sequence[str]) -> ShardSnapshot:
        return await self.call(lambda: self.channel.snapshot(self._shard, uids))

    async def replay(self, after: EntryId, uids: Collection[str]) -> Replay:
        return await self.call(lambda: self.channel.replay(self._shard, after, uids))

    async def check(self) -> EntryId:
        found = (await self.call(lambda: self.channel.check([self._shard])))[self._shard]
        if isinstance(found, ShardLost):
            raise found
        return found

    def close(self) -> None:
        self.channel.close()
