"""The other nodes of one shard, as this node knows them: pure."""

from collections.abc import Callable, Iterable

from presence.outbox.replies import PeerTraces


class ShardPeers:
    """The other nodes of one shard: their traces, their leases, and what both were before a loss of data.

    Args:
        is_alive: whether another node with a trace in the shard may be alive.
        lease_holders: returns the other nodes that hold a lease; one of them may have no trace in the shard
            yet.

    Attributes:
        traces: the other nodes' states, as last seen.
        traces_before: the same at the last `remember`.
    """

    def __init__(
        self, is_alive: Callable[[str], bool], lease_holders: Callable[[], Iterable[str]] = tuple
    ) -> None:
        self._is_alive = is_alive
        self._lease_holders = lease_holders
        self.traces: PeerTraces = {}
        self.traces_before: PeerTraces = {}
        self._leases_before: frozenset[str] = frozenset()

    def remember(self) -> None:
        """Keep what is known now, for the case that Redis loses it."""
        self.traces_before, self._leases_before = self.traces, frozenset(self._lease_holders())

    def forget(self, node: str) -> None:
        """Remove a node whose trace was removed, before the next probe shows it."""
        self.traces = {peer: trace for peer, trace in self.traces.items() if peer != node}
        self._leases_before -= {node}

    def has_lost_fence(self, traces: PeerTraces) -> bool:
        """Whether a node that was fenced is not fenced in newer traces: then the shard has lost data."""
        return any(
            known.fenced and (trace := traces.get(node)) is not None and not trace.fenced
            for node, known in self.traces.items()
        )

    def alive(self) -> set[str]:
        """Return the other nodes that may be alive."""
        traces = {**self.traces_before, **self.traces}
        fenced = {node for node, trace in traces.items() if trace.fenced}
        return {node for node in {*traces, *self.recent_lease_holders} - fenced if self._is_alive(node)}

    @property
    def recent_lease_holders(self) -> set[str]:
        """The other nodes that hold a lease, or held one at the last `remember`."""
        return {*self._leases_before, *self._lease_holders()}

    def only_traces(self) -> bool:
        """Whether there are traces of nodes that are not fenced, and no other node is alive.

        A fenced node needs no care: its sessions lose to any login.
        """
        return any(not trace.fenced for trace in self.traces.values()) and not self.alive()
