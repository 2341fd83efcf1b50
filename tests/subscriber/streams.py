"""Streams as a server writes them, for subscribers to read."""

import itertools
from typing import Any

from presence.store.client import Redis
from presence.store.keys import Keys
from presence.subscriber import BlockingSubscription, Event, Gap

AT_MS = 1_700_000_000_000


class Streams:
    """Writes events to the streams of `shards` shards; entry ids are 1-0, 2-0 … over all of them."""

    def __init__(self, client: Redis, shards: int = 1) -> None:
        self.client = client
        self.keys = Keys(shards=shards)
        self._numbers = itertools.count(1)
        client.hset(self.keys.meta, mapping={"version": 1, "shards": shards})

    def write(self, *uids: str, kind: str = "online") -> list[str]:
        """Write an event for each user, in one round trip; return the entry ids."""
        ids = [f"{next(self._numbers)}-0" for _ in uids]
        with self.client.pipeline(transaction=False) as pipe:
            for uid, entry_id in zip(uids, ids, strict=True):
                pipe.xadd(self.keys.events(self.keys.shard(uid)), event_fields(uid, kind), id=entry_id)
            pipe.execute()
        return ids

    def create_group(self, group: str = "g") -> None:
        """Let a group begin here, in every shard."""
        for shard in range(self.keys.shards):
            self.client.xgroup_create(self.keys.events(shard), group, "0", mkstream=True)

    def pending(self, group: str = "g") -> int:
        """How many entries were delivered and not acknowledged."""
        answers: list[Any] = [
            self.client.xpending(self.keys.events(shard), group) for shard in range(self.keys.shards)
        ]
        return sum(answer["pending"] for answer in answers)

    def dead(self) -> list[dict[str, str]]:
        """The dead letters of all shards."""
        letters: list[Any] = []
        for shard in range(self.keys.shards):
            answer: Any = self.client.xrange(self.keys.dead(shard))
            letters += answer
        return [{k.decode(): v.decode() for k, v in fields.items()} for _, fields in letters]


def event_fields(uid: str, kind: str = "online") -> dict[Any, Any]:
    """What the store's script writes for a transition."""
    fields = {
        **{"v": 1, "type": kind, "uid": uid, "code": 1 if kind == "online" else 201},
        **{"reason": "login" if kind == "online" else "idle_timeout", "node": "n1", "session": "s1"},
        **{"device": "", "since_ms": AT_MS, "last_seen_ms": AT_MS + 1, "at_ms": AT_MS + 2},
    }
    return fields | ({"since_id": "1-0"} if kind == "offline" else {})


def uids(events: list[Event]) -> list[str]:
    """The users of events, and of gaps their reason."""
    return [event.reason if isinstance(event, Gap) else event.uid for event in events]


def take(subscription: BlockingSubscription[Event], count: int) -> list[Event]:
    """Enter the loop, take so many events and leave it with the last one not acknowledged."""
    return list(itertools.islice(subscription, count))
