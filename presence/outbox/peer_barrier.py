"""How long a node waits for the others after it began anew in a shard: pure.

After a resync other nodes register first, or the end of a user's one session would be taken for the user's.
With nobody else in the shard there is nobody to wait for. If Redis lost data or was started anew all of them
register, and the wait is over when all have.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from presence.outbox.replies import PeerTraces

SETTLE_TIMEOUT_S: Final = 10.0
# The same after an outage in which Redis lost nothing and nobody took this node for dead: a login that waited
# elsewhere goes before an end that waited here. All nodes come back within a second or two; the outbox is to
# be empty within 5 s.
RECOVERY_SETTLE_TIMEOUT_S: Final = 3.0


@dataclass(eq=False, repr=False)
class PeerBarrier:
    """The other nodes of one shard, and the wait for them.

    Attributes:
        others: the other nodes' traces, as last seen.
        at: monotonic seconds from which this node may judge others by what the shard says.
    """

    is_alive: Callable[[str], bool]  # whether another node that left its trace in the shard may be at work
    # the other nodes that hold a lease; one of them may not have been seen in the shard yet
    lease_holders: Callable[[], Iterable[str]] = tuple

    def __post_init__(self) -> None:
        self.others: PeerTraces = {}
        self.open_at = -math.inf
        self._steady: PeerTraces = {}  # the others' traces as last seen while all was well
        self._steady_known: frozenset[str] = frozenset()  # the same of those that held a lease
        self._before: PeerTraces = {}  # the same, when the resync began
        self._concerns_all = False
        self._history = ""  # of replication, under which all have to register
        self._has_had_peers = False  # ever: one that was swept may be on its way back
        self._recovered_at = -math.inf  # when Redis answered again after an outage

    def start(
        self, began: float, others: PeerTraces, *, first: bool, concerns_all: bool, history: str = ""
    ) -> None:
        """A generation was opened.

        Args:
            began: monotonic seconds of the sending that was answered.
            others: the traces as the opening saw them.
            first: whether it is this process' first: it knows nothing that others would have to confirm.
            concerns_all: whether other nodes had to begin anew as well.
            history: the replication id, if it is another than before; else "".
        """
        self.others = others
        self._before = self._steady
        is_over = began >= self.open_at
        if not first and (is_over or concerns_all):
            self._wait(began, SETTLE_TIMEOUT_S)  # else one for its own sake goes on, and does not begin anew
        self._concerns_all = concerns_all or (self._concerns_all and not is_over)
        self._history = history or ("" if is_over else self._history)

    def redis_recovered(self, now: float) -> None:
        """Redis answers again after an outage."""
        if now >= self.open_at:
            self._concerns_all = False
        self._wait(now, RECOVERY_SETTLE_TIMEOUT_S)
        self._recovered_at = now

    def _wait(self, now: float, seconds: float) -> None:
        """Wait for peers; for such as were swept and may be on their way back, a little."""
        if self._peers():
            self._has_had_peers = True
        elif self._has_had_peers:
            seconds = RECOVERY_SETTLE_TIMEOUT_S
        else:
            return
        self.open_at = max(self.open_at, now + seconds)

    def observe(self, now: float) -> None:
        """A probe found this node's own counter as it should be; `others` are of that probe."""
        if now < self.open_at and self._have_all_registered():
            # That they have registered once does not say what waits since an outage after it.
            self.open_at = min(self.open_at, max(now, self._recovered_at + RECOVERY_SETTLE_TIMEOUT_S))
        if now >= self.open_at:
            self._steady, self._steady_known = self.others, frozenset(self.lease_holders())
            self._has_had_peers |= bool(self._peers())

    def peer_gone(self, node: str) -> None:
        """A node's trace is gone, which the next probe will see."""
        self.others = {other: trace for other, trace in self.others.items() if other != node}
        self._steady_known -= {node}

    def only_traces(self) -> bool:
        """Whether other nodes have left their traces and none of them is at work."""
        return any(not trace.fenced for trace in self.others.values()) and not self._peers()

    @property
    def has_peers(self) -> bool:
        """Whether other nodes may be at work."""
        return bool(self._peers())

    def _peers(self) -> set[str]:
        """Return the other nodes that may be at work."""
        traces = {**self._steady, **self.others}
        fenced = {node for node, trace in traces.items() if trace.fenced}
        return {node for node in {*traces, *self.recent_lease_holders} - fenced if self.is_alive(node)}

    @property
    def recent_lease_holders(self) -> set[str]:
        """The other nodes that hold a lease, or did while all was well."""
        return {*self._steady_known, *self.lease_holders()}

    def _have_all_registered(self) -> bool:
        """Whether every other node at work has registered its sessions since Redis came back.

        A generation that was there before tells nothing: Redis may have gone back to it, or to one that this
        node had not seen yet. Where it began another history, what was registered before is of the old one.
        """
        peers = self._peers()
        if not self._concerns_all or not peers:
            return False
        for node in peers:
            now, before = self.others.get(node), self._before.get(node)
            if now is None or not now.complete or (self._history and now.history != self._history):
                return False
            if not self._history and before and now.generation <= before.generation:
                return False
        return True
