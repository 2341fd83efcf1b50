"""What one node has to send to one shard, and in which order: pure.

The pending changes of the shard are in its log, oldest first (`ShardLog`), and stay there until Redis has
acknowledged them:

    0           start          cursor           replay end         len
    │ held back │ in flight    │ to replay      │ queued           │
    │           │ or held back │                │                  │

Each batch takes the next changes. While the node waits for its peers (see `end_gate`), ends are *held*
back, and with them later changes of the same user: the reader skips them. A login among these is announced
as a pending login, so that an end on another node does not make its user offline. An acknowledged batch
leaves the log, the held changes before and within it stay.

What was taken is put back by moving the log's cursor:

* the gate opens: to 0, because only held changes are left before the cursor;
* a batch is refused as heavy: to its first change that does not fit;
* a resync begins: to 0. All that Redis has not acknowledged is replayed, after the registrations of the
  sessions that are live.

Changes before the *replay end* precede what the outbox may yet get: the retirement waits for them, and in a
resync its completion. A resync is planned in slices before any of it is sent, because an outage leaves
hundreds of thousands of changes; its sessions are scanned in slices, because there may be a hundred thousand.

Tests: `tests/outbox/test_backlog.py`, `tests/store/test_recovery.py`, `tests/simulation`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from presence.core.changes import Change, Op
from presence.outbox.queue import ShardLog
from presence.outbox.steps import Item
from presence.protocol.constants import Code

MAX_SCANNED_PER_CALL: Final = 1024  # sessions, or pending changes: one or two milliseconds
MAX_PLANNED_PER_CALL: Final = 2048  # pending changes: one or two milliseconds

Live = Callable[[int], Iterable[Change]]
"""Returns registrations (code 2) of all live sessions of a shard, each made when it is asked for.

