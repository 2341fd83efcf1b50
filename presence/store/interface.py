"""Redis as a node sees it: its data, and the leases of all nodes; no redis in here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from presence.store.batches import Step, StoreError, StoreUnavailable
from presence.store.replies import Probe, Reply

LEFT: Final = "left"  # in the place of a sweeper; no id of a node is like that


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A node in the table of leases."""

    text: str  # the row as Redis has it; whoever changes it names it
    counter: str  # as the node has renewed last
    sweeper: str = ""  # the node that its death certificate names; "" without one
    sweeper_n: int = 0  # advanced by the sweeper while it is at work
    lease_end_ms: int = 0  # by Redis' clock; 0: not known
    left_ms: int = 0  # Unix milliseconds at which the node drained and ended; 0: it has not

    def left_at(self, at_ms: int) -> "LeaseRow":
        """Return the row of a node that has drained and ends now."""
        text = f"{self.counter} {LEFT} {at_ms}"
        return LeaseRow(text, self.counter, lease_end_ms=self.lease_end_ms, left_ms=at_ms)

    def claimed_by(self, sweeper: str) -> "LeaseRow":
        """Return the row with a death certificate that names `sweeper`; see lease.lua for its text."""
        n = self.sweeper_n + 1
        return LeaseRow(f"{self.counter} {sweeper} {n}", self.counter, sweeper, n, self.lease_end_ms)


class LeaseTable(Protocol):
    """The leases of all nodes in Redis: calls as those of `Store`, with the same errors."""

    def renew(
        self, node: str, counter: int, stats: str, sweeping: Sequence[str]
    ) -> Mapping[str, LeaseRow] | None:
        """Renew a lease and advance the certificates of `sweeping`; return all rows by node.

        None: this id was declared dead, and nothing was changed.
        """

    def claim(self, node: str, seen: str, wanted: str) -> bool:
        """Change the text of a row from `seen` to `wanted`; False: it is another by now.

        `seen` is "" where there is no row.
        """

    def bury(self, node: str, seen: str) -> str | None:
        """Take the row of a node that was swept away, and return what the node told of itself last.

        None: the row is another by now, and nothing was changed.
        """

    def close(self) -> None:
        """Close the connection, also while a call waits for its answer; any thread may do so."""


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
