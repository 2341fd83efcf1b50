"""The arguments of subscriptions, checked and made into a source.

Tests: `tests/subscriber/test_group.py`, `tests/subscriber/test_follower.py`.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import TypedDict

from presence.store.keys import Keys
from presence.subscriber.blocking import seconds
from presence.subscriber.events import check_entry_id
from presence.subscriber.follower import Follower
from presence.subscriber.group import ConsumerOptions, GroupConsumer
from presence.subscriber.redis_connections import RedisConnections

After = str | Mapping[int, str] | None


class ReadingOptions(TypedDict, total=False):
    """Where a subscription reads, and as which consumer; see `presence.subscriber.subscribe`."""

    group: str | None
    consumer: str | None
    after: After
    prefix: str
    max_deliveries: int
    claim_idle: float | timedelta
    prefetch: int


def source_of(
    url: str,
    *,
    group: str | None = None,
    consumer: str | None = None,
    after: After = None,
    prefix: str = "presence",
    max_deliveries: int = 5,
    claim_idle: float | timedelta = 60.0,
    prefetch: int = 100,
    kind: type[Keys] = Keys,
) -> Follower | GroupConsumer:
    """Return what reads the streams of `kind`; raises `ValueError` or `TypeError` for invalid arguments."""
    if group is None and consumer is not None:
        raise ValueError("a consumer is one of a group")
    if isinstance(after, str):
        check_entry_id(after)
    if group is None:
        return Follower(RedisConnections(url), prefix, after, kind=kind)
    options = ConsumerOptions(group, consumer, max_deliveries, seconds(claim_idle), prefetch)
    if after is None or isinstance(after, str):
        return GroupConsumer(RedisConnections(url), prefix, options, after, kind=kind)
    raise ValueError("after: a group keeps its own place in each shard")
