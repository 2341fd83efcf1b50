"""The order in which a node tells a shard, anew, how things are and what happened meanwhile."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from presence.changes import Change, Op
from presence.store.batches import Item
from protocol.constants import Code

PLANNED_A_CALL = 2048  # waiting changes, each looked at twice: some 2 ms

Each = TypeVar("Each")


class Parted(Generic[Each]):
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

    def has(self, shard: int) -> bool:
        """Whether nobody has asked for this shard yet."""
        return not self._asked[shard]

    def of(self, shard: int) -> Iterator[Each]:
        """Return what belongs to a shard, in order; to be asked once for each shard."""
        self._asked[shard] = True
        return self._of(shard)

    def _of(self, shard: int) -> Iterator[Each]:
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


class Plan:
    """What to send after the opening batch, in slices: an outage leaves hundreds of thousands of changes.

    First come the live sessions as they stood before the waiting changes, then these in order. The sessions
    are looked at only as they are asked for: there may be a hundred thousand, and clients wait.

    Args:
        waiting: what Redis has not acknowledged, oldest first; snapshots of an earlier resync are left out.
        more: returns what has waited in the outbox behind these, at most so many at a time; [] at the end.
        live: registrations of the sessions that live now, when all that waits has happened; None where
            one is not to be registered.
        lost: whether Redis lost what it had acknowledged: then an end may have to tell its period whole.
        skipped_from: earliest `Change.at` that a full outbox skips, monotonic seconds; infinity if none. A
            session that logged in since then came after all that waits, and is left to the resync after it.

    Attributes:
        replayed: what waits and is to be sent, in order; the first of it is there once `work` is done.
    """

    def __init__(
        self,
        waiting: Iterable[Item],
        more: Callable[[int], list[Item]],
        live: Iterable[Change | None],
        *,
        lost: bool,
        skipped_from: float,
    ) -> None:
        self._unread = deque(waiting)
        self._more = more
        self._live = live
        self._lost = lost
        self._skipped_from = skipped_from
        self._changes: list[Item] = []
        self._arriving: set[str] = set()
        self._ended_later: set[str] = set()
        self._all_read = False
        self.replayed: deque[Item] = deque()

    @property
    def unsent(self) -> list[Item]:
        """Everything that waits, in order, however far `work` has come; not what `more` would return."""
        return [*self._changes, *self.replayed, *self._unread]

    def work(self, limit: int = PLANNED_A_CALL) -> tuple[bool, list[Change]]:
        """Look at some of what waits, first forwards, then backwards.

        Args:
            limit: how many changes to look at.

        Returns:
            Whether the plan is complete, and changes that are not sent: updates of sessions whose
            registrations show them as they are now, and of ended ones, of which it does not matter.
        """
        while not self._all_read and limit > 0:
            some = [self._unread.popleft() for _ in range(min(limit, len(self._unread)))] or self._more(limit)
            self._all_read = not some
            limit -= len(some)
            self._read(some)
        covered: list[Change] = []
        while self._all_read and self._changes and limit > 0:
            limit -= 1
            self._replay(self._changes.pop(), covered)
        return self._all_read and not self._changes, covered

    def standing(self) -> Iterator[Item | None]:
        """Return the sessions to register first, None for each of the others; once the plan is complete."""
        return (
            Item(change, snapshot=True)
            if change is not None and change.session not in self._arriving and change.at < self._skipped_from
            else None
            for change in self._live
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
        forgotten = self._lost and change.session not in self._arriving and change.code != Code.REPLACED
        restores = item.restores or (forgotten and change.uid not in self._ended_later)
        self.replayed.appendleft(Item(change, restores=restores))
        if forgotten:
            self._ended_later.add(change.uid)
