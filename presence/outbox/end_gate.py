"""When ends may be sent to a shard: pure, time is an argument.

If a node sent an end before a peer has sent the login of the same user that is pending there, Redis would
take it for the end of the user. So ends wait while peers may be behind:

| event | what waits from then on | for at most |
| --- | --- | --- |
| `answered` after a pause | the next step with ends, as it is | `CATCH_UP_DELAY_S` |
| `answered` after an outage | ends; the rest of the batches is sent | `RECOVERY_SETTLE_TIMEOUT_S` |
| `generation_opened`, the first | nothing: this process had no sessions before | |
| `generation_opened` by this node alone | ends, unless they wait already | `SETTLE_TIMEOUT_S` |
| `generation_opened`, as on all nodes | ends | `SETTLE_TIMEOUT_S` |
| `probed`, and all peers have registered | ends, if an outage was less than its time ago | the rest of it |
| `probed`, while ends may go | nothing: the peers are remembered | |

A step that waits as it is delays the changes behind it; that is less work than to take it apart, for so short
a time. Without peers nothing waits. If all peers were swept they may be about to return, so ends wait, but
only as long as after an outage.
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
FRESH_S: Final = 0.4  # for this time after an answer, the shard counts as available
# Ends wait this long after the first answer in a while: if the shard has just hung, unnoticed by an idle
# node, logins that were pending on other nodes are on their way. Far below FRESH_S, so that no probe is
# repeated. Longer than a few logins gather on a node whose clients watch others: an idle node sends
# immediately, so its ends would overtake these without any fault. Entries that show the shard at work are no
# reason to skip the wait: they say nothing of what gathers, and after a hang the first ones may be as old as
# this before Redis has sent another node any answer.
CATCH_UP_DELAY_S: Final = 0.15
MIN_OUTAGE_S: Final = 1.0  # shorter outages do not let one node's ends overtake another's logins
SLOW_CALL_S: Final = 0.5  # far above the time of a network or a script: the shard hung
IDLE_GAP_S: Final = 3.5  # longer than the time between two probes: this node was stopped, unnoticed


class EndGate:
    """Whether ends may be sent to one shard; times are monotonic seconds.

    Args:
        is_alive, lease_holders: see `ShardPeers`.

    Attributes:
        peers: the other nodes in the shard.
        opens_at: until then ends are taken out of the batches, and no other node is fenced or swept.
    """

    def __init__(
        self, is_alive: Callable[[str], bool], lease_holders: Callable[[], Iterable[str]] = tuple
    ) -> None:
        self.peers = ShardPeers(is_alive, lease_holders)
        self.opens_at = -math.inf
        self._recovered_at = -math.inf  # when the shard answered again after an outage
        self._answered_at = -math.inf  # when it answered last
        self._took_s = 0.0  # duration of the call that it answered then
        self._caught_up_at = -math.inf  # when other nodes have sent what was pending on them
        self._had_peers = False  # ever: one that was swept may be about to return
        # Of the wait for registrations: whether all other nodes have to register, and under which id of
        # Redis' replication; "": under any, in a later generation than before.
        self._concerns_all = False
        self._replication_id = ""

    # Questions

    def is_open(self, now: float) -> bool:
        """Whether ends may be put in a batch, and other nodes fenced and swept.

        A step that has ends also waits for `ends_due_at`, which is the shorter wait.
        """
        return now >= self.opens_at

    def is_fresh(self, now: float) -> bool:
        """Whether the shard has answered recently enough to rely on `ends_due_at`."""
        return now - self._answered_at < FRESH_S

    def ends_due_at(self, now: float) -> float:
        """Return when a step with ends may be sent: now, or when to ask again."""
        return self._caught_up_at if now < self._caught_up_at and self.peers.alive() else now

    # Events

    def answered(self, sent_at: float, now: float, unavailable_since: float | None) -> bool:
        """Record an answer of the shard.

        There was, or may have been, an outage of some length, if calls failed, if this one took much longer
        than the last one, or if there was none for so long that this node must have been stopped. Then other
        nodes may have pending changes, as this one may.

        Args:
            sent_at, now: when the call was sent, and when its answer came.
            unavailable_since: when calls began to fail; None if the last one was answered.

        Returns:
            Whether ends wait for the sake of an outage: those of the batch in flight as well.
        """
        rested_s, took_s = sent_at - self._answered_at, now - sent_at
        slower_s = took_s - self._took_s
        # After a pause, or a call that was held up, the shard may have been away for that time: logins that
        # were pending on other nodes meanwhile arrive in a moment.
        if max(rested_s, slower_s) >= FRESH_S:
            self._caught_up_at = now + CATCH_UP_DELAY_S
        # A shard that is slow all the time is not away: only a call that is slower than the one before.
        has_failed = unavailable_since is not None
        has_hung = took_s >= SLOW_CALL_S and (self._took_s < SLOW_CALL_S or slower_s >= MIN_OUTAGE_S)
        was_stopped = IDLE_GAP_S <= rested_s < math.inf
        worked_at = min(self._answered_at, math.inf if unavailable_since is None else unavailable_since)
        self._answered_at, self._took_s = now, took_s
        if not (has_failed or has_hung or was_stopped) or now - worked_at < MIN_OUTAGE_S:
            return False
        self._wait(now, RECOVERY_SETTLE_TIMEOUT_S)
        self._recovered_at = now
        return not self.is_open(now)

    def generation_opened(
        self, began: float, traces: PeerTraces, *, first: bool, concerns_all: bool, replication_id: str = ""
    ) -> None:
        """Start the wait for registrations.

        Args:
            began: when the opening was sent.
            traces: the other nodes in its answer.
            first: whether it is the first of this process.
            concerns_all: whether the other nodes have to resync as well.
            replication_id: of Redis, if it differs from the one before; else "".
        """
        self.peers.traces = traces
        is_over = self.is_open(began)
        if not first and (is_over or concerns_all):
            self._wait(began, SETTLE_TIMEOUT_S)  # a resync of this node alone does not extend a wait
        self._concerns_all = concerns_all or (self._concerns_all and not is_over)
        self._replication_id = replication_id or ("" if is_over else self._replication_id)

    def probed(self, now: float) -> None:
        """Use the traces of a probe that found this node's own counter as expected; they are in `peers`."""
        if not self.is_open(now) and self._have_all_registered():
            # A registration does not show which logins are pending since a later outage.
            self.opens_at = min(self.opens_at, max(now, self._recovered_at + RECOVERY_SETTLE_TIMEOUT_S))
        if self.is_open(now):
            self.peers.remember()
            self._had_peers |= bool(self.peers.alive())

    def _wait(self, now: float, seconds: float) -> None:
        """Wait for peers; shorter if all were swept and may only be about to return."""
        if self.peers.alive():
            self._had_peers = True
        elif self._had_peers:
            seconds = RECOVERY_SETTLE_TIMEOUT_S
        else:
            return
        self.opens_at = max(self.opens_at, now + seconds)

    def _have_all_registered(self) -> bool:
        """Whether every other live node has registered its sessions since Redis recovered.

        A generation that existed before is no evidence: Redis may have gone back to it, or to one that this
        node had not seen yet. If Redis has another replication id, only registrations under it count.
        """
        peers = self.peers.alive()
        if not self._concerns_all or not peers:
            return False
        for node in peers:
            trace, before = self.peers.traces.get(node), self.peers.traces_before.get(node)
            if trace is None or not trace.complete:
                return False
            if self._replication_id:
                if trace.replication_id != self._replication_id:
                    return False
            elif before and trace.generation <= before.generation:
                return False
        return True
