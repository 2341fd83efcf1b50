"""How long a node holds back ends after a resync, until its peers have registered their sessions: pure.

If a node sent an end before a peer has registered the same user's other session, Redis would take it for the
end of the user. Without peers in the shard there is no wait. If Redis lost data or was restarted, all peers
register, and the wait ends when all have.
"""

import math
from collections.abc import Callable, Iterable
from typing import Final

from presence.outbox.replies import PeerTraces
from presence.outbox.shard_peers import ShardPeers

SETTLE_TIMEOUT_S: Final = 10.0
# The same after an outage in which Redis lost nothing and no peer fenced this node: a login that is pending
# on a peer goes before an end that is pending here. All nodes reconnect within a second or two, and the
# outbox is to be empty within 5 s.
RECOVERY_SETTLE_TIMEOUT_S: Final = 3.0


class EndGate:
    """Whether ends may be sent to one shard.

    Args:
        is_alive, lease_holders: see `ShardPeers`.

    Attributes:
        peers: the other nodes in the shard.
        opens_at: monotonic seconds from which ends may be sent, and other nodes fenced and swept.
    """

    def __init__(
        self, is_alive: Callable[[str], bool], lease_holders: Callable[[], Iterable[str]] = tuple
    ) -> None:
        self.peers = ShardPeers(is_alive, lease_holders)
        self.opens_at = -math.inf
        self._concerns_all = False
        self._replication_id = ""  # the one under which all have to register
        self._recovered_at = -math.inf  # when Redis answered again after an outage

    def is_open(self, now: float) -> bool:
        """Whether ends may be sent, and other nodes fenced and swept."""
        return now >= self.opens_at

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
        self.peers.traces = traces
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
        if self.peers.alive():
            self.peers.were_any = True
        elif self.peers.were_any:
            seconds = RECOVERY_SETTLE_TIMEOUT_S
        else:
            return
        self.opens_at = max(self.opens_at, now + seconds)

    def probed(self, now: float) -> None:
        """Use the traces of a probe that found this node's own counter as expected; they are in `peers`."""
        if now < self.opens_at and self._have_all_registered():
            # A registration does not show which logins are pending since a later outage.
            self.opens_at = min(self.opens_at, max(now, self._recovered_at + RECOVERY_SETTLE_TIMEOUT_S))
        if now >= self.opens_at:
            self.peers.remember()

    def _have_all_registered(self) -> bool:
        """Whether every other live node has registered its sessions since Redis recovered.

        A generation that existed before is no evidence: Redis may have gone back to it, or to one that this
        node had not seen yet. If Redis began another history, only registrations under the new one count.
        """
        peers = self.peers.alive()
        if not self._concerns_all or not peers:
            return False
        for node in peers:
            now, before = self.peers.traces.get(node), self.peers.traces_before.get(node)
            if (
                now is None
                or not now.complete
                or (self._replication_id and now.replication_id != self._replication_id)
            ):
                return False
            if not self._replication_id and before and now.generation <= before.generation:
                return False
        return True
