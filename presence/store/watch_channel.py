"""The channels of the watched users of one shard.

Looks go over another connection to the same server: what is heard and what is seen then have one order, that
of the entry ids.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

from presence.store.batches import StoreUnavailable
from presence.store.client import open_client
from presence.store.keys import Keys
from presence.store.routes import Connect
from presence.store.snapshots import read_last_id, read_replay, read_snapshot
from presence.store.subscription import Subscription
from presence.watching.channel import Confirmed, Heard, Left, Pong, Replay
from presence.watching.states import EntryId, Snapshot, id_of, id_text, read_hint


class WatchChannel:
    """See `presence.watching.channel.Channel`.

    Args:
        url: as `presence.store.address` takes it; nothing is sent yet.
        keys: how channels are called.
        shard: of the users.
        connect: makes the client of one server.
    """

    def __init__(self, url: str, keys: Keys, shard: int, connect: Connect = open_client) -> None:
        self._keys = keys
        self._shard = shard
        self._subscription = Subscription(url, connect)
        self._everybody = keys.watchers_channel(shard).encode()  # what the channels of its users begin with

    def open(self) -> None:
        """See `Channel`."""
        # To everybody's channel, too, or nobody's is looked at.
        key = self._keys.events(self._shard)
        self._subscription.open(lambda routes: routes.client(key), "SUBSCRIBE", self._everybody)

    def hear(self) -> list[Heard]:
        """See `Channel`."""
        heard: list[Heard] = []
        while not heard:
            answers = self._subscription.read(math.inf)
            heard = [found for each in answers if (found := self._read(each)) is not None]
        return heard

    def order(self, ask: Sequence[str], leave: Sequence[str]) -> None:
        """See `Channel`."""
        for command, uids in (("UNSUBSCRIBE", leave), ("SUBSCRIBE", ask)):
            if uids:
                self._subscription.send(command, *map(self._keys.user_channel, uids))

    def ping(self, position: EntryId) -> None:
        """See `Channel`."""
        self._subscription.send("PING", id_text(position))

    def snapshot(self, uids: Sequence[str]) -> Snapshot:
        """See `Channel`."""
        return self._subscription.ask(lambda client: read_snapshot(client, self._keys, self._shard, uids))

    def replay(self, after: EntryId, uids: Collection[str]) -> Replay:
        """See `Channel`."""
        return self._subscription.ask(
            lambda client: read_replay(client, self._keys, self._shard, after, uids)
        )

    def check(self) -> EntryId:
        """See `Channel`."""
        last_id = self._subscription.ask(lambda client: read_last_id(client, self._keys, self._shard))
        if last_id is None:
            self.close()
            raise StoreUnavailable("the server is no primary any more")
        return last_id

    def close(self) -> None:
        """See `Channel`."""
        self._subscription.close()

    def _read(self, answer: Any) -> Heard | None:
        match answer:
            case [b"message", _, text]:
                return read_hint(text)
            case [b"subscribe", channel, _] if channel != self._everybody:
                return Confirmed(channel[len(self._everybody) :].decode())
            case [b"unsubscribe", channel, _]:
                return Left(channel[len(self._everybody) :].decode())
            case [b"pong", position]:
                return Pong(id_of(position.decode()))
            case _:
                return None
