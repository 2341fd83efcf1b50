"""A live node that sends what the test says."""

from collections.abc import Iterator
from contextlib import contextmanager

from presence.store.keys import Keys
from presence.store.redis_store import RedisLeaseTable, RedisStore
from presence.store.script_arguments import Shape
from tests.store.driving import Hand


@contextmanager
def a_hand(redis_url: str) -> Iterator[Hand]:
    """Yield a node whose lease is valid for the length of the block."""
    store = RedisStore(redis_url, Shape(Keys(), maxlen=10**6, seen_retention_ms=10**13))
    table = RedisLeaseTable(redis_url, Keys(), lease_s=60)
    table.renew("n1", 1, "{}", [])
    hand = Hand(store, "n1")
    hand.open()
    yield hand
    store.close()
    table.close()