A stale session comes as `Op.STALE`: a mark that is noted for an end that may restore, and is never sent.
"""


class Restorations:
    """Which ends *restore*: the script writes the user's whole period, because Redis has lost it.

    Of a user's several sessions, the last to end restores the period, because the user was online while one
    of them was live. A replaced session restores nothing: it was no longer in the record.
    """

    def __init__(self) -> None:
        self._restoring: dict[str, str] = {}  # by uid the session whose pending end restores
        self._stale: dict[str, set[str]] = {}  # by uid the live sessions that Redis lost and that are stale

    def forget_stale(self) -> None:
        """Forget stale sessions before they are noted anew, because Redis lost data again."""
        self._stale.clear()

    def add_stale(self, mark: Change) -> None:
        """Note a live session that is not registered, because it is stale (`Op.STALE`)."""
        self._stale.setdefault(mark.uid, set()).add(mark.session)

    def add_forgotten_end(self, end: Change) -> None:
        """Note a pending end of a session that Redis has lost; ends are noted in order."""
        if end.code != Code.REPLACED:
            self._restoring[end.uid] = end.session

    def take_up(self, change: Change) -> bool:
        """Note a change that is about to be sent or held back; return whether it restores.

        A user's stale sessions are forgotten one by one as their changes come; if the last one's is an end,
        it restores. May be called again for a change that was put back: the answer is the same, and nothing
        else changes.
        """
        if not (self._stale or self._restoring):
            return False
        stale = self._stale.get(change.uid)
        if stale and change.session in stale and change.op is not Op.UPDATE:  # an update puts none on record
            stale.discard(change.session)
            if not stale:
                del self._stale[change.uid]
                if change.op is Op.END:
                    self.add_forgotten_end(change)
        return change.op is Op.END and self._restoring.get(change.uid) == change.session

    def acknowledge(self, changes: Iterable[Change]) -> None:
        """Forget ends that Redis has."""
        if self._restoring:
            for change in changes:
                if change.op is Op.END and self._restoring.get(change.uid) == change.session:
                    del self._restoring[change.uid]


@dataclass(eq=False, slots=True)
class _Plan:
    """The preparation of a resync: first the pending changes are examined, then the live sessions scanned."""

    live: Iterator[Change]  # see `Live`: of the sessions that are live after all pending changes
    lost: bool  # whether Redis lost acknowledged changes: then an end may have to restore its whole period
    # monotonic seconds. A session that logged in later comes after all pending changes, some of which were
    # skipped, and is left to the next resync.
    skipped_from: float
    examined: int = 0  # changes of the log
    arriving: set[str] = field(default_factory=set)  # sessions whose login is pending


@dataclass(eq=False, slots=True)
class _LastBatch:
    """Where the items of the last batch come from; the log has been taken up to its cursor."""

    registrations: list[Item]  # its first items, which are not in the log
    start: int  # index in the log of the first change that was taken for it
    sources: Sequence[int] = ()  # indexes in the log of its other items
    held_indexes: list[int] = field(default_factory=list)  # of the changes that were held back meanwhile
    newly_held: dict[str, int] = field(default_factory=dict)  # by uid held since then, its first such index


class Backlog:
    """What is pending in one shard, and what of it comes next.

    Args:
        shard: its number.
        log: the pending changes, which only this class takes.
        live: see `Live`.
    """

    def __init__(self, shard: int, log: ShardLog, live: Live) -> None:
        self.log = log
        self._shard = shard
        self._live = live
        self._plan: _Plan | None = None  # of a resync, until all its sessions are scanned
        self._registrations: deque[Item] = deque()  # of a resync, sent before all changes
        self._restorations = Restorations()
        self._replay_end = 0  # see the module
        self._held_uids: set[str] = set()  # uids whose changes are held back
        self._last_batch: _LastBatch | None = None  # until it is acknowledged, or put back by a resync
        self._has_more_to_scan = False  # whether `take` stopped at `MAX_SCANNED_PER_CALL`

    @property
    def needs_another_slice(self) -> bool:
        """Whether `begin_slice` has to be called before there can be more to send.

        Either a resync is being planned, or `take` has scanned as many changes as it may in one call.
        """
        return self._has_more_to_scan or (self._plan is not None and not self._registrations)

    @property
    def is_replaying(self) -> bool:
        """Whether anything is left that precedes the changes that the outbox may yet get."""
        left = self._plan is not None or self._has_more_to_scan or self.log.cursor < self._replay_end
        return left or bool(self._registrations)

    @property
    def has_held_changes(self) -> bool:
        return bool(self._held_uids)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is pending."""
        return not (self.log.changes or self.is_replaying)

    def begin_resync(self, *, lost: bool) -> None:
        """Put back all changes, and begin to plan their replay; see `begin_slice`.

        Args:
            lost: whether Redis lost acknowledged changes.
        """
        self.log.put_back(0)
        self._last_batch, self._has_more_to_scan = None, False
        self._held_uids.clear()
        self._registrations.clear()
        if lost:
            self._restorations.forget_stale()
        self._replay_end = len(self.log.changes)
        self._plan = _Plan(iter(self._live(self._shard)), lost, self.log.overflow.skipped_from)

    def begin_slice(self) -> None:
        """Plan a slice of the resync, if there is one; else let `take` scan on. Takes milliseconds."""
        self._has_more_to_scan = False
        if self._plan is None or self._registrations:
            return
        if self._plan.examined < self._replay_end:
            self._examine(self._plan)
        else:
            self._scan(self._plan)

    def _examine(self, plan: _Plan) -> None:
        """Examine pending changes; drop updates of sessions whose registration has the latest profile."""
        start = plan.examined
        end = min(start + MAX_PLANNED_PER_CALL, self._replay_end)
        kept = []
        for index in range(start, end):
            change = self.log.changes[index]
            is_arriving = change.session in plan.arriving
            if change.op is Op.UPDATE:
                if is_arriving or change.privacy:  # a registration cannot make a user visible again
                    kept.append(index)
                continue
            kept.append(index)
            if change.op is Op.END:
                if plan.lost and not is_arriving:
                    self._restorations.add_forgotten_end(change)
            elif not is_arriving:
                plan.arriving.add(change.session)
        plan.examined += len(kept)
        if len(kept) < end - start:
            self._replay_end -= self.log.drop(start, end, kept)

    def _scan(self, plan: _Plan) -> None:
        """Scan live sessions: those are registered whose login is neither pending nor was skipped."""
        scanned = list(islice(plan.live, MAX_SCANNED_PER_CALL))
        for registration in scanned:
            if registration.op is Op.STALE:
                if plan.lost:
                    self._restorations.add_stale(registration)
            elif registration.session not in plan.arriving and registration.at < plan.skipped_from:
                self._registrations.append(Item(registration))
        if len(scanned) < MAX_SCANNED_PER_CALL:
            self._plan = None

    def take(self, limit: int, *, with_ends: bool, with_queued: bool) -> list[Item]:
        """Take the next items, in order for each user.

        Args:
            limit: maximum of items.
            with_ends: whether ends may be sent; then what was held back comes first.
            with_queued: whether changes after the replay end may be sent.
        """
        if with_ends and self._held_uids:
            # Here and in `cut`: what is put back is replayed before what the outbox may yet get.
            self._replay_end = max(self._replay_end, self.log.cursor)
            self.log.put_back(0)
            self._held_uids.clear()
        items = [self._registrations.popleft() for _ in range(min(limit, len(self._registrations)))]
        self._last_batch = batch = _LastBatch([*items], self.log.cursor)
        if self._plan is None:
            end = len(self.log.changes) if with_queued else self._replay_end
            available = max(0, end - batch.start)
            if with_ends:
                changes = self.log.take(min(limit - len(items), available))
                items += [Item(change, self._restorations.take_up(change)) for change in changes]
                batch.sources = range(batch.start, self.log.cursor)
            else:
                items += self._take_unheld(batch, limit - len(items), available)
        if not items:
            self._last_batch = None
        return items

    def _take_unheld(self, batch: _LastBatch, limit: int, available: int) -> list[Item]:
        """Take changes without those to be held back."""
        items: list[Item] = []
        sources: list[int] = []
        batch.sources = sources
        for index, change in enumerate(self.log.take(min(available, MAX_SCANNED_PER_CALL)), batch.start):
            if len(items) == limit:
                self.log.put_back(index)
                return items
            is_held = change.uid in self._held_uids
            restores = self._restorations.take_up(change)
            if not is_held and change.op is not Op.END:
                items.append(Item(change, restores))
                sources.append(index)
                continue
            batch.held_indexes.append(index)
            if not is_held:
                self._held_uids.add(change.uid)
                batch.newly_held[change.uid] = index
            if change.op not in (Op.END, Op.UPDATE):
                items.append(Item(change._replace(op=Op.PENDING_LOGIN)))
                sources.append(index)
        self._has_more_to_scan = available > MAX_SCANNED_PER_CALL and len(items) < limit
        return items

    def cut(self, fitting: int) -> None:
        """Put back all of the batch but its first items; they are the next to be taken."""
        batch = self._last_batch
        if batch is None:
            return
        self._replay_end = max(self._replay_end, self.log.cursor)
        self._registrations.extendleft(reversed(batch.registrations[fitting:]))
        fitting_changes = max(0, fitting - len(batch.registrations))
        del batch.registrations[fitting:]
        rest = batch.sources[fitting_changes:]
        batch.sources = batch.sources[:fitting_changes]
        if rest:
            self.log.put_back(rest[0])
            batch.held_indexes = [index for index in batch.held_indexes if index < rest[0]]
            self._held_uids -= {uid for uid, index in batch.newly_held.items() if index >= rest[0]}

    def acknowledge(self) -> None:
        """Remove the changes of the last batch from the log, because Redis has them."""
        batch, self._last_batch = self._last_batch, None
        if batch is not None:
            removed = self.log.acknowledge(batch.start, batch.held_indexes)
            self._restorations.acknowledge(removed)
            self._replay_end = max(0, self._replay_end - len(removed))
