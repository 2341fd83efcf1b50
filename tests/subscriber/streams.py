"""Streams written like a server's, for subscribers to read."""

import itertools
from typing import Any

from presence.protocol import Code
from presence.store.keys import Keys
from presence.store.redis_client import Redis
from presence.store.shard_clients import ShardClients
from presence.subscriber import BlockingSubscription, Event, Gap

AT_MS = 1_700_000_000_000


class Streams:
    """Writes events to the streams of `shards` shards; entry ids are 1-0, 2-0 … over all of them.

    Args:
        redis: the client, or the connections to a cluster.
        shards: the number of shards.
    """

    def __init__(self, redis: Redis | ShardClients, shards: int = 1) -> None:
        self._redis = redis
        self.keys = Keys(shards=shards)
        self._numbers = itertools.count(1)
        self.at(self.keys.meta).hset(self.keys.meta, mapping={"version": 2, "shards": shards})

    @property
    def client(self) -> Redis:
        """The client, if there is one server."""
        return self.at(self.keys.meta)

    def at(self, key: str) -> Redis:
        """Return the client of the server that has the key."""
        return self._redis.at(key) if isinstance(self._redis, ShardClients) else self._redis

    def key_of(self, uid: str) -> str:
        """Return the stream of a user's events."""
        return self.keys.events(self.keys.shard(uid))

    def write(self, *uids: str, kind: str = "online") -> list[str]:
        """Write an event for each user, in one round trip for each shard; return the entry ids."""
        ids = [f"{next(self._numbers)}-0" for _ in uids]
        by_shard: dict[int, list[tuple[str, str]]] = {}
        for uid, entry_id in zip(uids, ids, strict=True):
            by_shard.setdefault(self.keys.shard(uid), []).append((uid, entry_id))
        for shard, entries in by_shard.items():
            key = self.keys.events(shard)
            with self.at(key).pipeline(transaction=False) as pipe:
                for uid, entry_id in entries:
                    pipe.xadd(key, event_fields(uid, kind), id=entry_id)
                pipe.execute()
        return ids

    def create_group(self, group: str = "g") -> None:
        """Create a group that begins here, in every shard."""
        for shard in range(self.keys.shards):
            key = self.keys.events(shard)
            self.at(key).xgroup_create(key, group, "0", mkstream=True)

    def pending(self, group: str = "g") -> int:
        """Return the number of entries that were delivered and not acknowledged."""
        count = 0
        for shard in range(self.keys.shards):
            key = self.keys.events(shard)
            answer: Any = self.at(key).xpending(key, group)
            count += answer["pending"]
        return count

    def dead(self) -> list[dict[str, str]]:
        """Return the dead letters of all shards."""
        letters: list[Any] = []
        for shard in range(self.keys.shards):
            key = self.keys.dead(shard)
            answer: Any = self.at(key).xrange(key)
            letters += answer
        return [{k.decode(): v.decode() for k, v in fields.items()} for _, fields in letters]


def event_fields(uid: str, kind: str = "online") -> dict[Any, Any]:
    """Return the fields that the store's script writes for a transition or a change of state."""
    codes = {"online": Code.LOGIN, "away": Code.AWAY, "update": Code.UPDATED, "rooms": Code.ROOMS}
    code = codes.get(kind, Code.IDLE_TIMEOUT)
    fields = {
        **{"v": 1, "type": kind, "uid": uid, "code": int(code), "reason": code.reason},
        **{"node": "n1", "session": "s1", "device": ""},
        **{"since_ms": AT_MS, "last_seen_ms": AT_MS + 1, "at_ms": AT_MS + 2},
    }
    if kind in {"away", "update"}:
        fields |= {"status": "away", "status_ms": AT_MS + 2, "meta": '{"a":{"$bin":"00"}}'}
    if kind == "rooms":
        fields |= {"status": "away", "status_ms": AT_MS + 2}
    return fields | ({} if kind == "online" else {"since_id": "1-0"})


def uids(events: list[Event]) -> list[str]:
    """Return the users of events, and the reasons of gaps."""
    return [event.reason if isinstance(event, Gap) else event.uid for event in events]


def take(subscription: BlockingSubscription[Event], count: int) -> list[Event]:
    """Enter the loop, take that many events and leave it with the last one not acknowledged."""
    return list(itertools.islice(subscription, count))


def handle(subscription: BlockingSubscription[Event], count: int) -> list[Event]:
    """Take that many events, and acknowledge all of them in Redis."""
    taken = take(subscription, count)
    for event in taken:
        subscription.ack(event)
    subscription.flush()
    return taken
