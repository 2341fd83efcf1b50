"""The stream of due follow-ups, as programs read it: at least once, shared by the consumers of a group.

The script `presence/store/scripts/followups/plan_and_deliver.lua` writes it; delivery is that of
`presence.subscriber`.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from presence.followups.stream_keys import FollowupKeys
from presence.subscriber.async_subscription import Subscription
from presence.subscriber.blocking import BlockingSubscription, seconds
from presence.subscriber.events import Gap, Item, check_entry_id, utc
from presence.subscriber.group import ConsumerOptions, GroupConsumer
from presence.subscriber.redis_connections import RedisConnections


@dataclass(frozen=True, slots=True)
class FollowUp:
    """A due follow-up of an offline user.

    It is delivered at least once: `id` identifies a repetition. Times are Unix milliseconds by Redis' clock,
    except `last_seen_ms`, which is by the server's.
    """

    shard: int  # the user's
    entry_id: str  # of its stream
    id: str
    name: str  # of its rule, or as added
    uid: str
    payload: str  # of its rule, or as added
    reason: str  # of the offline event that it follows; "" if unknown
    code: int  # of that event; 0 if unknown
    offline_id: str  # the entry id of that event, or ""
    offline_at_ms: int | None  # of that event; None if unknown
    last_seen_ms: int | None  # None if unknown
    due_ms: int  # when it was due
    at_ms: int  # when it was written to the stream
    deliveries: int = 1  # number of deliveries to this consumer group, including this one

    @property
    def at(self) -> datetime:
        """`at_ms` as a time in UTC."""
        return utc(self.at_ms)

    @property
    def due(self) -> datetime:
        """`due_ms` as a time in UTC."""
        return utc(self.due_ms)

    @property
    def last_seen(self) -> datetime | None:
        """`last_seen_ms` as a time in UTC."""
        return None if self.last_seen_ms is None else utc(self.last_seen_ms)


def decode(item: Item) -> FollowUp | Gap | None:
    """Return the follow-up, or None if the form of the entry is unknown."""
    if isinstance(item, Gap):
        return item
    fields = item.fields
    try:
        return FollowUp(
            shard=item.shard,
            entry_id=item.id,
            id=fields["id"],
            name=fields["name"],
            uid=fields["uid"],
            payload=fields["payload"],
            reason=fields["reason"],
            code=int(fields["code"]),
            offline_id=fields["offline_id"],
            offline_at_ms=int(fields["offline_at_ms"]) or None,
            last_seen_ms=int(fields["last_seen_ms"]) or None,
            due_ms=int(fields["due_ms"]),
            at_ms=int(fields["at_ms"]),
            deliveries=item.deliveries,
        )
    except (KeyError, ValueError):
        return None


def due(
    url: str,
    *,
    group: str,
    consumer: str | None = None,
    after: str | None = "0",
    prefix: str = "presence",
    auto_ack: bool = True,
    max_deliveries: int = 5,
    claim_idle: float | timedelta = 60.0,
    prefetch: int = 100,
) -> Subscription[FollowUp | Gap]:
    """Return an async iterator of due follow-ups, in order for each shard as `subscribe` gives events.

    Those of a consumer that stops or dies go to another; one that fails repeatedly becomes a dead letter, in
    the stream ``presence:{shard}:followups:dead``. A `Gap` means that follow-ups are missing: removed by the
    cap, or lost by Redis.

    Arguments, methods and errors are those of `presence.subscriber.subscribe`; but a new group begins with
    everything kept, unless `after` is given.
    """
    options = ConsumerOptions(group, consumer, max_deliveries, seconds(claim_idle), prefetch)
    return Subscription(_source(url, prefix, after, options), decode, auto_ack=auto_ack)


def due_sync(
    url: str,
    *,
    group: str,
    consumer: str | None = None,
    after: str | None = "0",
    prefix: str = "presence",
    auto_ack: bool = True,
    max_deliveries: int = 5,
    claim_idle: float | timedelta = 60.0,
    prefetch: int = 100,
) -> BlockingSubscription[FollowUp | Gap]:
    """Return a plain iterator of due follow-ups; arguments and guarantees are those of `due`."""
    options = ConsumerOptions(group, consumer, max_deliveries, seconds(claim_idle), prefetch)
    return BlockingSubscription(_source(url, prefix, after, options), decode, auto_ack=auto_ack)


def _source(url: str, prefix: str, after: str | None, options: ConsumerOptions) -> GroupConsumer:
    if after is not None:
        check_entry_id(after)
    return GroupConsumer(RedisConnections(url), prefix, options, after, kind=FollowupKeys)
