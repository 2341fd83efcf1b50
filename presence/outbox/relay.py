"""The one task that moves changes from the outbox to Redis.

Redis is called in a worker thread, one call at a time, so nothing here delays a client. Each round sends
what every shard's writer has next.

Whatever fails is sent again, after a pause: no change is ever given up. An answer that waiting may not
cure is an error in the log, once until it is another, and is retried all the same.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from typing import Final

import structlog

from presence.common.backoff import jittered
from presence.common.circuit_breaker import CircuitBreaker
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.histogram import LatencyHistograms
from presence.common.runtime import Runtime, TimedCaller, TrioRuntime
from presence.core.changes import Op
from presence.outbox.backlog import Live
from presence.outbox.event_counts import Transitions
from presence.outbox.outage_log import Failures, Outages, first_of
from presence.outbox.queue import Outbox
from presence.outbox.reconciler import LocalSessions, ReconcilerTask
from presence.outbox.replies import NodeNotice, Probe, Reply, Superseded
from presence.outbox.shard_writer import BATCH_ITEMS, ShardWriter
from presence.outbox.steps import Batch, Retirement
from presence.outbox.store import Store

GATHER_S: Final = 0.020  # a change may wait this long for company: nobody notices, and calls become few
LOGOUT_PAUSE_S: Final = 0.004  # logouts do not wait for company; this is the time from one call to the next
PROBE_INTERVAL_S: Final = 2.5  # how long a loss of data in Redis may go unnoticed
SETTLING_PROBE_INTERVAL_S: Final = 0.5  # while others register anew, and ends wait for them
_DRAIN_LOOK_S: Final = 0.02

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RelayCallbacks:
    """Whom the relay tells what Redis decided about this node's sessions; calls that return at once."""

    # sessions that never got their place: another node's goes before
    superseded: Callable[[Sequence[Superseded]], None]
    # what other nodes and operators say about sessions of this node. Each is told at least once.
    news: Callable[[Sequence[NodeNotice]], None]
    new_node_id: Callable[[], str]  # asked for a new id when this node was declared dead


@dataclass(slots=True)
class RelayStatistics:
    """Counters since the start, and how things stand."""

    node: str = ""  # the node's id now
    batches: int = 0  # batches acknowledged
    items: int = 0  # items in them, registrations of a resync included
    retries: int = 0  # rounds that failed and were made again
    resyncs: int = 0  # resyncs of single shards
    differences: int = 0  # sessions that were not on record as they were here, or the other way round
    errors: int = 0  # answers that waiting may not cure
    last_error: str = ""  # the last failure's text; "" if there was none
    connected: bool = False  # whether every shard answers
    away_since: float | None = None  # monotonic seconds since when one does not; None while connected
    backlog: int = 0  # changes that wait or are under way


