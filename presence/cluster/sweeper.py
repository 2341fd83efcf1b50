"""Fencing and sweeping of nodes whose lease has expired; the head of `lease_renewal.py` has the rules.

The sessions of a dead node end in bounded calls, with pauses of at least `SWEEP_PAUSE_S` between them, and as
long as the last call took: half of Redis' time at most. A sweep is interrupted when a renewal is due.

A sweep follows an index, `node:<id>:sessions`, to which `traces` leads. If either is lost, as by hand, a
sweep finds nothing, which does not prove that there is nothing. So the node with the lowest id also walks
over the users online, slowly and without end, and restores what the index lacks. A dead node that has traces
again is fenced and swept like any other.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from presence.cluster.cluster_counters import ClusterCounters
from presence.cluster.failure_detector import NEVER_RENEWED, FailureDetector, PeerNode
from presence.cluster.lease_table import LeaseRow, LeaseTable
from presence.common.errors import StoreError
from presence.common.runtime import Runtime, TimedCaller
from presence.outbox.relay import Relay
from presence.outbox.replies import Reply, ReplyStatus
from presence.outbox.shard_writer import ShardWriter
from presence.outbox.steps import Fencing, Step
from presence.outbox.store import Store

SWEEP_PAUSE_S: Final = 0.010  # least pause between two calls; otherwise as long as the last call took
REINDEX_INTERVAL_S: Final = 1.0  # between two calls of the walk
# A call, some 2 ms of Redis: a million users online take some 33 minutes. Fewer if their records are large.
REINDEX_USERS: Final = 512
MAX_FENCES_PER_CALL: Final = 64  # some milliseconds of Redis: many dead nodes must not delay a renewal

_log = structlog.get_logger(__name__)


class ReindexingWalk:
    """The place of a walk over the users online of all shards, one shard after the other.

    Attributes:
        shard, cursor: where the next call continues.
    """

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self.shard = 0
        self.cursor = "0"
        self._found: set[str] = set()  # unreadable in the present walk over the present shard
        # By shard, users whose records were unreadable in the last walk, and those who were reported.
        self._unreadable: dict[int, set[str]] = {}
        self._reported: dict[int, set[str]] = {}

    def answered(self, cursor: str, unreadable: Iterable[str]) -> list[str]:
        """Continue after an answer; return users to report, whose records stayed unreadable for a walk.

        Until then the nodes of their sessions may repair them. Each is reported once.
        """
        self.cursor = cursor
        self._found.update(unreadable)
        if cursor != "0":
            return []
        shard, found = self.shard, self._found
        stayed = found & self._unreadable.get(shard, set())
        new = stayed - self._reported.get(shard, set())
        self._unreadable[shard], self._reported[shard] = found, stayed
        self.skip_shard()
        return sorted(new)

    def skip_shard(self) -> None:
        self.shard, self.cursor, self._found = (self.shard + 1) % self._shards, "0", set()


class Sweeper:
    """Fences nodes whose lease has expired, and sweeps those that are dead.

    Args:
        relay: has this node's id, and its state in each shard.
        detector: the other nodes as this one sees them.
        table: the leases.
        store: for fences and sweeps; another connection than the relay's.
        caller: calls Redis.
        counters: counts what this sweeper does.
        lease_ms: duration of a lease.
        is_renewal_due: whether the present work must end.
        clock: monotonic seconds.
        runtime: where its task runs.
    """

    def __init__(
        self,
        relay: Relay,
        detector: FailureDetector,
        table: LeaseTable,
        store: Store,
        *,
        caller: TimedCaller,
        counters: ClusterCounters,
        lease_ms: int,
        is_renewal_due: Callable[[], bool],
        clock: Callable[[], float],
        runtime: Runtime,
    ) -> None:
        self._relay = relay
        self._detector = detector
        self._table = table
        self._store = store
        self._caller = caller
        self._counters = counters
        self._lease_ms = lease_ms
        self._is_renewal_due = is_renewal_due
        self._clock = clock
        self._runtime = runtime
        self._walk = ReindexingWalk(len(relay.writers))
        self._reindexed_at = -math.inf

    async def act_on_expired(self) -> None:
        """Fence, claim and sweep nodes whose lease has expired, until the next renewal is due."""
        for writer in self._relay.writers:
            self._detector.forget_lost_fences(writer.shard, writer.rollbacks)
        if not self._detector.may_act():
            return
        expired = self._detector.expired()
        await self._fence(expired)
        claimed = []
        for each in filter(self._detector.is_dead, expired):
            if self._is_renewal_due():
                return
            if await self._claim(each):
                claimed.append(each)
        await self._sweep(claimed)
        await self._reindex()

    async def _reindex(self) -> None:
        """Make the next call of the walk over the users online, if it is due and this node's task."""
        now, node = self._clock(), self._relay.node
        is_due = now - self._reindexed_at >= REINDEX_INTERVAL_S and not self._is_renewal_due()
        if not is_due or any(other < node for other in self._detector.lease_holders()):
            return
        self._reindexed_at = now
        writer = self._relay.writers[self._walk.shard]
        if not self._relay.is_reachable(writer) or not writer.is_settled(now):
            self._walk.skip_shard()
            return

        def on_reply(_step: Step, reply: Reply) -> None:
            if reply.status is not ReplyStatus.OK:
                return  # this node needs a resync, which its relay will find out
            if reply.restored:
                self._counters.reindexed_sessions += reply.restored
                _log.error("index of sessions restored", shard=writer.shard, sessions=reply.restored)
            if damaged := self._walk.answered(reply.cursor, reply.damaged):
                _log.error("records unreadable in Redis", shard=writer.shard, uids=damaged)

        try:
            await self._perform([writer.reindex_step(self._walk.cursor, REINDEX_USERS)], on_reply)
        except StoreError:
            self._walk.skip_shard()  # it must not keep the walk from the others
            raise

    async def _fence(self, expired: Sequence[PeerNode]) -> None:
        """Fence nodes in each shard in which they are not known to be fenced."""
        now, steps = self._clock(), []
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
                self._detector.fence_seen(silent, step.shard, self._relay.writers[step.shard].rollbacks)

        for first in range(0, len(steps), MAX_FENCES_PER_CALL):
            if first and self._is_renewal_due():
                return
            await self._perform(steps[first : first + MAX_FENCES_PER_CALL], on_reply)

    async def _claim(self, each: PeerNode) -> bool:
        """Make this node the sweeper of a dead one, if it is not yet; return whether it is."""
        me, row = self._relay.node, each.row
        if row and row.sweeper == me:
            return True
        if row and row.sweeper and not self._detector.is_unowned(each):
            return False
        if not self._can_sweep(each):
            return False  # a sweeper that has to wait would keep all other nodes from sweeping
        wanted = (row or LeaseRow("", NEVER_RENEWED)).claimed_by(me)
        if not await self._caller.call(lambda: self._table.claim(each.node, each.text, wanted.text)):
            return False
        self._counters.dead_markers += 1
        before = row.sweeper if row else ""
        if before:
            each.ended = None
        if each.has_left:
            _log.info("sweeping sessions of departed node", peer=each.node, previous_sweeper=before)
        else:
            _log.warning("node declared dead, sweeping its sessions", peer=each.node, previous_sweeper=before)
        self._detector.row_claimed(each, wanted)
        return True

    def _can_sweep(self, each: PeerNode) -> bool:
        """Whether the other node is fenced in all reachable shards, and no resync of this one is running."""
        now, writers = self._clock(), self._reachable()
        return bool(writers) and all(w.shard in each.shards and w.is_settled(now) for w in writers)

    def _reachable(self) -> list[ShardWriter]:
        """Return the writers of reachable shards; an unreachable one does not delay the sweep of others."""
        return [writer for writer in self._relay.writers if self._relay.is_reachable(writer)]

    async def _sweep(self, claimed: list[PeerNode]) -> None:
        """Sweep dead nodes in turn, as far as calls are due, until the next renewal is due."""
        failure: StoreError | None = None
        while claimed and not self._is_renewal_due():
            begun, each = self._clock(), claimed.pop(0)
            try:
                if await self._sweep_once(each):
                    claimed.append(each)
            except StoreError as error:  # of this node; it must not delay the others
                failure = error
            await self._runtime.sleep(max(SWEEP_PAUSE_S, self._clock() - begun))
        if failure is not None:
            raise failure

    async def _sweep_once(self, each: PeerNode) -> bool:
        """Make one call per shard, or remove a node that was swept; return whether more may be due."""

        def on_reply(step: Step, reply: Reply) -> None:
            self._counters.swept_sessions += reply.ended
            if each.ended is not None:
                each.ended += reply.ended
            each.offline += sum(count.n for count in reply.event_counts if count.type == "offline")
            self._relay.transitions.count_events(reply.event_counts)
            self._detector.sweep_answered(each, step.shard, reply)

        if steps := self._next_sweeps(each):
            await self._perform(steps, on_reply)
            return True
        if not self._detector.is_swept(each, len(self._relay.writers)):
            return False
        stats = await self._caller.call(lambda: self._table.remove(each.node, each.text))
        if stats is not None:
            self._counters.swept += 1
            for writer in self._relay.writers:
                writer.gate.peers.forget(each.node)
            event = "sweep of departed node finished" if each.has_left else "sweep of dead node finished"
            _log.info(
                event, peer=each.node, users_offline=each.offline, returned=_returned(stats, each.ended)
            )
        return False

    def _next_sweeps(self, each: PeerNode) -> list[Step]:
        end_ms = each.row.lease_end_ms if each.row else 0
        latest_ms = max(0, end_ms - self._lease_ms)
        now = self._clock()
        steps: list[Step] = []
        for writer in self._reachable():
            sweep = self._detector.due_sweep(each, writer.shard)
            if sweep is not None and writer.is_settled(now):
                waited_ms = int(self._detector.waited_s(sweep) * 1000)
                steps.append(writer.sweep_step(each.node, sweep.cursor, waited_ms, latest_ms))
        return steps

    async def _perform(self, steps: Sequence[Step], on_reply: Callable[[Step, Reply], None]) -> None:
        """Perform steps and handle each answer.

        Raises:
            StoreError: one or more were refused.
            StoreUnavailable: none was answered.
        """
        answers = await self._caller.call(lambda: self._store.apply(steps))
        failures = [answer for answer in answers if not isinstance(answer, Reply)]
        for step, answer in zip(steps, answers, strict=True):
            if isinstance(answer, Reply):
                on_reply(step, answer)
        refusal = next((each for each in failures if isinstance(each, StoreError)), None)
        if refusal or len(failures) == len(steps):
            raise refusal or failures[0]


def _returned(stats: str, ended: int | None) -> int | None:
    """Return how many sessions of a node had reconnected elsewhere when it was swept; None: not known."""
    try:
        sessions = json.loads(stats).get("sessions")
    except (ValueError, RecursionError, AttributeError):  # not what this version writes
        return None
    return max(0, sessions - ended) if isinstance(sessions, int) and ended is not None else None
