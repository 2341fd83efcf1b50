"""The next step of one node in one shard, and the meaning of its answers: pure, no I/O, no clock.

The other half of the protocol is `store/scripts/apply.lua`. A *generation* is opened by an empty batch and
continues with batches numbered 1, 2, 3 …. One batch is in flight at a time (`BatchInFlight`). Its changes
stay in the shard's log until they are acknowledged (`Backlog`). A refusal, or a probe that finds another
state than the acknowledged one, begins a *resync*, which is a new generation:

1. Open. The answer has the last value of the previous counter, read in the same atomic call. It shows whether
   the unconfirmed batch was applied (then it is done, and its events are counted now), and whether Redis lost
   batches that it had acknowledged.
2. Register the live sessions whose login is not pending here, as they were before the pending changes.
3. Replay the pending changes in order. If Redis lost data, an end whose login was acknowledged *restores*:
   the script writes the whole period, unless the user is online.
4. Retire what older generations still own: sessions whose ends were skipped, or lost by Redis.

The phases, as `NEXT_PHASE` has them; in each of them a batch may be in flight or unconfirmed:

              opening accepted              last batch of step 3 accepted
    CLOSED ─────────────────────► RESYNCING ─────────────────────────────► COMPLETE
     ▲  ▲                             │                                       │
     │  └── refusal, unexpected probe, skipped changes, ends in flight after ──┘
     │      an outage, `request_resync`
     │ `rename`
    FENCED ◄── a refusal or a probe shows that this id is fenced (from every phase)

| phase | next step |
| --- | --- |
| CLOSED | an opening batch, until it is accepted |
| RESYNCING | batches of registrations and replayed changes; the last one is marked `complete` |
| COMPLETE | a retirement while one is left and the gate is open; batches of changes |
| FENCED | none; the relay takes a new node id and calls `rename` |

What a resync has to make good (`Cause`) is left to the next one if it is interrupted. Stale sessions
are registered with their next packet. If they end instead, and Redis had lost them, that end restores too.

A full outbox has a resync of its own, which begins when everything before the skipped changes is written (see
`overflow`). A resync that finds pending changes leaves the skipped ones to that later resync.

Order holds per user throughout. While the gate is closed (see `end_gate`), only ends, later changes of
the same users, and the retirement are held back.

Tests: `tests/outbox/test_shard_writer.py`, `tests/store/test_recovery.py`, `tests/simulation`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import Enum, Flag, auto
from typing import Final, NamedTuple

from presence.core.changes import Op, SessionName
from presence.core.profiles import Profile
from presence.outbox.backlog import Backlog, Live
from presence.outbox.batches import BATCH_ITEMS, BatchInFlight, BatchNumbers
from presence.outbox.end_gate import EndGate
from presence.outbox.event_counts import Transitions
from presence.outbox.queue import Outbox
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

# By the shard's clock, between two probes: a fence of this id may have come and gone with the counter.
# That is no loss of data: a machine slept, and its own clock stood still.
MAX_SILENCE_MS: Final = FENCE_TTL_S * 1000 // 2


class Phase(Enum):
    """State of the present generation; see the module."""

    CLOSED = auto()
    RESYNCING = auto()
    COMPLETE = auto()
    FENCED = auto()


class PhaseEvent(Enum):
    """What changes the phase."""

    OPENED = auto()  # the opening was accepted
    COMPLETED = auto()  # the batch that is marked `complete` was accepted
    LEFT = auto()  # the generation is left, and another to be opened
    FENCED = auto()  # this node id is fenced
    RENAMED = auto()  # the node has another id


NEXT_PHASE: Final[Mapping[tuple[Phase, PhaseEvent], Phase]] = {
    (Phase.CLOSED, PhaseEvent.OPENED): Phase.RESYNCING,
    (Phase.CLOSED, PhaseEvent.FENCED): Phase.FENCED,
    (Phase.RESYNCING, PhaseEvent.COMPLETED): Phase.COMPLETE,
    (Phase.RESYNCING, PhaseEvent.LEFT): Phase.CLOSED,
    (Phase.RESYNCING, PhaseEvent.FENCED): Phase.FENCED,
    (Phase.COMPLETE, PhaseEvent.LEFT): Phase.CLOSED,
    (Phase.COMPLETE, PhaseEvent.FENCED): Phase.FENCED,
    (Phase.RESYNCING, PhaseEvent.RENAMED): Phase.CLOSED,
    (Phase.COMPLETE, PhaseEvent.RENAMED): Phase.CLOSED,
    (Phase.FENCED, PhaseEvent.RENAMED): Phase.CLOSED,
}
"""Any other event leaves the phase as it is."""


class Cause(Flag):
    """What an opening showed that the resync has to make good; if it is interrupted, the next one has to."""

    NONE = 0
    LOST = auto()  # Redis lost batches that it had acknowledged
    GONE_BACK = auto()  # it lost them, or has another replication id
    FENCED = auto()  # an earlier id was fenced


class _Retiring(NamedTuple):
    """A retirement that is not finished."""

    cursor: str  # of the next call
    latest_ms: int  # upper bound of when the sessions to retire were last seen; 0: not known


class _ShardTime:
    """What a node knows of a shard's time.

    Attributes:
        last_entry_id: the highest id of a stream entry that was seen.
    """

    def __init__(self) -> None:
        self.last_entry_id = NO_ENTRY_ID
        # lower bound of the shard's clock less this node's monotonic time; None: not known
        self._offset_ms: float | None = None
        self._probed_ms = 0  # the shard's clock at the last probe; 0: none

    def note_entry_id(self, entry_id: str) -> None:
        if entry_id:
            self.last_entry_id = max(self.last_entry_id, entry_id, key=_id_order)

    def note_probe(self, now_ms: int) -> bool:
        """Note the shard's clock in a probe; return whether none was answered for too long before it."""
        was_silent = bool(self._probed_ms) and now_ms - self._probed_ms > MAX_SILENCE_MS
        self._probed_ms = now_ms
        return was_silent

    def set_clock(self, now: float) -> None:
        """Take the clock of the last probe, answered until `now`: a lower bound, the answer took time."""
        self._offset_ms = self._probed_ms - now * 1000

    def forget_clock(self) -> None:
        """Forget the clock, because another server may have another."""
        self._offset_ms = None

    def lower_bound_ms(self, now: float) -> int:
        """Return a lower bound of the shard's clock in Unix milliseconds; 0: not known."""
        return 0 if self._offset_ms is None else int(now * 1000 + self._offset_ms)


