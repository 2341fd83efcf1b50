"""What a node counts of leases, fences and sweeps.

Tests: `tests/cluster/test_lease_renewal.py`.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class ClusterCounters:
    """Counters since the start, and the present state."""

    renewals: int = 0  # of this node's lease
    renewed_at: float | None = None  # monotonic seconds of the last one; None before the first
    nodes: int = 0  # other nodes, including dead ones
    fenced: int = 0  # nodes that this one has fenced
    dead_markers: int = 0  # those that it has written, including take-overs
    swept: int = 0  # nodes that it has swept completely
    swept_sessions: int = 0  # sessions that it has ended by sweeps
    reindexed_sessions: int = 0  # sessions that no sweep would have found, until this node restored the index
    errors: int = 0  # calls that failed
    last_error: str = ""  # the last one's text; "" if there was none
