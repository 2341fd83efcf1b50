"""The task that moves changes from the outbox to Redis.

Redis is called one call at a time; other tasks run while a call waits. A round

1. probes all shards every few seconds, and those that failed once their pause is over;
2. compares some sessions with their records now and then (see `reconciler`);
3. sends the next step of every shard's writer in one call. Before a generation is opened, the metadata are
   checked. Ends go only to a shard that has just answered, when its gate lets them (see `end_gate`);
4. closes circuit breakers, logs, and waits until there is enough to send.

A failed step is sent again after a pause; no change is ever dropped for a failure. An answer that a retry may
not cure is logged as an error, once until it changes, and retried too.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import structlog

from presence.common.backoff import jittered
from presence.common.circuit_breaker import CircuitBreaker
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.histogram import LatencyHistograms
from presence.common.runtime import Runtime, TimedCaller, TrioRuntime
from presence.core.changes import Op
from presence.outbox.backlog import Live
from presence.outbox.batches import BATCH_ITEMS
from presence.outbox.event_counts import Transitions
from presence.outbox.outage_log import Failures, Outages, first_of
from presence.outbox.queue import Outbox
from presence.outbox.reconciler import LocalSessions, ReconcilerTask
from presence.outbox.replies import NodeNotice, Probe, Reply, ReplyStatus, Superseded
from presence.outbox.shard_writer import ShardWriter
from presence.outbox.steps import Batch, Retirement
from presence.outbox.store import Store

# From one call to the next, or until so many changes have gathered, so calls are few, and short for Redis
# and for the event loop. After a pause a change is sent immediately.
GATHER_ITEMS: Final = 256
GATHER_S: Final = 0.200
# On a node whose clients watch others, a few changes are kept waiting for half of that only, because people
# may be looking. So it makes ten calls a second at most instead of five, and a busier node as many as before.
SHORT_GATHER_S: Final = GATHER_S / 2
FEW_ITEMS: Final = 4
PROMPT_S: Final = 0.01  # to read an answer that has arrived
PROBE_INTERVAL_S: Final = 2.5  # a loss of data in Redis is detected within it
SETTLING_PROBE_INTERVAL_S: Final = 0.5  # while ends are held back until peers have registered
_DRAIN_POLL_INTERVAL_S: Final = 0.02

_log = structlog.get_logger(__name__)

PlannedStep: TypeAlias = tuple[ShardWriter, Batch | Retirement]


@dataclass(frozen=True, slots=True)
class RelayCallbacks:
    """Called with the decisions of Redis about this node's sessions; none may block."""

    # sessions whose registration lost to another node's session
    superseded: Callable[[Sequence[Superseded]], None]
    # notices of other nodes and operators about sessions of this node, each at least once
    notices: Callable[[Sequence[NodeNotice]], None]
    new_node_id: Callable[[], str]  # returns a new id, after this node was fenced
    # Redis has first answered, has lost writes, or is another server now: subscriptions may be with another
    redis_changed: Callable[[], None] = lambda: None


@dataclass(slots=True)
class RelayStatistics:
    """Counters since the start, and the present state."""

    node: str = ""  # the node's present id
    batches: int = 0  # batches acknowledged
    items: int = 0  # items in them, including registrations of a resync
    retries: int = 0  # rounds that failed and were repeated
    resyncs: int = 0  # resyncs of single shards
    differences: int = 0  # sessions that differed from their records
    errors: int = 0  # answers that a retry may not cure
    last_error: str = ""  # the last failure's text; "" if there was none
    connected: bool = False  # whether every shard answers
    away_since: float | None = None  # monotonic seconds since when a shard does not; None while connected
    backlog: int = 0  # pending changes of all shards: queued, in flight or held


