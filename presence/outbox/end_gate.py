"""How long a node holds back ends after a resync, until its peers have registered their sessions: pure.

If a node sent an end before a peer has registered the same user's other session, Redis would take it for the
end of the user. Without peers in the shard there is no wait. If Redis lost data or was restarted, all peers
register, and the wait ends when all have.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from presence.outbox.replies import PeerTraces

SETTLE_TIMEOUT_S: Final = 10.0
# The same after an outage in which Redis lost nothing and no peer fenced this node: a login that is pending
# on a peer goes before an end that is pending here. All nodes reconnect within a second or two, and the
# outbox is to be empty within 5 s.
RECOVERY_SETTLE_TIMEOUT_S: Final = 3.0


@dataclass(eq=False, repr=False)
class EndGate:
    """The other nodes of one shard, and the wait for them.

    Attributes:
        traces: the other nodes' states, as last seen.
        opens_at: monotonic seconds from which ends may be sent, and other nodes fenced and swept.
    """

    is_alive: Callable[[str], bool]  # whether another node with a trace in the shard may be alive
    # the other nodes that hold a lease; one of them may have no trace in the shard yet
    lease_holders: Callable[[], Iterable[str]] = tuple

    def __post_init__(self) -> None:
        self.traces: PeerTraces = {}
        self.opens_at = -math.inf
        self._steady: PeerTraces = {}  # the others' traces as last seen with the gate open
        self._steady_known: frozenset[str] = frozenset()  # those that held a lease then
        self._before: PeerTraces = {}  # `_steady` when the resync began
        self._concerns_all = False
        self._replication_id = ""  # the replication id under which all have to register
        self._has_had_peers = False  # ever: a peer that was swept may be about to return
        self._recovered_at = -math.inf  # when Redis answered again after an outage

    def generation_opened(
        self, began: float, traces: PeerTraces, *, first: bool, concerns_all: bool, replication_id: str = ""
    ) -> None:
        """Start the wait after a generation was opened.

        Args:
            began: monotonic seconds at which the opening was sent.
            traces: the other nodes in its answer.
            first: whether it is the first of this process, which has no ends to hold back.
            concerns_all: whether the other nodes have to resync as well.
            replication_id: of Redis, if it differs from the one before; else "".
        """
        self.traces = traces
        self._before = self._steady
        is_over = began >= self.opens_at
        if not first and (is_over or concerns_all):
            self._wait(began, SETTLE_TIMEOUT_S)  # a resync of this node alone does not extend a wait
        self._concerns_all = concerns_all or (self._concerns_all and not is_over)
        self._replication_id = replication_id or ("" if is_over else self._replication_id)

    def redis_recovered(self, now: float) -> None:
        """Start the wait after an outage of Redis."""
        if now >= self.opens_at:
            self._concerns_all = False
        self._wait(now, RECOVERY_SETTLE_TIMEOUT_S)
        self._recovered_at = now

    def _wait(self, now: float, seconds: float) -> None:
        """Wait for peers; shorter if all were swept and may only be about to return."""
        if self._peers():
            self._has_had_peers = True
        elif self._has_had_peers:
            seconds = RECOVERY_SETTLE_TIMEOUT_S
        else:
            return
        self.opens_at = max(self.opens_at, now + seconds)

    def probed(self, now: float) -> None:
        """Use the traces of a probe that found this node's own counter as expected; they are in `traces`."""
        if now < self.opens_at and self._have_all_registered():
            # A registration does not show which logins are pending since a later outage.
            self.opens_at = min(self.opens_at, max(now, self._recovered_at + RECOVERY_SETTLE_TIMEOUT_S))
        if now >= self.opens_at:
            self._steady, self._steady_known = self.traces, frozenset(self.lease_holders())
            self._has_had_peers |= bool(self._peers())

    def peer_gone(self, node: str) -> None:
        """Remove a node whose trace was removed, before the next probe shows it."""
        self.traces = {other: trace for other, trace in self.traces.items() if other != node}
        self._steady_known -= {node}

    def only_traces(self) -> bool:
        """Whether there are traces of other nodes and none of them is alive."""
        return any(not trace.fenced for trace in self.traces.values()) and not self._peers()

    @property
    def has_peers(self) -> bool:
        """Whether other nodes may be alive."""
        return bool(self._peers())

    def _peers(self) -> set[str]:
        """Return the other nodes that may be alive."""
        traces = {**self._steady, **self.traces}
        fenced = {node for node, trace in traces.items() if trace.fenced}
        return {node for node in {*traces, *self.recent_lease_holders} - fenced if self.is_alive(node)}

    @property
    def recent_lease_holders(self) -> set[str]:
        """The other nodes that hold a lease, or held one when the gate was last open."""
        return {*self._steady_known, *self.lease_holders()}

    def _have_all_registered(self) -> bool:
        """Whether every other live node has registered its sessions since Redis recovered.

        A generation that existed before is no evidence: Redis may have gone back to it, or to one that this
        node had not seen yet. If Redis began another history, only registrations under the new one count.
        """
        peers = self._peers()
        if not self._concerns_all or not peers:
            return False
        for node in peers:
            now, before = self.traces.get(node), self._before.get(node)
            if (
                now is None
                or not now.complete
                or (self._replication_id and now.replication_id != self._replication_id)
            ):
                return False
            if not self._replication_id and before and now.generation <= before.generation:
                return False
        return True
