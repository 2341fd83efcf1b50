"""Cluster membership: the task that keeps this node's lease, and fences and sweeps nodes that have died.

At a fixed interval, and only from a healthy event loop, it renews the lease and reads those of all nodes.
A node whose counter has not changed for

* the lease is fenced in each shard: all its further steps are refused. If it is alive, it notices, takes a
  new id and registers its sessions under it;
* lease + T gets a dead marker, which refuses its renewals and names its sweeper;
* lease + T, and was fenced in a shard T ago, is swept there. The sessions that its id still owns end as
  `node_down`, in bounded calls with pauses between them. A client that has reconnected has a session under
  another id, which is not affected.

The sweeper advances the dead marker while it works. If it stops, another node takes over by the same rule.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from typing import Any, Final

import structlog

from presence.cluster.failure_detector import NEVER_RENEWED, ContactClock, FailureDetector, PeerNode
from presence.cluster.leases import LeaseRow, LeaseTable
from presence.common.circuit_breaker import BACKOFF_FIRST_S, BACKOFF_LIMIT_S
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.histogram import LatencyHistograms
from presence.common.runtime import Runtime, TimedCaller, TrioRuntime
from presence.outbox.outage_log import Outage
from presence.outbox.relay import Relay
from presence.outbox.replies import Reply, ReplyStatus
from presence.outbox.shard_writer import ShardWriter
from presence.outbox.steps import Fencing, Step
from presence.outbox.store import Store

RENEWALS_PER_LEASE: Final = 8  # a death is noticed late by at most one interval
HEALTH_POLL_INTERVAL_S: Final = 0.02  # after a pause: until connections were read and a tick was made
SWEEP_PAUSE_S: Final = 0.010  # least pause between two calls; otherwise as long as the last call took
MAX_FENCES_PER_CALL: Final = 64  # some milliseconds of Redis: many dead nodes must not delay a renewal

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class ClusterStatistics:
    """Counters since the start, and the present state."""

    renewals: int = 0  # of this node's lease
    renewed_at: float | None = None  # monotonic seconds of the last one; None before the first
    nodes: int = 0  # other nodes, including dead ones
    fenced: int = 0  # nodes that this one has fenced
    certificates: int = 0  # dead markers that it has written, including take-overs
    swept: int = 0  # nodes that it has swept completely
    swept_sessions: int = 0  # sessions that it has ended by sweeps
    errors: int = 0  # calls that failed
    last_error: str = ""  # the last one's text; "" if there was none


@dataclass(eq=False, repr=False)
class Membership:
    """Keeps this node's lease, and fences and sweeps others.

    Attributes:
        detector: the other nodes as this one sees them.
    """

    relay: Relay  # has this node's id, and its state in each shard
    table: LeaseTable  # the leases
    store: Store  # for fences and sweeps; another connection than the relay's
    _: KW_ONLY
    lease_s: InitVar[float]  # see the module
    idle_timeout_s: InitVar[float]  # T
    # whether connections are read and the tick runs; the lease of a node that hangs must expire
    is_healthy: Callable[[], bool]
    # returns the statistics of this node for `presence nodes`; JSON values
    describe: Callable[[], dict[str, Any]]
    clock: Callable[[], float] = time.monotonic  # monotonic seconds
    runtime: Runtime = field(default_factory=TrioRuntime)  # where its task runs
    latencies: InitVar[LatencyHistograms | None] = None  # observes the duration of calls

    def __post_init__(
        self, lease_s: float, idle_timeout_s: float, latencies: LatencyHistograms | None
    ) -> None:
        self._renew_interval_s = lease_s / RENEWALS_PER_LEASE
        self._lease_ms = round(lease_s * 1000)
        self._thread = TimedCaller(
            self.runtime.thread_caller(self._interrupt),
            (latencies or LatencyHistograms()).redis_call,
            self.clock,
        )
        self._wake_event = self.runtime.wake_event()
        self._contact = ContactClock(2 * self._renew_interval_s)
        self.detector = FailureDetector(lease_s, idle_timeout_s, self._contact)
        self._next_renewal = -math.inf
        self._leaves_at_ms = self._left_behind = 0  # once it leaves
        self._has_left = self.runtime.wake_event()
        # The relay logs that Redis is unreachable.
        self._outage = Outage(
            _log,
            unreachable="",
            refused="Redis refused",
            recovered="",
            first_s=BACKOFF_FIRST_S,
            limit_s=BACKOFF_LIMIT_S,
        )
        self._counters = ClusterStatistics()

    async def start(self) -> None:
        """Enter the lease table.

        Raises:
            StoreUnavailable, StoreError: Redis cannot be reached, or refused.
        """
        await self._renew()

    async def run(self) -> None:
        """Renew the lease and act on other nodes, until cancelled or until this node has left."""
        while True:
            if not self.is_healthy():
                await self.runtime.sleep(HEALTH_POLL_INTERVAL_S)
                continue
            try:
                if self._leaves_at_ms:
                    await self._leave()
                    return
                await self._renew()
                await self._act_on_expired()
            except (StoreUnavailable, StoreError) as error:
                await self._pause(error)
            else:
                self._outage.worked("beat")
                due_s = min(self._next_renewal - self.clock(), self.detector.next_due_s())
                await self._wake_event.wait(due_s)

    async def leave(self, at_ms: int, sessions: int, timeout_s: float) -> None:
        """Mark this node as drained and stopped, so that it does not count as dead; `run` returns.

        Args:
            at_ms: when, in Unix milliseconds.
            sessions: number when it began to drain; some may be on other nodes by now.
            timeout_s: for Redis; after it the node stops without a mark and counts as dead.
        """
        self._leaves_at_ms, self._left_behind = at_ms, sessions
        self._next_renewal = -math.inf  # ends a running sweep after its next call
        self._wake_event.set()
        await self._has_left.wait(timeout_s)

    async def _leave(self) -> None:
        me = self.relay.node
        if await self._renew():
            row = LeaseRow(str(self._counters.renewals), str(self._counters.renewals))
            left = row.left_at(self._leaves_at_ms)
            await self._thread.call(lambda: self.table.claim(me, row.text, left.text))
        self._has_left.set()

    def run_soon(self) -> None:
        """Renew immediately, because this node has another id."""
        self._wake_event.set()

    def is_alive(self, node: str) -> bool:
        """Whether another node may be alive."""
        return self.detector.is_alive(node)

    def lease_holders(self) -> set[str]:
        """Return the other nodes that hold a lease."""
        return self.detector.lease_holders() - self.relay.former_ids

    async def _renew(self) -> bool:
        """Renew the lease; False: this id was declared dead."""
        me = self.relay.node
        self._counters.renewals += 1
        description = self.describe()
        if self._leaves_at_ms:
            description |= {"left_ms": self._leaves_at_ms, "sessions": self._left_behind}
        counter, stats = self._counters.renewals, json.dumps(description)
        sweeping = self._sweeping(me)
        self._next_renewal = self.clock() + self._renew_interval_s
        rows = await self._thread.call(lambda: self.table.renew(me, counter, stats, sweeping))
        if rows is None:
            self.relay.mark_fenced(me)
            self._wake_event.set()  # enter the table under the new id immediately
            return False
        self._counters.renewed_at = self.clock()
        self._contact.answered(self._counters.renewed_at)
        traced = {node for writer in self.relay.writers for node in writer.barrier.others}
        self.detector.observe(rows, traced, self.relay.node)
        return True

    def _sweeping(self, me: str) -> list[str]:
        return [each.node for each in self.detector.peers.values() if each.row and each.row.sweeper == me]

    async def _act_on_expired(self) -> None:
        """Fence, claim and sweep nodes whose lease has expired, until the next renewal is due."""
        if not self.detector.may_act():
            return
        expired = self.detector.expired()
        await self._fence(expired)
        claimed = []
        for each in filter(self.detector.is_dead, expired):
            if self.clock() >= self._next_renewal:
                return
            if await self._claim(each):
                claimed.append(each)
        await self._sweep(claimed)

    async def _fence(self, expired: Sequence[PeerNode]) -> None:
        """Fence nodes in each shard in which they are not known to be fenced."""
        now, steps = self.clock(), []
        by_id = {each.node: each for each in expired}
        for each in expired:
            writers = [w for w in self._reachable() if w.shard not in each.shards and w.is_settled(now)]
            steps += [writer.fence_step(each.node) for writer in writers]

        def on_reply(step: Step, reply: Reply) -> None:
            if isinstance(step, Fencing) and reply.status is ReplyStatus.OK:
                silent = by_id[step.other]
                if not silent.shards:
                    self._counters.fenced += 1
                    if silent.has_left:
                        _log.info("lease of departed node expired", peer=silent.node)
                    else:
                        _log.warning("node lease expired, fencing it", peer=silent.node)
                self.detector.fence_seen(silent, step.shard)

        for first in range(0, len(steps), MAX_FENCES_PER_CALL):
            if first and self.clock() >= self._next_renewal:
                return
            await self._perform(steps[first : first + MAX_FENCES_PER_CALL], on_reply)

    async def _claim(self, each: PeerNode) -> bool:
        """Make this node the sweeper of a dead one, if it is not yet; return whether it is."""
        me, row = self.relay.node, each.row
        if row and row.sweeper == me:
            return True
        if row and row.sweeper and not self.detector.is_unowned(each):
            return False
        if not self._can_sweep(each):
            return False  # a sweeper that has to wait would keep all other nodes from sweeping
        wanted = (row or LeaseRow("", NEVER_RENEWED)).claimed_by(me)
        if not await self._thread.call(lambda: self.table.claim(each.node, each.text, wanted.text)):
            return False
        self._counters.certificates += 1
        before = row.sweeper if row else ""
        if before:
            each.ended = None
        if each.has_left:
            _log.info("sweeping sessions of departed node", peer=each.node, previous_sweeper=before)
        else:
            _log.warning("node declared dead, sweeping its sessions", peer=each.node, previous_sweeper=before)
        self.detector.row_claimed(each, wanted)
        return True

    def _can_sweep(self, each: PeerNode) -> bool:
        """Whether the other node is fenced in all reachable shards, and no resync of this one is running."""
        now, writers = self.clock(), self._reachable()
        return bool(writers) and all(w.shard in each.shards and w.is_settled(now) for w in writers)

    def _reachable(self) -> list[ShardWriter]:
        """Return the writers of reachable shards; an unreachable one does not delay the sweep of others."""
        return [writer for writer in self.relay.writers if self.relay.is_reachable(writer)]

    async def _sweep(self, claimed: list[PeerNode]) -> None:
        """Sweep dead nodes in turn, as far as calls are due, until the next renewal is due."""
        failure: StoreError | None = None
        while claimed and (begun := self.clock()) < self._next_renewal:
            each = claimed.pop(0)
            try:
                if await self._sweep_once(each):
                    claimed.append(each)
            except StoreError as error:  # of this node; it must not delay the others
                failure = error
            await self.runtime.sleep(max(SWEEP_PAUSE_S, self.clock() - begun))
        if failure is not None:
            raise failure

    async def _sweep_once(self, each: PeerNode) -> bool:
        """Make one call per shard, or remove a node that was swept; return whether more may be due."""

        def on_reply(step: Step, reply: Reply) -> None:
            self._counters.swept_sessions += reply.ended
            if each.ended is not None:
                each.ended += reply.ended
            each.offline += sum(count.n for count in reply.event_counts if count.type == "offline")
            self.relay.transitions.count_events(reply.event_counts)
            self.detector.sweep_answered(each, step.shard, reply)

        if steps := self._next_sweeps(each):
            await self._perform(steps, on_reply)
            return True
        if not self.detector.is_swept(each, len(self.relay.writers)):
            return False
        stats = await self._thread.call(lambda: self.table.remove(each.node, each.text))
        if stats is not None:
            self._counters.swept += 1
            for writer in self.relay.writers:
                writer.barrier.peer_gone(each.node)
            event = "sweep of departed node finished" if each.has_left else "sweep of dead node finished"
            _log.info(
                event, peer=each.node, users_offline=each.offline, returned=_returned(stats, each.ended)
            )
        return False

    def _next_sweeps(self, each: PeerNode) -> list[Step]:
        end_ms = each.row.lease_end_ms if each.row else 0
        latest_ms = max(0, end_ms - self._lease_ms)
        now = self.clock()
        steps: list[Step] = []
        for writer in self._reachable():
            sweep = self.detector.due_sweep(each, writer.shard)
            if sweep is not None and writer.is_settled(now):
                waited_ms = int(self.detector.waited_s(sweep) * 1000)
                steps.append(writer.sweep_step(each.node, sweep.cursor, waited_ms, latest_ms))
        return steps

    async def _perform(self, steps: Sequence[Step], on_reply: Callable[[Step, Reply], None]) -> None:
        """Perform steps and handle each answer.

        Raises:
            StoreError: one or more were refused.
            StoreUnavailable: none was answered.
        """
        answers = await self._thread.call(lambda: self.store.apply(steps))
        failures = [answer for answer in answers if not isinstance(answer, Reply)]
        for step, answer in zip(steps, answers, strict=True):
            if isinstance(answer, Reply):
                on_reply(step, answer)
        refusal = next((each for each in failures if isinstance(each, StoreError)), None)
        if refusal or len(failures) == len(steps):
            raise refusal or failures[0]

    async def _pause(self, error: StoreUnavailable | StoreError) -> None:
        self._counters.errors += 1
        self._counters.last_error = str(error)
        await self.runtime.sleep(self._outage.failed("beat", error))

    def _interrupt(self) -> None:
        self.store.close()
        self.table.close()

    def statistics(self) -> ClusterStatistics:
        """Return the counters as they are now."""
        return replace(self._counters, nodes=len(self.detector.peers))


def _returned(stats: str, ended: int | None) -> int | None:
    """Return how many sessions of a node had reconnected elsewhere when it was swept; None: not known."""
    try:
        sessions = json.loads(stats).get("sessions")
    except (ValueError, RecursionError, AttributeError):  # not what this version writes
        return None
    return max(0, sessions - ended) if isinstance(sessions, int) and ended is not None else None
