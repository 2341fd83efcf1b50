"""The leases of all nodes, as a node sees them in Redis; no redis in here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

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

    def remove(self, node: str, seen: str) -> str | None:
        """Take the row of a node that was swept away, and return what the node told of itself last.

        None: the row is another by now, and nothing was changed.
        """

    def close(self) -> None:
        """Close the connection, also while a call waits for its answer; any thread may do so."""
