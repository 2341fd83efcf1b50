"""What one node writes to one shard next, and what the answers mean: pure, no I/O, no clock.

The other half of the protocol is `store/scripts/apply.lua`. A *generation* is opened by an empty batch and
goes on with batches numbered 1, 2, 3 …; one batch is under way at a time and is frozen once it was sent, so
that sending it again after a lost answer is safe. A refusal, or a probe that finds another state than the
acknowledged one, begins a *resync*, which is a new generation:

1. Open. The answer says how the counter stood until then, in the same atomic call, and so settles whether
   the batch under way was applied (then it is done, and what it wrote is counted now) and whether Redis lost
   batches that it had acknowledged.
2. Register the live sessions whose login does not wait here: as it was before the waiting changes.
3. Replay the waiting changes in order. If Redis lost data, an end whose login was acknowledged *restores*:
   the script tells the whole period, unless the user is online.
4. Retire what older generations still own: ends that were skipped, or that Redis lost.

Sessions too silent to be registered are registered when they are heard. If they end instead, and Redis had
lost them, that end restores too.

A full outbox has a resync of its own, which begins when everything before the skipped changes is written:
only then are the live sessions what follows. A resync that finds changes waiting leaves the rest to that one.

Order holds per user throughout. During the settle wait only ends, what follows them of the same user, and
the retirement wait.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from typing import Final

from presence.core.changes import Op, Profile, SessionName
from presence.outbox.backlog import Backlog, Live
from presence.outbox.event_counts import Transitions
from presence.outbox.peer_barrier import PeerBarrier
from presence.outbox.queue import Outbox, SkippedChanges
from presence.outbox.replies import NodeNotice, Opened, Probe, Reply, ReplyStatus, Superseded
from presence.outbox.steps import (
    NO_ENTRY_ID,
    Batch,
    Compare,
    Counter,
    Fencing,
    Item,
    Opening,
    Retirement,
    Sweep,
)

BATCH_ITEMS: Final = 512  # a few milliseconds of one Redis; larger batches save next to nothing
# A full outbox may fill again at once, while other shards hold it: not a snapshot of all sessions each time.
OVERFLOW_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _InFlightBatch:
    """The batch under way when a resync began: whether it was applied is not known yet."""

    counter: Counter
    items: tuple[Item, ...]


@dataclass(eq=False, repr=False)
class ShardWriter:
    """The state of one node in one shard.

    Attributes:
        settling: the other nodes here, and the wait for them after a resync.
        fenced: whether nothing is taken from this node id any more; until `rename` nothing is sent.
        lost_to_fence: whether the sessions went with a fenced id, and are not all registered anew.
        resyncs: how many there were.
        inbox_read: the number up to which the inbox was read.
    """

    shard: int  # the shard
    node: str  # the node's id
    outbox: Outbox  # where the changes come from
    live: InitVar[Live]  # see `Live`
    _: KW_ONLY
    is_alive: InitVar[Callable[[str], bool]] = lambda _node: True  # whether another node may be at work
    lease_holders: InitVar[Callable[[], Iterable[str]]] = tuple  # those that hold a lease; see `PeerBarrier`
    # takes what Redis has written, each event once
    transitions: Transitions = field(default_factory=Transitions)

    def __post_init__(
        self, live: Live, is_alive: Callable[[str], bool], lease_holders: Callable[[], Iterable[str]]
    ) -> None:
        self.barrier = PeerBarrier(is_alive, lease_holders)
        self.fenced = self.lost_to_fence = False
        self.resyncs = 0
        self.inbox_read = 0
        self._backlog = Backlog(self.shard, self.outbox, live)
        self._acknowledged = Counter(self.node, 0, 0)
        self._generation = 0  # the highest ever tried or seen
        self._is_open = False
        # Redis, before this generation or before one that was not completed.
        self._has_gone_back = self._has_lost = False
        self._replication_id = ""
        self._clock_ahead_ms: float | None = None  # of the shard, before this node's monotonic time, at least
        self._floor = NO_ENTRY_ID
        self._gap: SkippedChanges | None = None  # until the opening that carries it is acknowledged
        self._frozen: Batch | None = None
        self._pending: _InFlightBatch | None = None
        self._opened_at = -math.inf
        self._told_complete = False
        self._cursor: str | None = None  # of the retirement; None: nothing to retire
        self._latest_ms = 0

    @property
    def is_planning(self) -> bool:
        """Whether `next_step` has to be called again before there is anything to send."""
        return self._is_open and self._backlog.is_planning

    def is_eager(self, now: float) -> bool:
        """Whether there is something to do that need not be gathered first: to send, or to take a new id."""
        if (
            self.fenced
            or not self._is_open
            or self._frozen
            or self._backlog.is_replaying
            or self._must_resync(now)
        ):
            return True
        if not self._told_complete:
            return True
        return now >= self.barrier.open_at and (self._backlog.has_held_items or self._may_retire())

    def wakes_at(self, now: float) -> float | None:
        """Return when something that waits now becomes due, monotonic seconds."""
        due = [self.barrier.open_at] if self._backlog.has_held_items or self._cursor is not None else []
        if self.outbox.is_skipping(self.shard):
            due.append(self._opened_at + OVERFLOW_PAUSE_S)
        return min((at for at in due if at > now), default=None)

    def next_step(self, now: float) -> Batch | Retirement | None:
        """Return what to send now, None if nothing. The same again until `accept_reply` had its answer."""
        if self.fenced:
            return None
        if self._frozen is None:
            if not self._is_open or self._must_resync(now):
                self._begin(now)
            else:
                self._backlog.continue_planning()
                if self.is_planning:
                    return None
                self._freeze(self._collect_items(now), now)
        if self._frozen is not None:
            return replace(self._frozen, now=now, sent_ms=self._reached_ms(now))
        if now >= self.barrier.open_at and self._may_retire():
            return Retirement(*self._here(), self._cursor or "0", self._latest_ms)
        return None

    def _reached_ms(self, now: float) -> int:
        """Return what the shard's clock has surely come to; 0: not known."""
        return 0 if self._clock_ahead_ms is None else int(now * 1000 + self._clock_ahead_ms)

    def _freeze(self, items: tuple[Item, ...], now: float) -> None:
        is_replaying = self._backlog.is_replaying
        complete = not self._told_complete and not is_replaying
        settled = self._backlog.has_pending_logins and not self._backlog.has_held_items and not is_replaying
        if items or complete or settled:
            counter = replace(self._acknowledged, n=self._acknowledged.n + 1)
            self._frozen = Batch(
                self.shard, counter, self._replication_id, items, now, complete=complete, settled=settled
            )

    def accept_reply(self, step: Batch | Retirement, reply: Reply) -> tuple[Superseded, ...]:
        """Take the answer to what `next_step` gave; return the sessions that have to go."""
        self._raise_floor(reply.last_id)
        if reply.status is not ReplyStatus.OK:
            self._refused(reply)
            return ()
        self.transitions.count_events(reply.event_counts)
        if isinstance(step, Retirement):
            self._cursor = None if reply.cursor == "0" else reply.cursor
            return ()
        self._frozen = None
        self._told_complete |= step.complete
        self.lost_to_fence &= not step.complete
        if step.settled:
            self._backlog.has_pending_logins = False
        self._acknowledge(step.items)
        superseded = reply.superseded
        if reply.opened is not None:
            superseded += self._opened(step, reply.opened, reply.replication_id)
            self._replication_id = reply.replication_id
        self._acknowledged = step.counter
        return superseded

    def accept_probe(self, probe: Probe, now: float) -> tuple[NodeNotice, ...]:
        """Compare what a probe saw with what was acknowledged; return the news not yet read."""
        self._raise_floor(probe.last_id)
        self.barrier.others = probe.others
        self._generation = max(self._generation, probe.counter.generation)
        self.inbox_read = probe.inbox_n
        if probe.fenced:
            self._interrupt()
            self.fenced = True
        elif self._is_open and (
            probe.replication_id != self._replication_id or not self._is_known(probe.counter)
        ):
            self._interrupt()
        elif self._is_open:
            self.barrier.observe(now)
            self._clock_ahead_ms = probe.now_ms - now * 1000  # it has gone on since it answered
        return probe.inbox

    def redis_recovered(self, now: float) -> None:
        """Redis answers again after an outage: ends wait, those of the batch under way too.

        That batch may have been applied, or may be yet, so it can be taken apart in a new generation only.
        """
        self.barrier.redis_recovered(now)
        if (
            self._frozen
            and now < self.barrier.open_at
            and any(i.change.op is Op.END for i in self._frozen.items)
        ):
            self._interrupt()

    def is_settled(self, now: float) -> bool:
        """Whether others may be judged by what the shard says: no resync is under way or just over."""
        return self._is_open and now >= self.barrier.open_at

    def is_settling(self, now: float) -> bool:
        """Whether a resync is waiting for other nodes to register."""
        return self._is_open and now < self.barrier.open_at

    def fence_step(self, other: str) -> Fencing:
        """Return the step that fences another node."""
        return Fencing(*self._here(), other)

    def sweep_step(self, other: str, cursor: str, waited_ms: int, latest_ms: int) -> Sweep:
        """Return a step that ends what a fenced node owns; see `Sweep`."""
        return Sweep(*self._here(), other, cursor, waited_ms, latest_ms)

    def is_idle(self, now: float) -> bool:
        """Whether Redis is to have exactly what this node has."""
        waiting = self._is_waiting() or self._cursor is not None or self.outbox.is_skipping(self.shard)
        return self.is_settled(now) and self._told_complete and not waiting

    def compare_step(
        self, cursor: str, fields: int, sessions: tuple[SessionName, ...], shown: tuple[Profile, ...]
    ) -> Compare:
        """Return a step that compares sessions with the records; see `Compare`."""
        return Compare(*self._here(), cursor, fields, sessions, shown)

    def resync(self) -> None:
        """Begin anew: what Redis has differs from what this node has."""
        self._interrupt()

    def rename(self, node: str) -> None:
        """Go on as another node, which owns nothing yet: the old id is fenced, in this shard or another."""
        self._interrupt()
        self.node, self.fenced, self.lost_to_fence = node, False, True
        self._generation = self.inbox_read = 0

    def _here(self) -> tuple[int, Counter, str]:
        """Return what each step but an opening begins with."""
        return self.shard, self._acknowledged, self._replication_id

    def _is_known(self, counter: Counter) -> bool:
        # The batch under way may have been applied already.
        expected = self._acknowledged.n
        under_way = 1 if self._frozen else 0
        same = counter.generation == self._acknowledged.generation
        return same and expected <= counter.n <= expected + under_way

    def _refused(self, reply: Reply) -> None:
        self._interrupt()
        self._generation = max(self._generation, reply.generation)
        self.fenced = reply.status is ReplyStatus.FENCED

    def _interrupt(self) -> None:
        """Leave the generation; the batch under way waits for the next opening's answer."""
        if self._frozen is not None and self._frozen.opening is None:
            self._pending = _InFlightBatch(self._frozen.counter, self._frozen.items)
        self._frozen, self._is_open, self._cursor = None, False, None

    def _is_waiting(self) -> bool:
        """Whether there are changes that Redis has not acknowledged."""
        return bool(self._frozen or self._pending or not self._backlog.is_empty)

    def _must_resync(self, now: float) -> bool:
        """Whether changes were skipped and everything before them was written."""
        due = now >= self._opened_at + OVERFLOW_PAUSE_S
        return due and self.outbox.is_skipping(self.shard) and not self._is_waiting()

    def _begin(self, now: float) -> None:
        self._interrupt()
        self._opened_at = now
        self._generation += 1
        self._clock_ahead_ms = None  # another server may have another clock
        if not self._is_waiting():
            skipped = self.outbox.begin_resync(self.shard)
            if skipped is not None:
                self._gap = self._gap.merged(skipped) if self._gap else skipped
        counter = Counter(self.node, self._generation, 1)
        opening = Opening(self._acknowledged.node, self._floor, self._gap)
        self._frozen = Batch(self.shard, counter, "", (), now, opening=opening)

    def _opened(self, step: Batch, opened: Opened, replication_id: str) -> tuple[Superseded, ...]:
        """Begin to plan the resync from one moment's queue and sessions."""
        known = self._acknowledged
        # Openings of which no answer came stand in the trail too: what was before them counts.
        stood = max(
            (
                snapshot.counter
                for snapshot in opened.batch_history
                if snapshot.counter.node == known.node and snapshot.counter.generation <= known.generation
            ),
            key=_counter_order,
            default=Counter(known.node, 0, 0),
        )
        lost = _counter_order(stood) < _counter_order(known)
        for snapshot in opened.batch_history:  # batches and openings of which no answer came
            if snapshot.counter.node == known.node and _counter_order(snapshot.counter) > _counter_order(
                known
            ):
                self.transitions.count_events(snapshot.event_counts)
        if known.generation:
            self.resyncs += 1
        self.barrier.start(
            step.now,
            {node: trace for node, trace in opened.others.items() if node != known.node},
            first=not known.generation,
            concerns_all=lost or replication_id != self._replication_id,
            history=replication_id if replication_id != self._replication_id else "",
        )
        is_unmade = not self._told_complete
        self._has_lost = lost or (is_unmade and self._has_lost)
        is_other = bool(known.generation and replication_id != self._replication_id)
        self._has_gone_back = lost or is_other or (is_unmade and self._has_gone_back)
        pending, superseded = self._settle_pending(opened)
        self._backlog.begin_resync(pending, lost=self._has_lost)
        self._latest_ms = self._gap.to_ms if self._gap else 0
        self._gap, self._is_open, self._told_complete = None, True, False
        self._cursor = "0" if step.counter.generation > 1 else None
        return superseded

    def _settle_pending(self, opened: Opened) -> tuple[tuple[Item, ...], tuple[Superseded, ...]]:
        """Return what of the batch under way is still to be sent, and the answer it got if it was applied."""
        pending, self._pending = self._pending, None
        if pending is None:
            return (), ()
        for snapshot in opened.batch_history:
            if snapshot.counter == pending.counter:
                self._acknowledge(pending.items)
                return (), snapshot.superseded
        return pending.items, ()

    def _collect_items(self, now: float) -> tuple[Item, ...]:
        """Return the items of the next batch, in order for each user."""
        settled = now >= self.barrier.open_at
        if settled:
            self._backlog.release_held()
        # What comes next in the outbox happened after the retirement was due.
        retires = settled and self._cursor is not None and not self.outbox.is_skipping(self.shard)
        items = self._backlog.next_items(BATCH_ITEMS, settled=settled, from_outbox=not retires)
        # A registration yields to any session of another node. If nobody else is at work, those on record
        # would take the place of live ones and send their clients away: then ages decide, as of late logins.
        if any(item.change.op is Op.REGISTER for item in items):
            if self.barrier.only_traces():
                items = [_registered_as(Op.LOGIN, item) for item in items]
            elif self._has_gone_back:
                items = [_registered_as(Op.RECLAIM, item) for item in items]
        return tuple(items)

    def _may_retire(self) -> bool:
        # While changes are skipped the live sessions are not what they will be when these are made good.
        backlog = self._backlog
        waiting = backlog.has_held_items or backlog.is_replaying or self.outbox.is_skipping(self.shard)
        return self._cursor is not None and not waiting

    def _acknowledge(self, items: Iterable[Item]) -> None:
        self.outbox.acknowledge(self.shard, (item.change for item in items if not item.snapshot))

    def _raise_floor(self, entry_id: str) -> None:
        if entry_id:
            self._floor = max(self._floor, entry_id, key=_id_order)


def _registered_as(op: Op, item: Item) -> Item:
    """Return an item whose place is decided otherwise, if it is a registration."""
    change = item.change
    return item._replace(change=change._replace(op=op)) if change.op is Op.REGISTER else item


def _counter_order(counter: Counter) -> tuple[int, int]:
    return counter.generation, counter.n


def _id_order(entry_id: str) -> tuple[int, ...]:
    return tuple(map(int, entry_id.split("-")))