@dataclass(eq=False, repr=False)
class Relay:
    """Outbox to store.

    Attributes:
        former: ids that this node has had.
        writers: by shard.
        transitions: what Redis has written for this node.
    """

    outbox: Outbox  # the changes; the relay is its only reader
    store: Store  # Redis
    _: KW_ONLY
    node: str  # the node's id now
    live: InitVar[Live]  # registrations (code 2) of all live sessions of a shard
    verdicts: RelayCallbacks  # whom to tell
    memory: InitVar[LocalSessions]  # what of it is compared with the records, a little at a time
    alive: InitVar[Callable[[str], bool]] = lambda _node: True  # whether another node may be at work
    known: InitVar[Callable[[], Iterable[str]]] = tuple  # those that hold a lease; see `PeerBarrier`
    clock: Callable[[], float] = time.monotonic  # monotonic seconds, the clock of `Change.at`
    runtime: Runtime = field(default_factory=TrioRuntime)  # where its task runs
    delays: InitVar[LatencyHistograms | None] = None  # takes how long calls and changes take

    def __post_init__(
        self,
        live: Live,
        memory: LocalSessions,
        alive: Callable[[str], bool],
        known: Callable[[], Iterable[str]],
        delays: LatencyHistograms | None,
    ) -> None:
        self.transitions = Transitions()
        self.former: set[str] = set()
        self.writers = [
            ShardWriter(
                shard, self.node, self.outbox, live, alive=alive, known=known, transitions=self.transitions
            )
            for shard in range(self.outbox.shards)
        ]
        self._thread = TimedCaller(
            self.runtime.caller(self.store.close), (delays or LatencyHistograms()).redis_call, self.clock
        )
        self._bell = self.runtime.bell()
        self._comparing = ReconcilerTask(
            self.outbox, self.store, self._thread, memory, node=lambda: self.node, clock=self.clock
        )
        self._reach = [CircuitBreaker() for _ in self.writers]
        self._ends_at: dict[int, float] = {}  # shards whose next step has ends, which wait until then
        self._probed_at = self._sent_at = -math.inf
        self._outages = Outages(self._reach)
        self._counted = RelayStatistics()

    async def start(self) -> None:
        """Make the first contact: check the data's version and shards, and probe.

        A shard that is away alone, as in a failover, keeps no node from starting.

        Raises:
            StoreUnavailable: Redis cannot be reached.
            StoreMismatch: its data has another version or number of shards.
            StoreError: it answered with another error.
        """
        await self._thread.call(self.store.check_meta)
        failures = await self._probe(self.writers)
        if len(failures) == len(self.writers) or any(isinstance(each, StoreError) for each in failures):
            raise first_of(failures)
        self._outages.note(failures, self.clock(), self.outbox.held)

    async def run(self) -> None:
        """Move changes for ever; cancel it to stop."""
        while True:
            now = self.clock()
            failures = await self._probe(self._due_probes(now))
            failures += await self._comparing.compare(self._reachable, PROBE_INTERVAL_S)
            failures += await self._round()
            self._outages.note(failures, self.clock(), self.outbox.held)
            await self._gather()

    async def drain(self, timeout_s: float) -> int:
        """Wait until every change is in Redis, at most `timeout_s`; return how many are not.

        `run` must be running.
        """
        deadline = self.clock() + timeout_s
        while self.outbox.held and self.clock() < deadline:
            await self.runtime.sleep(_DRAIN_LOOK_S)  # once, at the end
        return self.outbox.held

    def answers(self, writer: ShardWriter) -> bool:
        """Whether a shard is not away, as far as this task has noticed."""
        return self._reach[writer.shard].may_be_sent_to

    @property
    def is_fenced(self) -> bool:
        """Whether other nodes took this one for dead, and some sessions are not registered anew yet."""
        return any(writer.lost_to_fence and self.answers(writer) for writer in self.writers)

    def disown(self, node: str) -> None:
        """Give up the node id `node`, if it is ours: others take it for dead."""
        if node == self.node:
            self._take_new_id()
            self._bell.ring()

    def _due_probes(self, now: float) -> list[ShardWriter]:
        """Return the writers whose shards are to be probed: all that answer, or those to be asked again."""
        away = [writer for writer in self.writers if self._reach[writer.shard].is_due(now)]
        if now < self._next_probe(now):
            return away
        self._probed_at = now
        return away + [writer for writer in self.writers if self._reach[writer.shard].away_since is None]

    async def _probe(self, writers: Sequence[ShardWriter]) -> Failures:
        """See how some shards stand; after a longer outage ends wait for what others have to tell."""
        if not writers:
            return []
        node, read = self.node, {writer.shard: writer.inbox_read for writer in writers}
        sent_at = self.clock()
        probes = await self._thread.call(lambda: self.store.probe(node, read))
        now = self.clock()
        news: list[NodeNotice] = []
        failures: Failures = []
        failed: list[ShardWriter] = []
        for writer in writers:
            probe, reach = probes[writer.shard], self._reach[writer.shard]
            if not isinstance(probe, Probe):
                failures.append(probe)
                failed.append(writer)
                continue
            was_away = reach.answered(sent_at, now)
            if node == self.node:  # else it was given up meanwhile
                news += writer.probed(probe, now)
                if probe.has_missed(read[writer.shard]):
                    self._comparing.hurry()
            if was_away:
                writer.returned(now)
        self._failed(failed, sent_at)
        if news:
            self.verdicts.news(news)
        return failures

    def _next_probe(self, now: float) -> float:
        settling = any(writer.is_settling(now) for writer in self._reachable())
        return self._probed_at + (SETTLING_PROBE_INTERVAL_S if settling else PROBE_INTERVAL_S)

    def _failed(self, writers: Sequence[ShardWriter], sent_at: float) -> None:
        """Note that shards have failed a call; if others are there, these were held up by it."""
        now, share = self.clock(), jittered(1.0)
        is_shared = any(writer not in writers for writer in self._reachable())
        for writer in writers:
            self._reach[writer.shard].failed(sent_at, now, share, held_up=is_shared)

    def _reachable(self) -> list[ShardWriter]:
        return [writer for writer in self.writers if self._reach[writer.shard].may_be_sent_to]

    async def _round(self) -> Failures:
        """Send what every shard has next, if anything, and take the answers."""
        if any(writer.fenced for writer in self.writers):
            self._take_new_id()
        self.outbox.has_logouts = False
        node, planned = self.node, await self._plan()
        # A server that hangs would find an end before what others' logins waited with meanwhile.
        now = self.clock()
        unsure = [w for w, step in planned if _has_end(step) and not self._reach[w.shard].is_fresh(now)]
        # To wait once is enough, however late this task is.
        waited = {shard for shard, at in self._ends_at.items() if at <= now}
        failures = await self._probe(unsure)
        if unsure:
            planned = await self._plan()
        planned = self._but_early_ends(planned, waited)
        failures += await self._check_meta(planned)
        if not planned or node != self.node:  # given up meanwhile: nothing of the plan holds
            return failures
        steps, sent_at = [step for _, step in planned], self.clock()
        self._sent_at = sent_at
        answers = await self._thread.call(lambda: self.store.apply(steps))
        now = self.clock()
        superseded: list[Superseded] = []
        failed: list[ShardWriter] = []
        for (writer, step), answer in zip(planned, answers, strict=True):
            if not isinstance(answer, Reply):
                failures.append(answer)
                failed.append(writer)
                continue
            was_away = self._reach[writer.shard].answered(sent_at, now)
            if node == self.node:  # else it was given up; the opening under the new id tells what was applied
                superseded += writer.accept(step, answer)
                self._counted.batches += isinstance(step, Batch)
                self._counted.items += len(step.items) if isinstance(step, Batch) else 0
            if was_away:
                writer.returned(now)
        self._failed(failed, sent_at)
        if superseded:
            self.verdicts.superseded(superseded)
        return failures

    async def _plan(self) -> list[tuple[ShardWriter, Batch | Retirement]]:
        """Return what each shard that answers has next; the same again until it was sent and answered."""
        now = self.clock()
        planned: list[tuple[ShardWriter, Batch | Retirement]] = []
        for writer in self._reachable():
            step = writer.next(now)
            if step is not None:
                planned.append((writer, step))
            if step is not None or writer.is_planning:
                await self.runtime.sleep(0)  # many shards' batches take tens of milliseconds to make
        return planned

    def _but_early_ends(
        self, planned: list[tuple[ShardWriter, Batch | Retirement]], waited: set[int]
    ) -> list[tuple[ShardWriter, Batch | Retirement]]:
        """Return what may go now: where there are peers, not yet the ends for which it is too early.

        Args:
            planned: what there is to send.
            waited: the shards whose ends have waited.
        """
        now = self.clock()
        self._ends_at = {
            writer.shard: sure_at
            for writer, step in planned
            if now < (sure_at := self._reach[writer.shard].sure_at)
            and writer.shard not in waited
            and _has_end(step)
            and writer.settling.has_peers
        }
        return [each for each in planned if each[0].shard not in self._ends_at]

    async def _check_meta(self, planned: list[tuple[ShardWriter, Batch | Retirement]]) -> Failures:
        """Before openings, for a Redis that lost its data lost that too; those it fails for are taken out."""
        openings = [each for each in planned if isinstance(each[1], Batch) and each[1].opening]
        if not openings:
            return []
        try:
            await self._thread.call(self.store.check_meta)
        except StoreUnavailable:
            pass  # it may be on another server than these shards; the comparison makes it good
        except StoreError as error:
            self._failed([writer for writer, _ in openings], self.clock())
            for each in openings:
                planned.remove(each)
            return [error]
        return []

    def _take_new_id(self) -> None:
        old, self.node = self.node, self.verdicts.new_node_id()
        self.former.add(old)
        _log.warning("fenced by peers, re-registering all sessions", old_node=old, node=self.node)
        for writer in self.writers:
            writer.rename(self.node)

    async def _gather(self) -> None:
        """Wait until there is something to send, and a little longer for what comes with it."""
        now = self.clock()
        waiting = {shard for shard, at in self._ends_at.items() if now < at}
        reachable = [writer for writer in self._reachable() if writer.shard not in waiting]
        if any(writer.is_eager(now) for writer in reachable):
            return
        due = [self._ends_at[shard] for shard in waiting]
        due += [at for writer in reachable if (at := writer.wakes_at(now)) is not None]
        due += [reach.retry_at for reach in self._reach if not reach.may_be_sent_to]
        if not reachable:
            await self.runtime.sleep(max(0.0, min(due) - now))
            return
        stuck = sum(self.outbox.queued(writer.shard) for writer in self.writers if writer not in reachable)
        self.outbox.call_at(stuck + 1, self._bell.ring)
        rung = await self._bell.wait(min([self._next_probe(now), *due]) - now)
        if rung and not self.outbox.has_logouts:
            self.outbox.call_at(stuck + BATCH_ITEMS, self._bell.ring)
            await self._bell.wait(GATHER_S)
        if self.outbox.has_logouts:
            await self.runtime.sleep(self._sent_at + LOGOUT_PAUSE_S - self.clock())
        self.outbox.call_at(0, self._bell.ring)

    def statistics(self) -> RelayStatistics:
        """Return the counters as they are now."""
        outages = self._outages
        return replace(
            self._counted,
            node=self.node,
            retries=outages.retries,
            resyncs=sum(writer.resyncs for writer in self.writers),
            differences=self._comparing.differences,
            errors=outages.errors,
            last_error=outages.last_error,
            connected=outages.since is None,
            away_since=outages.since,
            backlog=self.outbox.held,
        )


def _has_end(step: Batch | Retirement) -> bool:
    """Whether a step may make somebody offline."""
    return isinstance(step, Retirement) or any(item.change.op is Op.END for item in step.items)
