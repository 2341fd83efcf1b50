"""The next step of one node in one shard, and the meaning of its answers: pure, no I/O, no clock.

The other half of the protocol is `store/scripts/apply.lua`. A *generation* is opened by an empty batch and
continues with batches numbered 1, 2, 3 …. One batch is in flight at a time and is frozen once it was sent, so
that it can safely be sent again after a lost answer. A batch that is refused as *heavy* is sent in parts. Any
other refusal, or a probe that finds another state than the acknowledged one, begins a *resync*, which is a
new generation:

1. Open. The answer has the last value of the previous counter, read in the same atomic call. It shows whether
   the batch in flight was applied (then it is done, and its events are counted now), and whether Redis lost
   batches that it had acknowledged.
2. Register the live sessions whose login is not pending here, as they were before the pending changes.
3. Replay the pending changes in order. If Redis lost data, an end whose login was acknowledged *restores*:
   the script writes the whole period, unless the user is online.
4. Retire what older generations still own: sessions whose ends were skipped, or lost by Redis.

The phases, without the batch in flight:

              opening accepted              last batch of step 3 accepted
    CLOSED ─────────────────────► RESYNCING ─────────────────────────────► COMPLETE
     ▲  ▲                             │                                       │
     │  └── refusal, unexpected probe, skipped changes, ends in flight after ──┘
     │      an outage, `resync`
     │ `rename`
    FENCED ◄── a refusal or a probe shows that this id is fenced (from every phase)

| phase | next step |
| --- | --- |
| CLOSED | an opening batch, until it is accepted |
| RESYNCING | batches of registrations and replayed changes; the last one is marked `complete` |
| COMPLETE | a retirement while one is left and the gate is open; batches of changes |
| FENCED | none; the relay takes a new node id and calls `rename` |

Stale sessions are registered with their next packet. If they end instead, and Redis had lost them, that end
restores too.

A full outbox has a resync of its own, which begins when everything before the skipped changes is written:
only then do the live sessions follow from what was written. A resync that finds pending changes leaves the
skipped ones to that later resync.

Order holds per user throughout. While the gate is closed (see `end_gate`), only ends, later changes of
the same users, and the retirement are held back.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from enum import Enum, auto
from typing import Final

from presence.core.changes import Op, SessionName
from presence.core.profiles import Profile
from presence.outbox.backlog import Backlog, Live
from presence.outbox.end_gate import EndGate
from presence.outbox.event_counts import Transitions
from presence.outbox.queue import Outbox, SkippedChanges
from presence.outbox.replies import NodeNotice, Opened, Probe, Reply, ReplyStatus, Superseded
from presence.outbox.steps import (
    FENCE_TTL_S,
    NO_ENTRY_ID,
    Batch,
    Compare,
    Counter,
    Fencing,
    Item,
    Opening,
    Reindex,
    Retirement,
    Sweep,
)

BATCH_ITEMS: Final = 512  # a few milliseconds of one Redis; larger batches save next to nothing
# Least time between two resyncs for skipped changes: an outbox that other shards keep full overflows again
# immediately, and each resync scans all sessions.
OVERFLOW_PAUSE_S: Final = 1.0

# By the shard's clock, between two probes: a fence of this id may have come and gone with the counter.
# That is no loss of data: a machine slept, and its own clock stood still.
MAX_SILENCE_MS: Final = FENCE_TTL_S * 1000 // 2


class Phase(Enum):
    """State of the present generation; see the module."""

    CLOSED = auto()
    RESYNCING = auto()
    COMPLETE = auto()
    FENCED = auto()


@dataclass(frozen=True, slots=True)
class _InFlightBatch:
    """The batch in flight when a resync began: it may have been applied or not."""

    counter: Counter
    items: tuple[Item, ...]


@dataclass(eq=False, repr=False)
class ShardWriter:
    """The state of one node in one shard.

    Attributes:
        gate: the other nodes in the shard, and the wait for them after a resync.
        phase: see the module.
        lost_to_fence: whether an earlier id was fenced and the sessions are not all registered again.
        resyncs: number of resyncs.
        rollbacks: how often Redis was found to have lost batches, or to have begun another history.
        inbox_read: number of the last notice that was read from the inbox.
    """

    shard: int
    node: str  # the node's id
    outbox: Outbox  # the source of changes
    live: InitVar[Live]  # see `Live`
    _: KW_ONLY
    is_alive: InitVar[Callable[[str], bool]] = lambda _node: True  # whether another node may be alive
    lease_holders: InitVar[Callable[[], Iterable[str]]] = tuple  # other nodes with a lease; see `EndGate`
    # counts the events that Redis has written, each once
    transitions: Transitions = field(default_factory=Transitions)

    def __post_init__(
        self, live: Live, is_alive: Callable[[str], bool], lease_holders: Callable[[], Iterable[str]]
    ) -> None:
        self.gate = EndGate(is_alive, lease_holders)
        self.phase = Phase.CLOSED
        self.lost_to_fence = False
        self.resyncs = self.rollbacks = 0
        self.inbox_read = 0
        self._backlog = Backlog(self.shard, self.outbox, live)
        self._acknowledged = Counter(self.node, 0, 0)
        self._generation = 0  # the highest ever tried or seen
        self._resync_unfinished = False  # whether the last generation that was opened did not get complete
        # Faults of Redis before this generation, or before an unfinished one that it continues: it lost
        # acknowledged batches; it lost them or began another history.
        self._has_lost = self._has_gone_back = False
        self._replication_id = ""
        # lower bound of the shard's clock less this node's monotonic time
        self._clock_offset_ms: float | None = None
        self._probed_ms = 0  # the shard's clock at the last probe; 0: none
        self._last_entry_id = NO_ENTRY_ID  # the highest seen in this shard
        self._skipped: SkippedChanges | None = None  # until the opening that carries it is acknowledged
        self._in_flight: Batch | None = None
        self._has_copies = False  # whether Redis may yet get a former call with the batch in flight
        self._cut_off: tuple[Item, ...] = ()  # items too many for the batch in flight; they are the next ones
        self._fitting = 0  # how many items the next batch may have of these
        self._is_cutting = False  # from a refusal for them until all of them are written
        self._unconfirmed: _InFlightBatch | None = None  # until the next opening's answer
        self._opened_at = -math.inf
        self._cursor: str | None = None  # of the retirement; None: nothing to retire
        self._latest_ms = 0  # upper bound of when the sessions to retire were last seen

    @property
    def is_fenced(self) -> bool:
        """Whether all steps under this node id are refused; none is sent until `rename`."""
        return self.phase is Phase.FENCED

    @property
    def _is_open(self) -> bool:
        return self.phase in (Phase.RESYNCING, Phase.COMPLETE)

    @property
    def is_planning(self) -> bool:
        """Whether `prepare_step` has to be called again before there is anything to send."""
        return self._is_open and self._in_flight is None and self._backlog.is_planning

    def is_eager(self, now: float) -> bool:
        """Whether there is work that does not wait for more changes: a step to send, or a new id to take."""
        if (
            self.phase is not Phase.COMPLETE
            or self._in_flight
            or self._cut_off
            or self._backlog.is_replaying
            or self._must_resync(now)
        ):
            return True
        return self.gate.is_open(now) and (self._backlog.has_held_items or self._may_retire())

    @property
    def is_steady(self) -> bool:
        """Whether all that is left to do is to send changes as they come."""
        backlog = self._backlog
        is_done = self.phase is Phase.COMPLETE and self._cursor is None
        return is_done and not (backlog.is_replaying or backlog.has_held_items or self._is_cutting)

    def wakes_at(self, now: float) -> float | None:
        """Return when held or skipped items become due, monotonic seconds; None: no such time."""
        due = [self.gate.opens_at] if self._backlog.has_held_items or self._cursor is not None else []
        if self.outbox.is_skipping(self.shard):
            due.append(self._opened_at + OVERFLOW_PAUSE_S)
        return min((at for at in due if at > now), default=None)

    def prepare_step(self, now: float) -> None:
        """Open a generation or make the next batch, if it is due and nothing is in flight."""
        if self.phase is Phase.FENCED or self._in_flight is not None:
            return
        if not self._is_open or self._must_resync(now):
            self._open_generation(now)
        elif self._cut_off:
            items, self._cut_off = self._cut_off[: self._fitting], self._cut_off[self._fitting :]
            self._make_batch(items, now)
        else:
            self._backlog.continue_planning()
            if not self.is_planning:
                self._make_batch(self._collect_items(now), now)

    def next_step(self, now: float) -> Batch | Retirement | None:
        """Return the step to send now, None if there is none; the same until `accept_reply` is called."""
        if self._in_flight is not None:
            return replace(self._in_flight, now=now, sent_ms=self._shard_clock_ms(now))
        if self.gate.is_open(now) and self._may_retire():
            return Retirement(*self._step_header(), self._cursor or "0", self._latest_ms)
        return None

    def _shard_clock_ms(self, now: float) -> int:
        """Return a lower bound of the shard's clock in Unix milliseconds; 0: not known."""
        return 0 if self._clock_offset_ms is None else int(now * 1000 + self._clock_offset_ms)

    def _make_batch(self, items: tuple[Item, ...], now: float) -> None:
        complete = self.phase is Phase.RESYNCING and not (self._cut_off or self._backlog.is_replaying)
        if items or complete:
            counter = replace(self._acknowledged, n=self._acknowledged.n + 1)
            self._in_flight = Batch(self.shard, counter, self._replication_id, items, now, complete=complete)
            self._has_copies = False

    def accept_reply(self, step: Batch | Retirement, reply: Reply) -> tuple[Superseded, ...]:
        """Handle the answer to a step; return sessions that lost to another node's."""
        self._note_entry_id(reply.last_id)
        if reply.status is ReplyStatus.HEAVY and isinstance(step, Batch) and not self._has_copies:
            self._fitting = reply.fitting
            self._cut_off = step.items[reply.fitting :] + self._cut_off
            self._in_flight = replace(step, items=step.items[: reply.fitting], complete=False)
            self._is_cutting = True
            return ()
        if reply.status is not ReplyStatus.OK:
            self._handle_refusal(reply)
            return ()
        self.transitions.count_events(reply.event_counts)
        if isinstance(step, Retirement):
            self._cursor = None if reply.cursor == "0" else reply.cursor
            return ()
        self._in_flight, self._is_cutting = None, bool(self._cut_off)
        if self._cut_off:
            self._fitting *= 2  # perhaps only the first records were large
        if step.complete:
            self._resync_unfinished = self.lost_to_fence = False
            if self.phase is Phase.RESYNCING:
                self.phase = Phase.COMPLETE
        self._acknowledge(step.items)
        superseded = reply.superseded
        if reply.opened is not None:
            superseded += self._begin_resync(step, reply.opened, reply.replication_id)
            self._replication_id = reply.replication_id
        self._acknowledged = step.counter
        return superseded

    def answer_lost(self) -> None:
        """Note that a call failed which Redis may have carried out, or may carry out yet.

        A batch is repeated as it is, so a late copy changes nothing. One with too many items cannot be: then
        a new generation makes Redis refuse the copies.
        """
        self._has_copies = True

    def accept_probe(self, probe: Probe, now: float) -> tuple[NodeNotice, ...]:
        """Compare a probe with the acknowledged state; return the notices that were not read yet."""
        self._note_entry_id(probe.last_id)
        self.gate.peers.traces = probe.peer_traces
        self._generation = max(self._generation, probe.counter.generation)
        self.inbox_read = probe.inbox_n
        was_silent = self._probed_ms and probe.now_ms - self._probed_ms > MAX_SILENCE_MS
        self._probed_ms = probe.now_ms
        if was_silent:
            is_renamed = self._acknowledged.node != self.node  # as another shard showed that this node slept
            self._acknowledged = Counter(self.node, 0, 0)  # whatever became of it
            self._leave_generation()
            self.phase = self.phase if is_renamed else Phase.FENCED
        elif probe.fenced:
            self._leave_generation()
            self.phase = Phase.FENCED
        elif self._is_open and (
            probe.replication_id != self._replication_id or not self._is_expected(probe.counter)
        ):
            self._leave_generation()
        elif self._is_open:
            self.gate.probed(now)
            self._clock_offset_ms = probe.now_ms - now * 1000  # a lower bound: the answer took time
        return probe.inbox

    def answered(self, sent_at: float, now: float, unavailable_since: float | None) -> None:
        """Record an answer in the gate, after its content; see `EndGate.answered`.

        After an outage ends are held back, including those of the batch in flight. That batch may have been
        applied, or may be applied yet. So only a new generation can take it apart.
        """
        if not self.gate.answered(sent_at, now, unavailable_since):
            return
        unsent = (self._in_flight.items if self._in_flight else ()) + self._cut_off
        if any(item.change.op is Op.END for item in unsent):
            self._leave_generation()

    def is_settled(self, now: float) -> bool:
        """Whether other nodes may be fenced and swept: a generation is open, and the gate too."""
        return self._is_open and self.gate.is_open(now)

    def is_settling(self, now: float) -> bool:
        """Whether ends are held back until other nodes have registered."""
        return self._is_open and not self.gate.is_open(now)

    def fence_step(self, other: str) -> Fencing:
        return Fencing(*self._step_header(), other)

    def sweep_step(self, other: str, cursor: str, waited_ms: int, latest_ms: int) -> Sweep:
        return Sweep(*self._step_header(), other, cursor, waited_ms, latest_ms)

    def reindex_step(self, cursor: str, users: int) -> Reindex:
        return Reindex(*self._step_header(), cursor, users)

    def is_idle(self, now: float) -> bool:
        """Whether Redis should have exactly the sessions that this node has."""
        pending = self._has_pending() or self._cursor is not None or self.outbox.is_skipping(self.shard)
        return self.phase is Phase.COMPLETE and self.gate.is_open(now) and not pending

    def compare_step(
        self, cursor: str, fields: int, sessions: tuple[SessionName, ...], shown: tuple[Profile, ...]
    ) -> Compare:
        return Compare(*self._step_header(), cursor, fields, sessions, shown)

    @property
    def is_sending(self) -> bool:
        """Whether a batch waits for its answer, or to be sent."""
        return self._in_flight is not None

    @property
    def has_opened(self) -> bool:
        """Whether Redis has acknowledged something of this id; then a probe precedes another opening."""
        return self._acknowledged.generation > 0

    def resync(self) -> None:
        """Begin a resync, because records in Redis differ from the sessions of this node."""
        self._leave_generation()

    def rename(self, node: str) -> None:
        """Continue under a new node id, which owns nothing yet: the old one is fenced in some shard."""
        self._leave_generation()
        self.phase = Phase.CLOSED
        if not self._acknowledged.generation:
            self._acknowledged = Counter(node, 0, 0)
        self.node, self.lost_to_fence = node, True
        self._generation = self.inbox_read = 0

    def _step_header(self) -> tuple[int, Counter, str]:
        """Return the first fields of each step but an opening."""
        return self.shard, self._acknowledged, self._replication_id

    def _is_expected(self, counter: Counter) -> bool:
        # The batch in flight may have been applied already.
        expected = self._acknowledged.n
        in_flight = 1 if self._in_flight else 0
        same = counter.generation == self._acknowledged.generation
        return same and expected <= counter.n <= expected + in_flight

    def _handle_refusal(self, reply: Reply) -> None:
        self._leave_generation()
        self._generation = max(self._generation, reply.generation)
        if reply.status is ReplyStatus.FENCED:
            self.phase = Phase.FENCED

    def _leave_generation(self) -> None:
        """Leave the generation; the next opening's answer shows whether the batch in flight was applied."""
        if self._in_flight is not None and self._in_flight.opening is None:
            self._unconfirmed = _InFlightBatch(self._in_flight.counter, self._in_flight.items)
        self._in_flight = self._cursor = None
        if self.phase is Phase.RESYNCING:
            self._resync_unfinished = True
        if self.phase is not Phase.FENCED:
            self.phase = Phase.CLOSED

    def _has_pending(self) -> bool:
        """Whether there are queued changes that Redis has not acknowledged."""
        return bool(self._in_flight or self._cut_off or self._unconfirmed or not self._backlog.is_empty)

    def _must_resync(self, now: float) -> bool:
        """Whether changes were skipped and everything before them was written."""
        due = now >= self._opened_at + OVERFLOW_PAUSE_S
        return due and self.outbox.is_skipping(self.shard) and not self._has_pending()

    def _open_generation(self, now: float) -> None:
        self._leave_generation()
        self._opened_at = now
        self._generation += 1
        self._clock_offset_ms = None  # another server may have another clock
        if not self._has_pending():
            skipped = self.outbox.begin_resync(self.shard)
            if skipped is not None:
                self._skipped = self._skipped.merged(skipped) if self._skipped else skipped
        counter = Counter(self.node, self._generation, 1)
        opening = Opening(self._acknowledged.node, self._last_entry_id, self._skipped)
        self._in_flight = Batch(self.shard, counter, "", (), now, opening=opening)

    def _begin_resync(self, step: Batch, opened: Opened, replication_id: str) -> tuple[Superseded, ...]:
        """Handle the answer to an opening; begin to plan the resync from the present queue and sessions."""
        known = self._acknowledged
        # The history also has openings whose answers were lost; the counter before them matters.
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
        for snapshot in opened.batch_history:  # batches and openings whose answers were lost
            counter = snapshot.counter
            if counter.node == known.node and _counter_order(counter) > _counter_order(known):
                self.transitions.count_events(snapshot.event_counts)
        if known.generation:
            self.resyncs += 1
        self.gate.generation_opened(
            step.now,
            {node: trace for node, trace in opened.peer_traces.items() if node != known.node},
            first=not known.generation,
            concerns_all=lost or replication_id != self._replication_id,
            replication_id=replication_id if replication_id != self._replication_id else "",
        )
        continues = self._resync_unfinished
        self._has_lost = lost or (continues and self._has_lost)
        is_other_history = bool(known.generation and replication_id != self._replication_id)
        self.rollbacks += lost or is_other_history
        self._has_gone_back = lost or is_other_history or (continues and self._has_gone_back)
        pending, superseded = self._resolve_unconfirmed(opened)
        self._backlog.begin_resync(pending, lost=self._has_lost)
        self._latest_ms = self._skipped.to_ms if self._skipped else 0
        self._skipped, self.phase = None, Phase.RESYNCING
        self._cursor = "0" if step.counter.generation > 1 else None
        return superseded

    def _resolve_unconfirmed(self, opened: Opened) -> tuple[tuple[Item, ...], tuple[Superseded, ...]]:
        """Return the items to send next, and the answer to the unconfirmed batch if it was applied."""
        pending, self._unconfirmed = self._unconfirmed, None
        cut_off, self._cut_off = self._cut_off, ()
        if pending is None:
            return cut_off, ()
        for snapshot in opened.batch_history:
            if snapshot.counter == pending.counter:
                self._acknowledge(pending.items)
                return cut_off, snapshot.superseded
        return pending.items + cut_off, ()

    def _collect_items(self, now: float) -> tuple[Item, ...]:
        """Return the items of the next batch, in order for each user."""
        settled = self.gate.is_open(now)
        if settled:
            self._backlog.release_held()
        # What comes next in the outbox happened after the retirement was due.
        retires = settled and self._cursor is not None and not self.outbox.is_skipping(self.shard)
        items = self._backlog.next_items(BATCH_ITEMS, settled=settled, from_outbox=not retires)
        # A registration yields to any session of another node. If no other node is alive, those on record
        # would supersede live ones and disconnect their clients. Then ages decide, as between logins.
        if any(item.change.op is Op.REGISTER for item in items):
            if self.gate.peers.only_traces():
                items = [_with_op(Op.LOGIN, item) for item in items]
            elif self._has_gone_back:
                items = [_with_op(Op.RECLAIM, item) for item in items]
        return tuple(items)

    def _may_retire(self) -> bool:
        # While changes are skipped, live sessions are missing in Redis until the resync that registers them.
        backlog = self._backlog
        pending = backlog.has_held_items or backlog.is_replaying or self.outbox.is_skipping(self.shard)
        return self._cursor is not None and not pending

    def _acknowledge(self, items: Iterable[Item]) -> None:
        self.outbox.acknowledge(self.shard, (item.change for item in items if not item.snapshot))

    def _note_entry_id(self, entry_id: str) -> None:
        if entry_id:
            self._last_entry_id = max(self._last_entry_id, entry_id, key=_id_order)


def _with_op(op: Op, item: Item) -> Item:
    """Return a registration as another kind of change, which decides differently on conflicts."""
    change = item.change
    return item._replace(change=change._replace(op=op)) if change.op is Op.REGISTER else item


def _counter_order(counter: Counter) -> tuple[int, int]:
    return counter.generation, counter.n


def _id_order(entry_id: str) -> tuple[int, ...]:
    return tuple(map(int, entry_id.split("-")))
