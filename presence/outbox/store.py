"""Redis as the relay of a node sees it; no redis in here."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from presence.common.errors import StoreError, StoreUnavailable
from presence.outbox.replies import Probe, Reply
from presence.outbox.steps import Step


class Store(Protocol):
    """Redis as the relay sees it: plain calls that may block, made from one thread at a time.

    What fails is a `StoreUnavailable` when Redis cannot be reached or will answer later, and a `StoreError`
    for an answer that waiting may not cure. After either, and after `close`, the next call opens a new
    connection. Shards may be on several servers, so that one fails and another does not.
    """

    def check_meta(self) -> None:
        """Compare version and shards with what Redis has, or write them; `StoreMismatch` if they differ."""

    def apply(self, steps: Sequence[Step]) -> list[Reply | StoreUnavailable | StoreError]:
        """Perform each step atomically, at most once per number; answers in order.

        A failure among the answers stands for a step that was not performed or, if the connection broke, may
        have been.
        """

    def probe(
        self, node: str, inbox_read: Mapping[int, int]
    ) -> dict[int, Probe | StoreUnavailable | StoreError]:
        """Ask shards how they stand to a node; `inbox_read` has the number read so far of each inbox."""

    def close(self) -> None:
        """Close the connection, also while a call waits for its answer; any thread may do so."""
