"""The items that one node has to send to one shard, in order: pure.

First the sessions that a resync registers, then the changes that it replays, then those from the outbox.
A resync is planned in slices before any of them is sent, and its sessions are scanned in slices.
While the node waits for its peers (see `end_gate`), ends are held back, and with them later changes of
the same user. A login among these is announced as a pending login, so that an end on another node does not
make its user offline.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, InitVar, dataclass
from itertools import islice
from typing import Final, Generic, TypeVar

from presence.core.changes import Change, Op
from presence.outbox.queue import Outbox
from presence.outbox.steps import Item
from presence.protocol.constants import Code

MAX_SCANNED_PER_CALL: Final = 1024  # sessions, or pending changes: one or two milliseconds

Live = Callable[[int], Iterable[Change]]
"""Returns registrations (code 2) of all live sessions of a shard, each made when it is asked for."""


MAX_PLANNED_PER_CALL = 2048  # pending changes, each examined twice: some 2 ms

Each = TypeVar("Each")


class ByShard(Generic[Each]):
    """One lazy pass over elements of all shards, shared by the shards: O(1) per element.

    Args:
        found: elements of all shards.
        shard_of: the shard of an element, from 0 to `shards` - 1.
        shards: number of shards.
    """

    def __init__(self, found: Iterator[Each], shard_of: Callable[[Each], int], shards: int) -> None:
        self._rest = found
        self._shard_of = shard_of
        self._found: list[deque[Each]] = [deque() for _ in range(shards)]
        self._asked = [False] * shards

    def is_untaken(self, shard: int) -> bool:
        """Whether `items_of` was not called for this shard yet."""
        return not self._asked[shard]

    def items_of(self, shard: int) -> Iterator[Each]:
        """Return the elements of a shard, in order; call it once per shard."""
        self._asked[shard] = True
        return self._items_of(shard)

    def _items_of(self, shard: int) -> Iterator[Each]:
        found = self._found[shard]
        while True:
            while found:
                yield found.popleft()
            for each in self._rest:
                self._found[self._shard_of(each)].append(each)
                if found:
                    break
            else:
                return


@dataclass(eq=False, repr=False)
class Plan:
    """Plans what follows the opening batch, in slices: an outage leaves hundreds of thousands of changes.

    First come the live sessions as they were before the pending changes, then these changes in order.
    Sessions are scanned only as they are asked for, because there may be a hundred thousand.

    Attributes:
        replayed: the pending changes to send, in order; complete once `work` is done.
    """

    # what Redis has not acknowledged, oldest first; snapshots of an earlier resync are left out
    waiting: InitVar[Iterable[Item]]
    # takes the changes behind these from the outbox, at most so many per call; [] at the end
    more: Callable[[int], list[Item]]
    # registrations of the sessions that are live after all pending changes; None for one that must not be
    # registered
    live: Iterable[Change | None]
    _: KW_ONLY
    lost: bool  # whether Redis lost acknowledged changes: then an end may have to restore its whole period
    # earliest `Change.at` skipped by a full outbox, monotonic seconds; infinity if none. A session that
    # logged in after it comes after all pending changes, and is left to the next resync.
    skipped_from: float

    def __post_init__(self, waiting: Iterable[Item]) -> None:
        self._unread = deque(waiting)
        self._changes: list[Item] = []
        self._arriving: set[str] = set()
        self._ended_later: set[str] = set()
        self._all_read = False
        self.replayed: deque[Item] = deque()

    @property
    def unsent(self) -> list[Item]:
        """All pending changes in order, whatever `work` has done; without those that `more` would return."""
        return [*self._changes, *self.replayed, *self._unread]

    def work(self, limit: int = MAX_PLANNED_PER_CALL) -> tuple[bool, list[Change]]:
        """Examine some of the pending changes, first forwards, then backwards.

        Args:
            limit: maximum of changes to examine.

        Returns:
            Whether the plan is complete, and changes that need not be sent: updates of sessions whose
            registration has the latest profile, and of sessions that have ended.
        """
        while not self._all_read and limit > 0:
            some = [self._unread.popleft() for _ in range(min(limit, len(self._unread)))] or self.more(limit)
            self._all_read = not some
            limit -= len(some)
            self._read(some)
        covered: list[Change] = []
        while self._all_read and self._changes and limit > 0:
            limit -= 1
            self._replay(self._changes.pop(), covered)
        return self._all_read and not self._changes, covered

    def registrations(self) -> Iterator[Item | None]:
        """Return the sessions to register first, None for each other one; only once the plan is complete."""
        return (
            Item(change, snapshot=True)
            if change is not None and change.session not in self._arriving and change.at < self.skipped_from
            else None
            for change in self.live
        )

    def _read(self, some: list[Item]) -> None:
        for item in some:
            if item.snapshot:
                continue
            self._changes.append(item)
            if item.change.op not in (Op.END, Op.UPDATE):
                self._arriving.add(item.change.session)

    def _replay(self, item: Item, covered: list[Change]) -> None:
        """Prepend the last change not yet examined to those that follow it."""
        change = item.change
        if change.op is Op.UPDATE and change.session not in self._arriving:
            covered.append(change)
            return
        if change.op is not Op.END:
            self.replayed.appendleft(Item(change))  # as after any outage, its age decides
            return
        # A replaced session was no longer in the record. Of a user's several sessions, the last to end
        # restores the period, because the user was online while one of them was live.
        forgotten = self.lost and change.session not in self._arriving and change.code != Code.REPLACED
        restores = item.restores or (forgotten and change.uid not in self._ended_later)
        self.replayed.appendleft(Item(change, restores=restores))
        if forgotten:
            self._ended_later.add(change.uid)


@dataclass(eq=False, repr=False)
class Backlog:
    """The pending items of one shard."""

    shard: int
    outbox: Outbox  # the source of changes
    live: Live

    def __post_init__(self) -> None:
        self._plan: Plan | None = None  # of a resync, until it is complete; then the deques below are empty
        self._unscanned: Iterator[Item | None] | None = None  # sessions of a resync that were not scanned yet
        self._registrations: deque[Item] = deque()  # of a resync; sent before the sequence
        self._has_more = False  # whether `next_items` stopped at `MAX_SCANNED_PER_CALL`
        self._sequence: deque[Item] = deque()  # sent before the changes in the outbox
        self._held: list[Item] = []  # held back; sent before the sequence, once settled
        self._held_uids: set[str] = set()
        self._stale: dict[str, set[str]] = {}  # stale sessions that Redis lost, by uid

    @property
    def is_planning(self) -> bool:
        """Whether `continue_planning` has to be called before anything can be sent."""
        return (
            self._plan is not None
            or self._has_more
            or (self._unscanned is not None and not self._registrations)
        )

    @property
    def is_replaying(self) -> bool:
        """Whether items of a resync are left that need not be held back."""
        return self.is_planning or bool(self._unscanned is not None or self._registrations or self._sequence)

    @property
    def has_held_items(self) -> bool:
        return bool(self._held)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is pending, here or in the outbox."""
        return not (self._held or self.is_replaying or self.outbox.queued(self.shard))

    def begin_resync(self, pending: Iterable[Item], *, lost: bool) -> None:
        """Begin to plan a resync from the present queue and sessions; see `continue_planning`.

        Args:
            pending: items that were in flight and not applied; they are sent before all others.
            lost: whether Redis lost acknowledged changes.
        """
        if lost:
            self._stale = {}
        queued = self.outbox.queued(self.shard)

        def more(limit: int) -> list[Item]:
            nonlocal queued
            taken = self.outbox.take_batch(self.shard, min(limit, queued))
            queued -= len(taken)
            return [self._item(change) for change in taken]

        interrupted = self._plan.unsent if self._plan else ()
        self._plan = Plan(
            [*pending, *self._held, *interrupted, *self._sequence],
            more,
            self._registrable(self.live(self.shard), lost),
            lost=lost,
            skipped_from=self.outbox.skipped_from(self.shard),
        )
        self._unscanned, self._registrations, self._sequence = None, deque(), deque()
        self._held, self._held_uids = [], set()
        self._has_more = False

    def continue_planning(self) -> None:
        """Plan a slice of the resync; at most a few milliseconds."""
        self._has_more = False
        if self._plan is not None:
            is_complete, covered = self._plan.work()
            self.outbox.release(self.shard, covered)
            if is_complete:
                self._unscanned, self._sequence, self._plan = (
                    self._plan.registrations(),
                    self._plan.replayed,
                    None,
                )
        elif self._unscanned is not None and not self._registrations:
            scanned = list(islice(self._unscanned, MAX_SCANNED_PER_CALL))
            self._registrations.extend(item for item in scanned if item is not None)
            if len(scanned) < MAX_SCANNED_PER_CALL:
                self._unscanned = None

    def _registrable(self, live: Iterable[Change], lost: bool) -> Iterator[Change | None]:
        for change in live:
            if change.op is Op.STALE and lost:
                self._stale.setdefault(change.uid, set()).add(change.session)
            yield None if change.op is Op.STALE else change

    def _item(self, change: Change) -> Item:
        """Return a change of the outbox as an item; the end of a stale session that Redis lost restores."""
        sessions = self._stale.get(change.uid)
        if sessions is None or change.session not in sessions or change.op is Op.UPDATE:
            return Item(change)  # an update puts no session on record
        sessions.discard(change.session)
        if not sessions:
            del self._stale[change.uid]
        restores = change.op is Op.END and change.code != Code.REPLACED and not sessions
        return Item(change, restores=restores)

    def release_held(self) -> None:
        self._sequence.extendleft(reversed(self._held))
        self._held, self._held_uids = [], set()

    def next_items(self, limit: int, *, settled: bool, from_outbox: bool) -> list[Item]:
        """Return the next items, in order for each user.

        Args:
            limit: maximum of items.
            settled: whether ends may be sent.
            from_outbox: whether changes in the outbox may be sent.
        """
        items = [self._registrations.popleft() for _ in range(min(limit, len(self._registrations)))]
        if self._unscanned is not None:
            return items
        for _ in range(MAX_SCANNED_PER_CALL):
            if len(items) >= limit:
                break
            if not self._sequence:
                if not from_outbox:
                    break
                taken = self.outbox.take_batch(self.shard, limit - len(items))
                self._sequence.extend(map(self._item, taken))
                if not self._sequence:
                    break
            item = self._sequence.popleft()
            if settled or not self._must_hold(item.change):
                items.append(item)
                continue
            self._held.append(item)
            self._held_uids.add(item.change.uid)
            if item.change.op not in (Op.END, Op.UPDATE):
                items.append(Item(item.change._replace(op=Op.PENDING_LOGIN), snapshot=True))
        else:
            self._has_more = True
        return items

    def _must_hold(self, change: Change) -> bool:
        return change.op is Op.END or change.uid in self._held_uids
