"""Events of a presence server, for programs that act on them.

At least once, as one of several workers that share a consumer group; `subscribe` does the same on asyncio or
trio, with the same methods::

    from presence.subscriber import Gap, Offline, subscribe_sync

    with subscribe_sync("redis://localhost:6379", group="push") as events:
        for event in events:  # acknowledged when the loop comes round
            match event:
                case Offline(uid=uid, reason="idle_timeout"):
                    print("push to", uid)
                case Gap():
                    print("events are missing: ask the reader who is online")

Without a group, a subscriber gets new events, or those after the last ids it has seen. `follow` and
`follow_sync` begin with a snapshot of who is online. See `docs/subscribers.md`.

With ``updates=True`` they also give events of users who stay online: `Away`, who went away or came back;
`Updated`, who changed their status or `meta`; `Device`, a device of whom came or went; and `Moved`, who are
in other rooms. Without it, these entries are skipped.

All survive an outage of Redis, with or without loss of its data. On a Redis Cluster, where no read can wait
for streams of several slots, they poll: 20 ms after the last event, then with growing pauses up to 200 ms. An
unreachable server delays the events of its shards only; after a failover that lost writes there is a `Gap`.
The logger of Python's `logging` is ``presence.subscriber``.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Unpack

from presence.subscriber.arguments import After, ReadingOptions, source_of
from presence.subscriber.async_subscription import Subscription
from presence.subscriber.blocking import BlockingSubscription
from presence.subscriber.consumer_names import ConsumerInUse
from presence.subscriber.events import (
    Away,
    Device,
    Entry,
    Event,
    Gap,
    Item,
    Moved,
    Offline,
    Online,
    Updated,
    decode,
    decode_transition,
)
from presence.subscriber.redis_connections import RedisConnections
from presence.subscriber.snapshot import Period, Shown, Snapshot, SnapshotFollower

__all__ = [
    "Away",
    "BlockingSubscription",
    "ConsumerInUse",
    "Device",
    "Entry",
    "Event",
    "Gap",
    "Moved",
    "Offline",
    "Online",
    "Period",
    "Shown",
    "Snapshot",
    "Subscription",
    "Updated",
    "entries",
    "entries_sync",
    "follow",
    "follow_sync",
    "subscribe",
    "subscribe_sync",
]


def subscribe(
    url: str,
    *,
    group: str | None = None,
    consumer: str | None = None,
    after: After = None,
    prefix: str = "presence",
    updates: bool = False,
    auto_ack: bool = True,
    max_deliveries: int = 5,
    claim_idle: float | timedelta = 60.0,
    prefetch: int = 100,
) -> Subscription[Event]:
    """Return an async iterator of the events of all shards.

    Without a group, and as the only consumer of a group, it gives the events of each user in order, also
    across clean stops of consumers, whatever their names. If a consumer dies, what it had comes again: first
    if the next one has the same name, otherwise late, after `claim_idle`. Consumers side by side have no
    order between them.

    Args:
        url: the server's Redis: ``redis://``, ``rediss://``, ``unix://``, ``redis+cluster://`` or
            ``redis+sentinel://``, see `presence.common.redis_url`.
        group: the consumer group to share events with; without one, every subscriber gets all events.
        consumer: this consumer's name in the group; None for one made of host, process and a random part. A
            name of your own is for consumers that die and come back: they continue immediately with their
            unacknowledged events. It must be unique among running consumers.
        after: without a group, where to begin: None for new events only, ``"0"`` for all that is kept, an
            entry id, or by shard (a number) the id of the last event seen, where a `Gap` reports that later
            events are missing. With a group, where it begins if it has to be created; not by shard.
        prefix: prefix of the server's keys.
        updates: whether to give `Away`, `Updated`, `Device` and `Moved`, too. Without it they are skipped,
            and entries that a group has skipped do not come again.
        auto_ack: whether asking for the next event acknowledges those before it. Switch it off for handlers
            that run in parallel; an event not settled after `claim_idle` is delivered again.
        max_deliveries: with a group, as the two below: after this many calls of a handler without
            acknowledgement an event becomes a dead letter, in the stream ``presence:{shard}:dead``.
        claim_idle: seconds, or a `timedelta`: an event goes to another consumer so long after it was handed
            out, or was read ahead or renewed by one that died. Events read ahead are renewed when the loop
            asks for the next one, so a handler has to return within half of that time.
        prefetch: number of events read ahead, over all shards.

    Raises:
        ValueError, TypeError: the URL or another argument is invalid.
    """
    source = source_of(
        url,
        group=group,
        consumer=consumer,
        after=after,
        prefix=prefix,
        max_deliveries=max_deliveries,
        claim_idle=claim_idle,
        prefetch=prefetch,
    )
    return Subscription(source, _decoder(updates), auto_ack=auto_ack)


def subscribe_sync(
    url: str, *, updates: bool = False, auto_ack: bool = True, **options: Unpack[ReadingOptions]
) -> BlockingSubscription[Event]:
    """Return a plain iterator of events; all arguments and guarantees are those of `subscribe`."""
    return BlockingSubscription(source_of(url, **options), _decoder(updates), auto_ack=auto_ack)


def entries(url: str, *, auto_ack: bool = True, **options: Unpack[ReadingOptions]) -> Subscription[Item]:
    """Return an async iterator of the entries as they were written, including unknown types.

    A `Gap` among them was found while reading. Otherwise like `subscribe`, but for `updates`.
    """
    return Subscription(source_of(url, **options), _as_it_is, auto_ack=auto_ack)


def entries_sync(
    url: str, *, auto_ack: bool = True, **options: Unpack[ReadingOptions]
) -> BlockingSubscription[Item]:
    """Return a plain iterator of the same items as `entries`."""
    return BlockingSubscription(source_of(url, **options), _as_it_is, auto_ack=auto_ack)


def follow(url: str, *, prefix: str = "presence", updates: bool = False) -> Subscription[Snapshot | Event]:
    """Return an async iterator that gives a `Snapshot` and then every event after it.

    After a `Gap` there is a new snapshot. A snapshot is exact: it is the state at one moment of each shard's
    stream, although it is read in pages; all shards have to be reachable. It takes about 150 bytes of memory
    per user online.

    Args:
        url, prefix: see `subscribe`.
        updates: whether to give `Away`, `Updated`, `Device` and `Moved`, and to fill `Snapshot.shown`.

    Raises:
        ValueError: the URL is invalid.
    """
    return Subscription(SnapshotFollower(RedisConnections(url), prefix, updates), _or_snapshot(updates))


def follow_sync(
    url: str, *, prefix: str = "presence", updates: bool = False
) -> BlockingSubscription[Snapshot | Event]:
    """Return a plain iterator of the same items as `follow`."""
    return BlockingSubscription(
        SnapshotFollower(RedisConnections(url), prefix, updates), _or_snapshot(updates)
    )


def _as_it_is(item: Item) -> Item:
    return item


def _decoder(updates: bool) -> Callable[[Item], Event | None]:
    return decode if updates else decode_transition


def _or_snapshot(updates: bool) -> Callable[[Any], Snapshot | Event | None]:
    decoder = _decoder(updates)
    return lambda item: item if isinstance(item, Snapshot) else decoder(item)
