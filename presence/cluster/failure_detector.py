"""Failure detection: which of the other nodes are dead, as one node sees it; pure, time is an argument.

A node's silence is measured on the observer's own clock, from the moment at which it first saw the node's
present counter. Times of two machines are never compared. Only time *in contact* counts, in which Redis
answered the observer: during an outage no node can renew its lease, and a pause of the observer is not the
silence of others.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from presence.cluster.lease_table import LeaseRow
from presence.outbox.replies import Reply, ReplyStatus

NEVER_RENEWED = "0"  # the counter in the dead marker of a node that has no row


@dataclass
class ContactClock:
    """A clock that runs only while Redis answers."""

    limit_s: float  # a longer time between two answers does not count, and breaks the contact
    unbroken_s: float = 0.0  # duration of the present contact
    _time: float = 0.0
    _last: float | None = None

    def answered(self, now: float) -> None:
        """Record an answer of Redis; `now` is in monotonic seconds."""
        gap_s = self.limit_s + 1 if self._last is None else now - self._last
        if gap_s <= self.limit_s:
            self._time += gap_s
            self.unbroken_s += gap_s
        else:
            self.unbroken_s = 0.0
        self._last = now

    def time(self) -> float:
        """Return the seconds of contact so far."""
        return self._time


@dataclass(slots=True)
class ShardSweep:
    """Progress of the sweep of a dead node in one shard; times are seconds of contact."""

    fenced_at: float  # when the fence was first seen
    rollbacks: int  # of the shard until then; see `ShardWriter`
    due_at: float  # when the next call may be made
    cursor: str = "0"  # where the next call continues
    # until the first session that this pass has left is due; 0: none was left so far
    wait_s: float = 0.0
    done: bool = False  # whether the node owns nothing more in the shard


@dataclass(slots=True)
class PeerNode:
    node: str  # its id
    row: LeaseRow | None  # its row in the lease table; None if it only has traces in shards
    since: float  # seconds of contact at which its present counter was first seen
    sweeper_since: float  # the same for its present dead marker
    shards: dict[int, ShardSweep] = field(default_factory=dict)  # by shard in which it is fenced
    has_left: bool = False  # whether it has drained and stopped; stays set with a dead marker
    # its sessions that this node has ended as its only sweeper; None: there was another sweeper
    ended: int | None = 0
    offline: int = 0  # users who went offline by that

    @property
    def text(self) -> str:
        """Its row's text; "" without one."""
        return self.row.text if self.row else ""


