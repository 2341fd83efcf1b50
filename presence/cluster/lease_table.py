"""Rows of the lease table, and the interface of the table; imports no Redis client.

Tests: `tests/store/test_lease_table.py`, `tests/cluster/test_failure_detector.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

LEFT: Final = "left"  # in place of a sweeper; never the id of a node


@dataclass(frozen=True, slots=True)
class LeaseRow:
    text: str  # as Redis has it; a change has to name the text that it replaces
    counter: str  # of the node's last renewal
    sweeper: str = ""  # the node named by the dead marker; "" without one
    sweeper_n: int = 0  # advanced by the sweeper while it works
    lease_end_ms: int = 0  # by Redis' clock; 0: not known
    left_ms: int = 0  # Unix milliseconds at which the node had drained and stopped; 0: it has not
    is_new: bool = False  # of the renewing node: whether it had no row before

    def left_at(self, at_ms: int) -> "LeaseRow":
        """Return the row of a node that has drained and stops now."""
        text = f"{self.counter} {LEFT} {at_ms}"
        return LeaseRow(text, self.counter, lease_end_ms=self.lease_end_ms, left_ms=at_ms)

    def claimed_by(self, sweeper: str) -> "LeaseRow":
        """Return the row with a dead marker that names `sweeper`; see lease.lua for its text."""
        n = self.sweeper_n + 1
        return LeaseRow(f"{self.counter} {sweeper} {n}", self.counter, sweeper, n, self.lease_end_ms)


class LeaseTable(Protocol):
    """The leases of all nodes in Redis: blocking calls with the errors of `Store`."""

    def renew(
        self, node: str, counter: int, stats: str, sweeping: Sequence[str]
    ) -> Mapping[str, LeaseRow] | None:
        """Renew a lease and advance the dead markers of `sweeping`; return all rows by node.

        None: this id was declared dead; nothing was changed.
        """

    def claim(self, node: str, seen: str, wanted: str) -> bool:
        """Change the text of a row from `seen` to `wanted`; False: it has changed meanwhile.

        `seen` is "" if there is no row.
        """

    def remove(self, node: str, seen: str) -> str | None:
        """Remove the row of a node that was swept, and return the node's last statistics as JSON text.

        None: the row has changed meanwhile; nothing was removed.
        """

    def close(self) -> None:
        """Close the connection, even while a call waits for its answer."""
