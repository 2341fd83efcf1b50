"""The interface of Redis that the relay uses; imports no Redis client.

Tests: `tests/outbox/test_relay.py`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from presence.common.errors import StoreError, StoreUnavailable
from presence.outbox.replies import Probe, Reply
from presence.outbox.steps import Step


class Store(Protocol):
    """Redis as the relay uses it: blocking calls, one at a time.

    A call fails with `StoreUnavailable` when Redis cannot be reached or cannot answer now, and with
    `StoreError` for an answer that a retry may not cure. After either, and after `close`, the next call opens
    a new connection. Shards may be on several servers, so that one fails and another does not.
    """

    def check_meta(self, shards: Collection[int] = ()) -> None:
        """Compare version and number of shards with those in Redis, or write them; compare that of `shards`.

        `StoreMismatch` if one differs. A batch that opens a generation sets the version of a new shard.
        """

    def apply(self, steps: Sequence[Step]) -> list[Reply | StoreUnavailable | StoreError]:
        """Perform each step atomically, at most once per number; answers in order.

        A failure among the answers means that the step was not performed or, if the connection broke, may
        have been.
        """

    def probe(
        self, node: str, inbox_read: Mapping[int, int]
    ) -> dict[int, Probe | StoreUnavailable | StoreError]:
        """Return how shards stand to a node; `inbox_read` has the number read so far of each inbox."""

    def close(self) -> None:
        """Close the connection, even while a call waits for its answer."""
