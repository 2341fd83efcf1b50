"""Reading follow-ups that have come due: at least once, shared by the consumers of a group."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from presence.followups.keys import FollowupKeys
from presence.subscriber.blocking import BlockingSubscription
from presence.subscriber.connection import RedisConnections
from presence.subscriber.events import Gap, Item
from presence.subscriber.group import ConsumerOptions, GroupConsumer

if TYPE_CHECKING:  # programs without trio need not load it
    from presence.subscriber.trio_subscription import Subscription


@dataclass(frozen=True, slots=True)
class FollowUp:
    """Something that is to be done now, for a user who is offline.

    It comes at least once: whoever does it twice knows it by its `id`. Times are Unix milliseconds by Redis'
    clock, but for `last_seen_ms`, which is by the server's.
    """

    shard: int  # the user's
    entry_id: str  # of its stream
    id: str
    name: str  # of its rule, or what it was added as
    uid: str
    payload: str  # the text of the rule, or what it was added with
    reason: str  # of the offline event that it follows; "" where that is not known
    code: int  # the same; 0 where that is not known
    offline_id: str  # the entry id of that event, or ""
    offline_at_ms: int | None  # when that was, None if not known
    last_seen_ms: int | None  # when the user was last seen; None if not known
    due_ms: int  # when it was due
    at_ms: int  # when it was told
    deliveries: int = 1  # how often this consumer group was given it, this time included


def decode(item: Item) -> FollowUp | Gap | None:
    """Return the follow-up, or None where this version does not know the form of the entry."""
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
    consumer: str,
    after: str | None = "0",
    prefix: str = "presence",
    max_deliveries: int = 5,
    claim_idle_s: float = 60.0,
    prefetch: int = 100,
) -> "Subscription[FollowUp | Gap]":
    """Return an asynchronous iterator of what is due, in order for each shard.

    It is acknowledged when the next one is asked for. What a consumer dies with goes to another; what fails
    again and again becomes a dead letter, in the stream ``presence:{shard}:followups:dead``. A `Gap` says
    that follow-ups are missing: the cap removed them, or Redis lost them.

    The arguments, and what they raise, are those of `presence.subscriber.subscribe`; but a group that has to
    be created begins with all that is kept, unless `after` says otherwise.
    """
    from presence.subscriber.trio_subscription import Subscription  # noqa: PLC0415 - loads trio

    options = ConsumerOptions(group, consumer, max_deliveries, claim_idle_s, prefetch)
    return Subscription(
        GroupConsumer(RedisConnections(url), prefix, options, after, kind=FollowupKeys), decode
    )


def due_sync(
    url: str,
    *,
    group: str,
    consumer: str,
    after: str | None = "0",
    prefix: str = "presence",
    max_deliveries: int = 5,
    claim_idle_s: float = 60.0,
    prefetch: int = 100,
) -> BlockingSubscription[FollowUp | Gap]:
    """Return a plain iterator of what is due; arguments and guarantees are those of `due`."""
    options = ConsumerOptions(group, consumer, max_deliveries, claim_idle_s, prefetch)
    return BlockingSubscription(
        GroupConsumer(RedisConnections(url), prefix, options, after, kind=FollowupKeys), decode
    )