class Relay:
    """Moves changes from the outbox to the store.

    Args:
        outbox: the changes; the relay is its only reader.
        store: Redis.
        node: this node's first id.
        live: see `Live`.
        callbacks: see `RelayCallbacks`.
        local_sessions: compared with the records, some at a time.
        is_alive, lease_holders: what is known of other nodes; see `ShardPeers`.
        clock: monotonic seconds, the clock of `Change.at`.
        runtime: where its task runs.
        latencies: observes the duration of calls.

    Attributes:
        node: the node's present id.
        former_ids: earlier ids of this node.
        writers: by shard.
        transitions: counts of the events that Redis has written for this node.
        is_hurried: whether a few changes gather for `SHORT_GATHER_S` only.
    """

    def __init__(
        self,
        outbox: Outbox,
        store: Store,
        *,
        node: str,
        live: Live,
        callbacks: RelayCallbacks,
        local_sessions: LocalSessions,
        is_alive: Callable[[str], bool] = lambda _node: True,
        lease_holders: Callable[[], Iterable[str]] = tuple,
        clock: Callable[[], float] = time.monotonic,
        runtime: Runtime | None = None,
        latencies: LatencyHistograms | None = None,
    ) -> None:
        self.outbox = outbox
        self.store = store
        self.node = node
        self.callbacks = callbacks
        self.clock = clock
        self.runtime = runtime or TrioRuntime()
        self.transitions = Transitions()
        self.is_hurried: Callable[[], bool] = lambda: False
        self.former_ids: set[str] = set()
        self.writers = [
            ShardWriter(
                shard,
                node,
                outbox,
                live,
                is_alive=is_alive,
                lease_holders=lease_holders,
                transitions=self.transitions,
            )
            for shard in range(outbox.shards)
        ]
        self._caller = TimedCaller(
            self.runtime.loop_caller(), (latencies or LatencyHistograms()).redis_call, clock
        )
        self._wake_event = self.runtime.wake_event()
        self._reconciler = ReconcilerTask(
            outbox, store, self._caller, local_sessions, node=lambda: self.node, clock=clock
        )
        self._breakers = [CircuitBreaker() for _ in self.writers]  # by shard
        self._ends_due_at: dict[int, float] = {}  # by shard whose next step waits because it has ends
        self._probed_at = self._sent_at = -math.inf  # when all shards were probed, and steps sent, last
        self._lingered_s = 0.0  # in the last call
        self._outages = Outages()
        self._counters = RelayStatistics()

    async def start(self) -> None:
        """Make the first contact: check the data's version and shards, and probe.

        A node starts even if some shards are unreachable, as during a failover.

        Raises:
            StoreUnavailable: Redis cannot be reached.
            StoreMismatch: its data has another version or number of shards.
            StoreError: it answered with another error.
        """
        shards = range(len(self.writers))
        await self._caller.call(lambda: self.store.check_meta(shards))
        failures = await self._probe(self.writers)
        if len(failures) == len(self.writers) or any(isinstance(each, StoreError) for each in failures):
            raise first_of(failures)
        self._end_round(failures)

    async def run(self) -> None:
        """Move changes until cancelled."""
        while True:
            now = self.clock()
            failures = await self._probe(self._due_probes(now))
            failures += await self._reconciler.compare(self._reachable, PROBE_INTERVAL_S)
            failures += await self._exchange()
            self._end_round(failures)
            await self._wait_for_work()

    def _end_round(self, failures: Failures) -> None:
        """Close the breakers of shards that have answered all calls of a round, and log what has changed."""
        recovered = sum([breaker.confirm_recovery() for breaker in self._breakers])
        unavailable_since = [
            breaker.unavailable_since for breaker in self._breakers if breaker.unavailable_since is not None
        ]
        self._outages.record_round(
            failures, unavailable_since, recovered, now=self.clock(), pending=self.outbox.pending
        )

    async def drain(self, timeout_s: float) -> int:
        """Wait, while `run` runs, until Redis has all changes; return how many are left after `timeout_s`."""
        deadline = self.clock() + timeout_s
        while self.outbox.pending and self.clock() < deadline:
            await self.runtime.sleep(_DRAIN_POLL_INTERVAL_S)
        return self.outbox.pending

    def is_reachable(self, writer: ShardWriter) -> bool:
        """Whether a shard is reachable, as far as this task knows."""
        return self._breakers[writer.shard].is_available

    @property
    def is_fenced(self) -> bool:
        """Whether this node was fenced, and some sessions are not registered again yet."""
        return any(writer.lost_to_fence and self.is_reachable(writer) for writer in self.writers)

    def mark_fenced(self, node: str) -> None:
        """Give up the id `node`, if it is still this node's: other nodes have fenced it."""
        if node == self.node:
            self._take_new_id()
            self._wake_event.set()

    def _due_probes(self, now: float) -> list[ShardWriter]:
        """Return the writers whose shards are to be probed: all that answer, and those whose retry is due."""
        to_retry = [writer for writer in self.writers if self._breakers[writer.shard].is_due(now)]
        if now < self._next_probe(now):
            return to_retry
        self._probed_at = now
        return to_retry + [
            writer for writer in self.writers if self._breakers[writer.shard].unavailable_since is None
        ]

    async def _probe(self, writers: Sequence[ShardWriter]) -> Failures:
        """Probe some shards; their gates hold back ends after a longer outage."""
        if not writers:
            return []
        node, read = self.node, {writer.shard: writer.inbox_read for writer in writers}
        sent_at = self.clock()
        probes = await self._caller.call(lambda: self.store.probe(node, read))
        now = self.clock()
        notices: list[NodeNotice] = []
        failures: Failures = []
        failed: list[ShardWriter] = []
        for writer in writers:
            probe = probes[writer.shard]
            if not isinstance(probe, Probe):
                failures.append(probe)
                failed.append(writer)
                continue
            if node == self.node:  # else the id was given up meanwhile
                notices += writer.accept_probe(probe, now)
                if probe.has_missed(read[writer.shard]):
                    self._reconciler.run_soon()
            self._answered(writer, sent_at, now)
        self._failed(failed, sent_at)
        if notices:
            self.callbacks.notices(notices)
        return failures

    def _next_probe(self, now: float) -> float:
        settling = any(writer.is_settling(now) for writer in self._reachable())
        return self._probed_at + (SETTLING_PROBE_INTERVAL_S if settling else PROBE_INTERVAL_S)

    def _answered(self, writer: ShardWriter, sent_at: float, now: float) -> None:
        """Record the answer of a shard, after its content."""
        breaker = self._breakers[writer.shard]
        writer.answered(sent_at, now, breaker.unavailable_since)
        breaker.record_answer()

    def _failed(self, writers: Sequence[ShardWriter], sent_at: float) -> None:
        """Record the failure of a call; shards that are reachable were held up by it."""
        now, share = self.clock(), jittered(1.0)
        is_shared = any(writer not in writers for writer in self._reachable())
        for writer in writers:
            self._breakers[writer.shard].record_failure(sent_at, now, share, held_up=is_shared)

    def _reachable(self) -> list[ShardWriter]:
        return [writer for writer in self.writers if self._breakers[writer.shard].is_available]

    async def _exchange(self) -> Failures:
        """Send the next step of every shard, if it may be sent, and handle the answers."""
        if any(writer.is_fenced for writer in self.writers):
            self._take_new_id()
        node = self.node
        planned = await self._plan()
        planned_at = self.clock()
        opening = [writer for writer, step in planned if _is_opening(step)]
        failures = await self._check_before_opening(opening)
        now = self.clock()
        # If a server hung, an end sent now could be handled before logins that were pending on peers.
        unsure = [writer for writer, step in planned if not writer.gate.is_fresh(now) and _has_end(step)]
        failures += await self._probe(unsure)
        if unsure:
            planned = await self._plan()
        planned = self._without_early_ends(planned, planned_at, unsure)
        planned = [(w, step) for w, step in planned if not _is_opening(step) or self._may_open(w, opening)]
        if not planned or node != self.node:  # the id was given up meanwhile: the plan is void
            return failures
        return failures + await self._send(planned)

    async def _send(self, planned: list[PlannedStep]) -> Failures:
        """Send steps in one call, and handle the answers."""
        node, steps, sent_at = self.node, [step for _, step in planned], self.clock()
        self._sent_at, self._lingered_s = sent_at, 0.0
        # Ends that wait for other nodes would wait for the answer, too.
        is_usual = not self._ends_due_at and all(w.is_steady and not _is_full(s) for w, s in planned)
        answers = await self._caller.call(lambda: self.store.apply(steps), self._linger if is_usual else None)
        answered_at = self.clock()
        if answered_at - self._lingered_s - sent_at < PROMPT_S:
            # The answer came while changes gathered, perhaps immediately: the gate must not take that time
            # for a shard that hung.
            answered_at = sent_at
        superseded: list[Superseded] = []
        failures: Failures = []
        failed: list[ShardWriter] = []
        losses = sum(writer.losses for writer in self.writers)
        is_changed = False
        for (writer, step), answer in zip(planned, answers, strict=True):
            if not isinstance(answer, Reply):
                failures.append(answer)
                failed.append(writer)
                writer.answer_lost()
                continue
            if node == self.node:  # else the opening under the new id will tell what was applied
                before = writer.rollbacks, writer.replication_id
                superseded += writer.accept_reply(step, answer)
                is_changed = is_changed or (writer.rollbacks, writer.replication_id) != before
                if isinstance(step, Batch) and answer.status is ReplyStatus.OK:
                    self._counters.batches += 1
                    self._counters.items += len(step.items)
            self._answered(writer, sent_at, answered_at)
        self._failed(failed, sent_at)
        if lost := sum(writer.losses for writer in self.writers) - losses:
            _log.warning("Redis lost data, registering sessions again", node=self.node, shards=lost)
        if superseded:
            self.callbacks.superseded(superseded)
        if is_changed:
            self.callbacks.redis_changed()
        return failures

    async def _linger(self) -> None:
        """Let changes gather before an answer is read: one wake for it and for the next batch.

        `Caller.call` awaits it at most once, when the call has been sent.
        """
        began = self.clock()
        await self._gather(self._stuck(), began + SHORT_GATHER_S, began + GATHER_S)
        self._lingered_s = self.clock() - began

    async def _gather(self, stuck: int, short_until: float, until: float) -> None:
        """Wait until many changes are queued, or, if hurried, a few from `short_until` on.

        Args:
            stuck: queued changes that do not count.
        """
        self.outbox.notify_at(stuck + GATHER_ITEMS, self._wake_event.set)
        is_hurried = self.is_hurried()
        woken = await self._wake_event.wait((short_until if is_hurried else until) - self.clock())
        if is_hurried and not woken and self.clock() < until:
            is_busy = self.outbox.queued_total - stuck > FEW_ITEMS
            self.outbox.notify_at(stuck + (GATHER_ITEMS if is_busy else 1), self._wake_event.set)
            await self._wake_event.wait(until - self.clock())
        self.outbox.notify_at(0, self._wake_event.set)

    def _stuck(self) -> int:
        """Return the number of queued changes that cannot be sent, because their shards are unreachable."""
        return sum(self.outbox.queued(each.shard) for each in self.writers if not self.is_reachable(each))

    async def _plan(self) -> list[PlannedStep]:
        """Return the next step of each reachable shard; the same again until it was sent and answered."""
        now = self.clock()
        planned: list[PlannedStep] = []
        for writer in self._reachable():
            writer.prepare_step(now)
            step = writer.next_step(now)
            if step is not None:
                planned.append((writer, step))
            # A slice of a plan takes milliseconds, and the next one follows; so do many shards' batches.
            if writer.needs_another_slice or (step is not None and len(self.writers) > 1):
                await self.runtime.sleep(0)
        return planned

    def _without_early_ends(
        self, planned: list[PlannedStep], planned_at: float, probed: Sequence[ShardWriter]
    ) -> list[PlannedStep]:
        """Return the steps that need not wait because of their ends; note when the others are due.

        A step waits once. When this task is late, its shard may have been quiet so long that the gate asks
        for another wait; but the one that was over when the step was planned has served its purpose.

        Calls about other shards may have hung since a shard answered. Then its ends are for the next round,
        which probes it first.

        Args:
            planned: all steps.
            planned_at: when they were planned first, before any probe.
            probed: the shards that were probed since.
        """
        now = self.clock()
        planned = [
            (writer, step)
            for writer, step in planned
            if writer in probed or writer.gate.is_fresh(now) or not _has_end(step)
        ]
        have_waited = {shard for shard, due_at in self._ends_due_at.items() if due_at <= planned_at}
        self._ends_due_at = {
            writer.shard: due_at
            for writer, step in planned
            if (due_at := writer.gate.ends_due_at(now)) > now
            and writer.shard not in have_waited
            and _has_end(step)
        }
        return [each for each in planned if each[0].shard not in self._ends_due_at]

    async def _check_before_opening(self, writers: list[ShardWriter]) -> Failures:
        """Check the metadata before openings, because a Redis that lost its data lost it too.

        A probe that finds another state takes the opening away from its writer: then `_may_open` is false.
        """
        if not writers:
            return []
        shards = [writer.shard for writer in writers]
        try:
            await self._caller.call(lambda: self.store.check_meta(shards))
        except StoreUnavailable:
            pass  # it may be on another server than these shards; the comparison checks it later
        except StoreError as error:
            self._failed(writers, self.clock())
            return [error]
        # A node that slept for days asks before it registers what it knows.
        return await self._probe([writer for writer in writers if writer.has_opened])

    def _may_open(self, writer: ShardWriter, checked: Sequence[ShardWriter]) -> bool:
        return writer in checked and self.is_reachable(writer) and writer.is_sending

    def _take_new_id(self) -> None:
        old, self.node = self.node, self.callbacks.new_node_id()
        self.former_ids.add(old)
        _log.warning("fenced by peers, re-registering all sessions", old_node=old, node=self.node)
        for writer in self.writers:
            writer.rename(self.node)

    async def _wait_for_work(self) -> None:
        """Wait until there is something to send and, soon after the last call, a little longer for more."""
        now = self.clock()
        waiting = {shard: at for shard, at in self._ends_due_at.items() if now < at}
        active = [writer for writer in self._reachable() if writer.shard not in waiting]
        if any(writer.is_eager(now) for writer in active):
            return
        due = [at for writer in active if (at := writer.wakes_at(now)) is not None]
        due += waiting.values()
        due += [breaker.retry_at for breaker in self._breakers if not breaker.is_available]
        if not active:
            await self.runtime.sleep(max(0.0, min(due) - now))
            return
        # Changes of a shard that cannot be written to now do not end the wait.
        stuck = sum(self.outbox.queued(writer.shard) for writer in self.writers if writer not in active)
        queued = self.outbox.queued_total - stuck
        gather_s = SHORT_GATHER_S if queued <= FEW_ITEMS and self.is_hurried() else GATHER_S
        if now >= self._sent_at + gather_s and queued > 0:
            await self.runtime.sleep(0)  # the last answer may have taken milliseconds to handle
            return
        self.outbox.notify_at(stuck + 1, self._wake_event.set)
        woken = await self._wake_event.wait(min([self._next_probe(now), *due]) - now)
        until = min([self._sent_at + GATHER_S, *waiting.values()])
        if woken and self.clock() < until:
            await self._gather(stuck, min(self._sent_at + SHORT_GATHER_S, until), until)
        self.outbox.notify_at(0, self._wake_event.set)

    def statistics(self) -> RelayStatistics:
        outages = self._outages
        return replace(
            self._counters,
            node=self.node,
            retries=outages.retries,
            resyncs=sum(writer.resyncs for writer in self.writers),
            differences=self._reconciler.differences,
            errors=outages.errors,
            last_error=outages.last_error,
            connected=outages.since is None,
            away_since=outages.since,
            backlog=self.outbox.pending,
        )


def _is_full(step: Batch | Retirement) -> bool:
    """Whether there may be more to send immediately."""
    return isinstance(step, Retirement) or len(step.items) >= BATCH_ITEMS


def _is_opening(step: Batch | Retirement) -> bool:
    return isinstance(step, Batch) and step.opening is not None


def _has_end(step: Batch | Retirement) -> bool:
    """Whether a step may make a user offline."""
    return isinstance(step, Retirement) or any(item.change.op is Op.END for item in step.items)
