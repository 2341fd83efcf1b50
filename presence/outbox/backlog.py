"""What one node has to tell one shard, in the order in which it goes: pure.

First the sessions that a resync registers, then what that resync replays, then what comes from the outbox.
A resync is planned in slices before any of that is sent, and its sessions are scanned in slices.
While others are waited for (see `settling`) ends are held back, and with them what follows of the same user.
A login among these is announced by a mark, so that an end elsewhere does not make its user offline.
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
"""Registrations (code 2) of all sessions of a shard that live at this moment, made as they are asked for."""


MAX_PLANNED_PER_CALL = 2048  # waiting changes, each looked at twice: some 2 ms

Each = TypeVar("Each")


class ByShard(Generic[Each]):
    """One pass over something, of which each shard takes its own as it needs them: O(1) for each.

    Args:
        found: of all shards.
        shard_of: the shard of each, from 0 to `shards` - 1.
        shards: how many shards there are.
    """

    def __init__(self, found: Iterator[Each], shard_of: Callable[[Each], int], shards: int) -> None:
        self._rest = found
        self._shard_of = shard_of
        self._found: list[deque[Each]] = [deque() for _ in range(shards)]
        self._asked = [False] * shards

    def is_untaken(self, shard: int) -> bool:
        """Whether nobody has asked for this shard yet."""
        return not self._asked[shard]

    def items_of(self, shard: int) -> Iterator[Each]:
        """Return what belongs to a shard, in order; to be asked once for each shard."""
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
    """What to send after the opening batch, in slices: an outage leaves hundreds of thousands of changes.

    First come the live sessions as they stood before the waiting changes, then these in order. The sessions
    are looked at only as they are asked for: there may be a hundred thousand, and clients wait.

    Attributes:
        replayed: what waits and is to be sent, in order; the first of it is there once `work` is done.
    """

    # what Redis has not acknowledged, oldest first; snapshots of an earlier resync are left out
    waiting: InitVar[Iterable[Item]]
    # returns what has waited in the outbox behind these, at most so many at a time; [] at the end
    more: Callable[[int], list[Item]]
    # registrations of the sessions that live now, when all that waits has happened; None where one is not to
    # be registered
    live: Iterable[Change | None]
    _: KW_ONLY
    lost: bool  # whether Redis lost what it had acknowledged: then an end may have to tell its period whole
    # earliest `Change.at` that a full outbox skips, monotonic seconds; infinity if none. A session that
    # logged in since then came after all that waits, and is left to the resync after it.
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
        """Everything that waits, in order, however far `work` has come; not what `more` would return."""
        return [*self._changes, *self.replayed, *self._unread]

    def work(self, limit: int = MAX_PLANNED_PER_CALL) -> tuple[bool, list[Change]]:
        """Look at some of what waits, first forwards, then backwards.

        Args:
            limit: how many changes to look at.

        Returns:
            Whether the plan is complete, and changes that are not sent: updates of sessions whose
            registrations show them as they are now, and of ended ones, of which it does not matter.
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
        """Return the sessions to register first, None for each of the others; once the plan is complete."""
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
        """Put the last change not yet looked at before those that follow it."""
        change = item.change
        if change.op is Op.UPDATE and change.session not in self._arriving:
            covered.append(change)
            return
        if change.op is not Op.END:
            self.replayed.appendleft(Item(change))  # it waited as in any outage, and its age decides
            return
        # A replaced session was no longer in the record. Of a user's several sessions the last to end tells
        # the period: while one of them lived the user was online.
        forgotten = self.lost and change.session not in self._arriving and change.code != Code.REPLACED
        restores = item.restores or (forgotten and change.uid not in self._ended_later)
        self.replayed.appendleft(Item(change, restores=restores))
        if forgotten:
            self._ended_later.add(change.uid)


@dataclass(eq=False, repr=False)
class Backlog:
    """What waits for one shard.

    Attributes:
        has_marks: whether there are marks in Redis.
    """

    shard: int  # the shard
    outbox: Outbox  # where changes come from
    live: Live

    def __post_init__(self) -> None:
        self.has_pending_logins = False
        self._plan: Plan | None = None  # of a resync, until it is complete; then nothing else waits here
        self._unscanned: Iterator[Item | None] | None = None  # of a resync, not scanned yet
        self._registrations: deque[Item] = deque()  # of a resync; go before the sequence
        self._has_more = False  # whether `next_items` stopped at `MAX_SCANNED_PER_CALL`
        self._sequence: deque[Item] = deque()  # goes before what is queued in the outbox
        self._held: list[Item] = []  # goes before the sequence, once settled
        self._held_uids: set[str] = set()
        self._stale: dict[str, set[str]] = {}  # by uid, sessions that Redis lost

    @property
    def is_planning(self) -> bool:
        """Whether `continue_planning` is to be called before anything can be taken."""
        return (
            self._plan is not None
            or self._has_more
            or (self._unscanned is not None and not self._registrations)
        )

    @property
    def is_replaying(self) -> bool:
        """Whether something of a resync is left that need not wait."""
        return self.is_planning or bool(self._unscanned is not None or self._registrations or self._sequence)

    @property
    def has_held_items(self) -> bool:
        """Whether something is held back."""
        return bool(self._held)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, in the outbox neither."""
        return not (self._held or self.is_replaying or self.outbox.queued(self.shard))

    def begin_resync(self, pending: Iterable[Item], *, lost: bool) -> None:
        """Begin to plan a resync from this moment's queue and sessions; see `continue_planning`.

        Args:
            pending: what was under way and not applied; goes before all that waits.
            lost: whether Redis lost what it had acknowledged.
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
        self._has_more = self.has_pending_logins = False

    def continue_planning(self) -> None:
        """Plan a slice of the resync that was begun; a few milliseconds at most."""
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
        """Return a change of the outbox; the end of one that Redis lost, and nobody vouched for, restores."""
        sessions = self._stale.get(change.uid)
        if sessions is None or change.session not in sessions or change.op is Op.UPDATE:
            return Item(change)  # how a session is shown puts nobody on record
        sessions.discard(change.session)
        if not sessions:
            del self._stale[change.uid]
        restores = change.op is Op.END and change.code != Code.REPLACED and not sessions
        return Item(change, restores=restores)

    def release_held(self) -> None:
        """Hold nothing back any more."""
        self._sequence.extendleft(reversed(self._held))
        self._held, self._held_uids = [], set()

    def next_items(self, limit: int, *, settled: bool, from_outbox: bool) -> list[Item]:
        """Return what goes next, in order for each user.

        Args:
            limit: how much, at most.
            settled: whether ends need not wait.
            from_outbox: whether what is queued there may go.
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
            if settled or not self._must_wait(item.change):
                items.append(item)
                continue
            self._held.append(item)
            self._held_uids.add(item.change.uid)
            if item.change.op not in (Op.END, Op.UPDATE):
                self.has_pending_logins = True
                items.append(Item(item.change._replace(op=Op.PENDING_LOGIN), snapshot=True))
        else:
            self._has_more = True
        return items

    def _must_wait(self, change: Change) -> bool:
        return change.op is Op.END or change.uid in self._held_uids
