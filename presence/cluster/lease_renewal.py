"""The task that renews this node's lease, and has dead nodes fenced and swept.

At a fixed interval, and only from a healthy event loop, it renews the lease and reads those of all nodes.
A node whose counter has not changed for

* the lease is fenced in each shard: all its further steps are refused. If it is alive, it notices, takes a
  new id and registers its sessions under it;
* lease + T gets a dead marker, which refuses its renewals and names its sweeper;
* lease + T, and was fenced T ago in a shard that has lost no data since, is swept there. The sessions that
  its id still owns end as `node_down`, in bounded calls with pauses between them. A client that has
  reconnected has a session under another id, which is not affected.

The sweeper advances the dead marker while it works. If it stops, another node takes over by the same rule.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import structlog

from presence.cluster.cluster_counters import ClusterCounters
from presence.cluster.failure_detector import ContactClock, FailureDetector
from presence.cluster.lease_table import LeaseRow, LeaseTable
from presence.cluster.sweeper import Sweeper
from presence.common.circuit_breaker import BACKOFF_FIRST_S, BACKOFF_LIMIT_S
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.histogram import LatencyHistograms
from presence.common.outage import Outage
from presence.common.runtime import Runtime, TimedCaller, TrioRuntime
from presence.outbox.relay import Relay
from presence.outbox.store import Store

RENEWALS_PER_LEASE: Final = 8  # a death is noticed late by at most one interval
HEALTH_POLL_INTERVAL_S: Final = 0.02  # after a pause: until connections were read and a tick was made

_log = structlog.get_logger(__name__)


class LeaseRenewal:
    """Keeps this node's lease, and has others fenced and swept.

    Args:
        relay: has this node's id, and its state in each shard.
        table: the leases.
        store: for fences and sweeps; another connection than the relay's.
        lease_s: see the module.
        idle_timeout_s: T.
        is_healthy: whether connections are read and the ticker runs. If not, the lease must expire.
        describe: returns the statistics of this node for `presence nodes`; JSON values.
        clock: monotonic seconds.
        runtime: where its task runs.
        latencies: observes the duration of calls; None: nothing does.

    Attributes:
        on_entered: called when this node has come into the table of leases, at the start or because Redis had
            lost it: what was announced to the nodes in the table before then was not announced to this one.
    """

    def __init__(
        self,
        relay: Relay,
        table: LeaseTable,
        store: Store,
        *,
        lease_s: float,
        idle_timeout_s: float,
        is_healthy: Callable[[], bool],
        describe: Callable[[], dict[str, Any]],
        clock: Callable[[], float] = time.monotonic,
        runtime: Runtime | None = None,
        latencies: LatencyHistograms | None = None,
    ) -> None:
        runtime = runtime or TrioRuntime()
        self._relay = relay
        self._table = table
        self._is_healthy = is_healthy
        self._describe = describe
        self._clock = clock
        self._runtime = runtime
        self._caller = TimedCaller(
            runtime.loop_caller(), (latencies or LatencyHistograms()).redis_call, clock
        )
        self._wake_event = runtime.wake_event()
        self.on_entered: Callable[[], None] = lambda: None
        self._renewal_interval_s = lease_s / RENEWALS_PER_LEASE
        self._next_renewal = -math.inf
        self._contact = ContactClock(2 * self._renewal_interval_s)
        self._detector = FailureDetector(lease_s, idle_timeout_s, self._contact)
        self._leaves_at_ms = self._left_behind = 0  # once it leaves
        self._has_left = runtime.wake_event()
        # The relay logs that Redis is unreachable.
        self._outage = Outage(
            _log,
            unreachable="",
            refused="Redis refused",
            failed_otherwise="Redis refused",
            recovered="",
            first_s=BACKOFF_FIRST_S,
            limit_s=BACKOFF_LIMIT_S,
        )
        self._counters = ClusterCounters()
        self._sweeper = Sweeper(
            relay,
            self._detector,
            table,
            store,
            caller=self._caller,
            counters=self._counters,
            lease_ms=round(lease_s * 1000),
            is_renewal_due=lambda: clock() >= self._next_renewal,
            clock=clock,
            runtime=runtime,
        )

    async def start(self) -> None:
        """Enter the lease table.

        Raises:
            StoreUnavailable, StoreError: Redis cannot be reached, or refused.
        """
        await self._renew()

    async def run(self) -> None:
        """Renew the lease and act on other nodes, until cancelled or until this node has left."""
        while True:
            if not self._is_healthy():
                await self._runtime.sleep(HEALTH_POLL_INTERVAL_S)
                continue
            try:
                if self._leaves_at_ms:
                    await self._leave()
                    return
                await self._renew()
                await self._sweeper.act_on_expired()
            except (StoreUnavailable, StoreError) as error:
                await self._pause(error)
            else:
                self._outage.worked("renew")
                due_s = min(self._next_renewal - self._clock(), self._detector.next_due_s())
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
        me = self._relay.node
        if await self._renew():
            row = LeaseRow(str(self._counters.renewals), str(self._counters.renewals))
            left = row.left_at(self._leaves_at_ms)
            await self._caller.call(lambda: self._table.claim(me, row.text, left.text))
        self._has_left.set()

    def run_soon(self) -> None:
        """Renew immediately, because this node has another id."""
        self._wake_event.set()

    def is_alive(self, node: str) -> bool:
        """Whether another node may be alive."""
        return self._detector.is_alive(node)

    def lease_holders(self) -> set[str]:
        return self._detector.lease_holders() - self._relay.former_ids

    def live_nodes(self) -> int:
        """Return how many nodes hold a lease, this one included, as far as it knows."""
        return 1 + len(self.lease_holders())

    async def _renew(self) -> bool:
        """Renew the lease; False: this id was declared dead."""
        me = self._relay.node
        self._counters.renewals += 1
        description = self._describe()
        if self._leaves_at_ms:
            description |= {"left_ms": self._leaves_at_ms, "sessions": self._left_behind}
        counter, stats = self._counters.renewals, json.dumps(description)
        sweeping = self._sweeping(me)
        self._next_renewal = self._clock() + self._renewal_interval_s
        rows = await self._caller.call(lambda: self._table.renew(me, counter, stats, sweeping))
        if rows is None:
            self._relay.mark_fenced(me)
            self._wake_event.set()  # enter the table under the new id immediately
            return False
        if rows[me].is_new:
            self.on_entered()
        self._counters.renewed_at = self._clock()
        self._contact.answered(self._counters.renewed_at)
        traced = {node for writer in self._relay.writers for node in writer.gate.peers.traces}
        self._detector.observe(rows, traced, self._relay.node)
        return True

    def _sweeping(self, me: str) -> list[str]:
        return [each.node for each in self._detector.peers.values() if each.row and each.row.sweeper == me]

    async def _pause(self, error: StoreUnavailable | StoreError) -> None:
        self._counters.errors += 1
        self._counters.last_error = str(error)
        await self._runtime.sleep(self._outage.failed("renew", error))

    def statistics(self) -> ClusterCounters:
        return replace(self._counters, nodes=len(self._detector.peers))