class ShardWriter:
    """The state of one node in one shard.

    Args:
        shard: its number.
        node: the node's id.
        outbox: the source of changes.
        live: see `Live`.
        is_alive: whether another node may be alive.
        lease_holders: returns the other nodes with a lease; see `EndGate`.
        transitions: counts the events that Redis has written, each once; None: they are counted here only.
    """

    def __init__(
        self,
        shard: int,
        node: str,
        outbox: Outbox,
        live: Live,
        *,
        is_alive: Callable[[str], bool] = lambda _node: True,
        lease_holders: Callable[[], Iterable[str]] = tuple,
        transitions: Transitions | None = None,
    ) -> None:
        self.shard = shard
        self.transitions = transitions or Transitions()
        self.gate = EndGate(is_alive, lease_holders)  # the other nodes in the shard, and the wait for them
        self.phase = Phase.CLOSED  # see the module
        self.resyncs = 0
        self.rollbacks = 0  # how often Redis had lost batches or a fence, or had another replication id
        self.losses = 0  # how often Redis had lost batches that it had acknowledged
        self.inbox_read = 0  # number of the last notice that was read from the inbox
        self._backlog = Backlog(shard, outbox.logs[shard], live)
        self._overflow = outbox.logs[shard].overflow
        self._numbers = BatchNumbers(node)
        self._in_flight = BatchInFlight()
        self._causes = Cause.NONE  # of the last resync, until a complete generation is left
        self._retiring: _Retiring | None = None  # None: nothing to retire
        self._time = _ShardTime()

    @property
    def is_fenced(self) -> bool:
        """Whether all steps under this node id are refused; none is sent until `rename`."""
        return self.phase is Phase.FENCED

    @property
    def replication_id(self) -> str:
        """That of Redis when a generation was opened last; "" before the first."""
        return self._numbers.replication_id

    @property
    def lost_to_fence(self) -> bool:
        """Whether an earlier id was fenced and the sessions are not all registered again."""
        return Cause.FENCED in self._causes and self.phase is not Phase.COMPLETE

    @property
    def _is_generation_open(self) -> bool:
        return self.phase in (Phase.RESYNCING, Phase.COMPLETE)

    @property
    def needs_another_slice(self) -> bool:
        """Whether `prepare_step` has to be called again before there is anything to send."""
        return (
            self._is_generation_open and self._in_flight.batch is None and self._backlog.needs_another_slice
        )

    def is_eager(self, now: float) -> bool:
        """Whether there is work that does not wait for more changes: a step to send, or a new id to take."""
        if (
            self.phase is not Phase.COMPLETE
            or self._in_flight.batch
            or self._backlog.is_replaying
            or self._must_resync(now)
        ):
            return True
        return self.gate.is_open(now) and (self._backlog.has_held_changes or self._may_retire())

    @property
    def is_steady(self) -> bool:
        """Whether all that is left to do is to send changes as they come."""
        backlog = self._backlog
        is_done = self.phase is Phase.COMPLETE and self._retiring is None
        is_cutting = self._in_flight.limit < BATCH_ITEMS
        return is_done and not (backlog.is_replaying or backlog.has_held_changes or is_cutting)

    def wakes_at(self, now: float) -> float | None:
        """Return when held or skipped changes become due, monotonic seconds; None: no such time."""
        due = [self._overflow.resync_at] if self._overflow.is_skipping else []
        if self._backlog.has_held_changes or self._retiring is not None:
            due.append(self.gate.opens_at)
        return min((at for at in due if at > now), default=None)

    def prepare_step(self, now: float) -> None:
        """Open a generation or make the next batch, if it is due and nothing is in flight."""
        if self.phase is Phase.FENCED or self._in_flight.batch is not None:
            return
        if not self._is_generation_open or self._must_resync(now):
            self._open_generation(now)
            return
        self._backlog.begin_slice()
        if not self.needs_another_slice:
            items = self._take_items(now)
            complete = self.phase is Phase.RESYNCING and not self._backlog.is_replaying
            if items or complete:
                counter, replication_id = self._numbers.next(), self._numbers.replication_id
                self._in_flight.send(
                    Batch(self.shard, counter, replication_id, items, now, complete=complete)
                )

    def next_step(self, now: float) -> Batch | Retirement | None:
        """Return the step to send now, None if there is none; the same until `accept_reply` is called."""
        if self._in_flight.batch is not None:
            return replace(self._in_flight.batch, now=now, sent_ms=self._time.lower_bound_ms(now))
        if self._retiring is not None and self.gate.is_open(now) and self._may_retire():
            cursor, latest_ms = self._retiring
            return Retirement(*self._step_header(), cursor=cursor, latest_ms=latest_ms)
        return None

    def accept_reply(self, step: Batch | Retirement, reply: Reply) -> tuple[Superseded, ...]:
        """Handle the answer to a step; return sessions that lost to another node's."""
        self._time.note_entry_id(reply.last_id)
        if reply.status is ReplyStatus.HEAVY and self._in_flight.cut(reply.fitting):
            self._backlog.cut(reply.fitting)
            return ()
        if reply.status is not ReplyStatus.OK:
            self._handle_refusal(reply)
            return ()
        self.transitions.count_events(reply.event_counts)
        if isinstance(step, Retirement):
            if self._retiring is not None:
                self._retiring = None if reply.cursor == "0" else self._retiring._replace(cursor=reply.cursor)
            return ()
        if step.complete:
            self._change_phase(PhaseEvent.COMPLETED)
        superseded = reply.superseded
        if reply.opened is not None:
            superseded += self._begin_resync(step, reply.opened, reply.replication_id)
            self._numbers.replication_id = reply.replication_id
        else:
            self._backlog.acknowledge()
        self._in_flight.accept(has_rest=self._backlog.is_replaying)
        self._numbers.acknowledged = step.counter
        return superseded

    def answer_lost(self) -> None:
        """Note that a call failed which Redis may have carried out, or may carry out yet."""
        self._in_flight.note_lost_answer()

    def accept_probe(self, probe: Probe, now: float) -> tuple[NodeNotice, ...]:
        """Compare a probe with the acknowledged state; return the notices that were not read yet."""
        self._time.note_entry_id(probe.last_id)
        # Redis may have lost fences alone, if this node has written nothing since the state that came back.
        self.rollbacks += self.gate.peers.has_lost_fence(probe.peer_traces)
        self.gate.peers.traces = probe.peer_traces
        self._numbers.note_generation(probe.counter.generation)
        self.inbox_read = probe.inbox_n
        if self._time.note_probe(probe.now_ms):
            # Perhaps renamed already, as another shard showed that this node slept: until an opening is
            # answered, what is acknowledged is the former id's.
            is_renamed = self._numbers.acknowledged.node != self._numbers.node
            self._numbers.forget()
            self._leave_generation(PhaseEvent.LEFT if is_renamed else PhaseEvent.FENCED)
        elif probe.fenced:
            self._leave_generation(PhaseEvent.FENCED)
        elif self._is_generation_open and (
            probe.replication_id != self._numbers.replication_id
            or not self._numbers.is_expected(probe.counter, in_flight=self._in_flight.batch is not None)
        ):
            self._leave_generation()
        elif self._is_generation_open:
            self.gate.probed(now)
            self._time.set_clock(now)
        return probe.inbox

    def answered(self, sent_at: float, now: float, unavailable_since: float | None) -> None:
        """Record an answer in the gate, after its content; see `EndGate.answered`.

        After an outage ends are held back, including those of the batch in flight. That batch may have been
        applied, or may be applied yet. So only a new generation can take it apart.
        """
        if not self.gate.answered(sent_at, now, unavailable_since):
            return
        batch = self._in_flight.batch
        if batch is not None and any(item.change.op is Op.END for item in batch.items):
            self._leave_generation()

    def is_settled(self, now: float) -> bool:
        """Whether other nodes may be fenced and swept: a generation is open, and the gate too."""
        return self._is_generation_open and self.gate.is_open(now)

    def is_settling(self, now: float) -> bool:
        """Whether ends are held back until other nodes have registered."""
        return self._is_generation_open and not self.gate.is_open(now)

    def fence_step(self, other: str) -> Fencing:
        return Fencing(*self._step_header(), other)

    def sweep_step(self, other: str, cursor: str, waited_ms: int, latest_ms: int) -> Sweep:
        return Sweep(*self._step_header(), other, cursor, waited_ms, latest_ms)

    def reindex_step(self, cursor: str, users: int) -> Reindex:
        return Reindex(*self._step_header(), cursor, users)

    def is_comparable(self, now: float) -> bool:
        """Whether Redis should have exactly the sessions that this node has."""
        pending = self._has_pending() or self._retiring is not None or self._overflow.is_skipping
        return self.phase is Phase.COMPLETE and self.gate.is_open(now) and not pending

    def compare_step(
        self, cursor: str, fields: int, sessions: tuple[SessionName, ...], shown: tuple[Profile, ...]
    ) -> Compare:
        return Compare(*self._step_header(), cursor, fields, sessions, shown)

    @property
    def is_sending(self) -> bool:
        """Whether a batch waits for its answer, or to be sent."""
        return self._in_flight.batch is not None

    @property
    def has_opened(self) -> bool:
        """Whether Redis has acknowledged something of this id; then a probe precedes another opening."""
        return self._numbers.acknowledged.generation > 0

    def request_resync(self) -> None:
        """Leave the generation, because records differ from this node's sessions: a resync follows."""
        self._leave_generation()

    def rename(self, node: str) -> None:
        """Continue under a new node id, which owns nothing yet: the old one is fenced in some shard."""
        self._leave_generation(PhaseEvent.RENAMED)
        self._causes |= Cause.FENCED
        self._numbers.rename(node)
        self.inbox_read = 0

    def _step_header(self) -> tuple[int, Counter, str]:
        """Return the first fields of each step but an opening."""
        return self.shard, self._numbers.acknowledged, self._numbers.replication_id

    def _change_phase(self, event: PhaseEvent) -> None:
        self.phase = NEXT_PHASE.get((self.phase, event), self.phase)

    def _handle_refusal(self, reply: Reply) -> None:
        is_fenced = reply.status is ReplyStatus.FENCED
        self._leave_generation(PhaseEvent.FENCED if is_fenced else PhaseEvent.LEFT)
        self._numbers.note_generation(reply.generation)

    def _leave_generation(self, event: PhaseEvent = PhaseEvent.LEFT) -> None:
        """Leave the generation; the next opening's answer shows whether the batch in flight was applied."""
        self._in_flight.leave()
        self._retiring = None
        if self.phase is Phase.COMPLETE:
            self._causes = Cause.NONE
        self._change_phase(event)

    def _has_pending(self) -> bool:
        """Whether there are changes that Redis has not acknowledged."""
        flight = self._in_flight
        return bool(flight.batch or flight.unconfirmed or not self._backlog.is_empty)

    def _must_resync(self, now: float) -> bool:
        """Whether changes were skipped and everything before them was written."""
        return now >= self._overflow.resync_at and not self._has_pending()

    def _open_generation(self, now: float) -> None:
        self._leave_generation()
        self._time.forget_clock()
        skipped = self._overflow.open(now, all_written=not self._has_pending())
        opening = Opening(self._numbers.acknowledged.node, self._time.last_entry_id, skipped)
        self._in_flight.send(Batch(self.shard, self._numbers.open(), "", (), now, opening=opening))

    def _begin_resync(self, step: Batch, opened: Opened, replication_id: str) -> tuple[Superseded, ...]:
        """Handle the answer to an opening; begin to plan the resync from the present log and sessions."""
        known, batch_history = self._numbers.acknowledged, opened.batch_history
        is_first, lost = not known.generation, self._numbers.is_lost(batch_history)
        for snapshot in self._numbers.unanswered(batch_history):
            self.transitions.count_events(snapshot.event_counts)
        has_other_replication_id = replication_id != self._numbers.replication_id
        self.gate.generation_opened(
            step.now,
            {node: trace for node, trace in opened.peer_traces.items() if node != known.node},
            first=is_first,
            concerns_all=lost or has_other_replication_id,
            replication_id=replication_id if has_other_replication_id else "",
        )
        has_gone_back = lost or (has_other_replication_id and not is_first)
        self.resyncs += not is_first
        self.rollbacks += has_gone_back
        self.losses += lost
        if lost:
            self._causes |= Cause.LOST
        if has_gone_back:
            self._causes |= Cause.GONE_BACK
        applied = self._in_flight.resolve(batch_history)
        if applied is not None:
            self._backlog.acknowledge()
        self._backlog.begin_resync(lost=Cause.LOST in self._causes)
        reported = self._overflow.opening_accepted()
        self._change_phase(PhaseEvent.OPENED)
        if step.counter.generation > 1:
            self._retiring = _Retiring("0", reported.to_ms if reported else 0)
        return applied.superseded if applied is not None else ()

    def _take_items(self, now: float) -> tuple[Item, ...]:
        """Take the items of the next batch, in order for each user."""
        with_ends = self.gate.is_open(now)
        # What comes next in the outbox happened after the retirement was due.
        retires = with_ends and self._retiring is not None and not self._overflow.is_skipping
        items = self._backlog.take(self._in_flight.limit, with_ends=with_ends, with_queued=not retires)
        # A registration yields to any session of another node. If no other node is alive, those on record
        # would supersede live ones and disconnect their clients. Then ages decide, as between logins.
        if any(item.change.op is Op.REGISTER for item in items):
            if self.gate.peers.only_traces():
                items = [_with_op(Op.LOGIN, item) for item in items]
            elif Cause.GONE_BACK in self._causes:
                items = [_with_op(Op.RECLAIM, item) for item in items]
        return tuple(items)

    def _may_retire(self) -> bool:
        # While changes are skipped, live sessions are missing in Redis until the resync that registers them.
        backlog = self._backlog
        pending = backlog.has_held_changes or backlog.is_replaying or self._overflow.is_skipping
        return self._retiring is not None and not pending


def _with_op(op: Op, item: Item) -> Item:
    """Return a registration as another kind of change, which decides differently on conflicts."""
    change = item.change
    return item._replace(change=change._replace(op=op)) if change.op is Op.REGISTER else item


def _id_order(entry_id: str) -> tuple[int, ...]:
    return tuple(map(int, entry_id.split("-")))