class FailureDetector:
    """All other nodes, and which steps against them are due.

    Args:
        lease_s: silence after which a node is fenced.
        idle_timeout_s: T. A node that is silent for lease + T is dead; a shard is swept no sooner than T
            after the fence was seen there.
        contact: this node's own contact with Redis.

    Attributes:
        peers: the other nodes, by id.
    """

    def __init__(self, lease_s: float, idle_timeout_s: float, contact: ContactClock) -> None:
        self._lease_s = lease_s
        self._idle_timeout_s = idle_timeout_s
        self._contact = contact
        self.peers: dict[str, PeerNode] = {}

    def observe(self, rows: Mapping[str, LeaseRow], traced: Iterable[str], own: str) -> None:
        """Update from the rows of the lease table and the nodes with traces in shards; `own` is this node."""
        now = self._contact.time()
        ids = {*rows, *traced} - {own}
        for node in [*self.peers]:
            if node not in ids:
                del self.peers[node]
        for node in sorted(ids):
            row, known = rows.get(node), self.peers.get(node)
            if known is None or _counter(known.row) != _counter(row):
                self.peers[node] = known = PeerNode(node, row, now, now)
            elif known.text != (row.text if row else ""):
                known.sweeper_since = now
            known.row = row
            known.has_left = known.has_left or (row is not None and row.left_ms > 0)

    def row_claimed(self, node: PeerNode, row: LeaseRow) -> None:
        """Record that this node has replaced another's row."""
        node.row, node.sweeper_since = row, self._contact.time()

    def is_alive(self, node: str) -> bool:
        """Whether a node may be alive; assumed of an unknown one."""
        known = self.peers.get(node)
        if known is None:
            return True
        has_dead_marker = known.row is not None and known.row.sweeper
        return not has_dead_marker and self.silence_s(known) < self._lease_s

    def lease_holders(self) -> set[str]:
        return {node for node, each in self.peers.items() if each.row and self.is_alive(node)}

    def silence_s(self, node: PeerNode) -> float:
        """Return for how long a node's counter has not changed, in seconds of contact."""
        return self._contact.time() - node.since

    def may_act(self) -> bool:
        """Whether this node's own contact has lasted long enough to act against others."""
        return self._contact.unbroken_s >= self._lease_s

    def expired(self) -> list[PeerNode]:
        """Return the nodes whose lease has expired."""
        return [each for each in self.peers.values() if self.silence_s(each) >= self._lease_s]

    def is_dead(self, node: PeerNode) -> bool:
        """Whether a node was silent long enough for its sessions to be swept."""
        return self.silence_s(node) >= self._lease_s + self._idle_timeout_s

    def is_unowned(self, node: PeerNode) -> bool:
        """Whether the sweeper named by a dead node's marker has stopped."""
        return self._contact.time() - node.sweeper_since >= self._lease_s

    def fence_seen(self, node: PeerNode, shard: int, rollbacks: int) -> None:
        now = self._contact.time()
        node.shards.setdefault(shard, ShardSweep(now, rollbacks, now + self._idle_timeout_s))

    def forget_lost_fences(self, shard: int, rollbacks: int) -> None:
        """Forget the fences that a shard may have lost: another node may have set them anew since."""
        for each in self.peers.values():
            if shard in each.shards and each.shards[shard].rollbacks != rollbacks:
                del each.shards[shard]

    def due_sweep(self, node: PeerNode, shard: int) -> ShardSweep | None:
        """Return the sweep of a node in a shard if its next call may be made."""
        sweep = node.shards.get(shard)
        return sweep if sweep and not sweep.done and self._contact.time() >= sweep.due_at else None

    def waited_s(self, sweep: ShardSweep) -> float:
        """Return the seconds of contact since the fence was first seen."""
        return self._contact.time() - sweep.fenced_at

    def sweep_answered(self, node: PeerNode, shard: int, reply: Reply) -> None:
        sweep, now = node.shards[shard], self._contact.time()
        if reply.status is ReplyStatus.UNFENCED:  # Redis lost the fence: start over
            del node.shards[shard]
        elif reply.status is not ReplyStatus.OK:  # this node needs a resync, which its relay will find out
            sweep.due_at = now + self._lease_s
        elif reply.done:
            sweep.done = True
        else:
            sweep.cursor = reply.cursor
            if reply.wait_ms:
                sweep.wait_s = min(sweep.wait_s or math.inf, reply.wait_ms / 1000)
            if reply.cursor == "0":
                sweep.due_at, sweep.wait_s = now + sweep.wait_s, 0.0

    def is_swept(self, node: PeerNode, shards: int) -> bool:
        """Whether a node owns nothing more in any shard."""
        return len(node.shards) == shards and all(sweep.done for sweep in node.shards.values())

    def next_due_s(self) -> float:
        """Return the seconds until the next step against a silent node is due; infinity if none is."""
        now = self._contact.time()
        moments = []
        for each in self.peers.values():
            moments += [each.since + self._lease_s, each.since + self._lease_s + self._idle_timeout_s]
            moments += [sweep.due_at for sweep in each.shards.values() if not sweep.done]
        return min((moment - now for moment in moments if moment > now), default=math.inf)


def _counter(row: LeaseRow | None) -> str:
    """Return the counter of a row; a node without a row counts as one that has never renewed."""
    return row.counter if row else NEVER_RENEWED
