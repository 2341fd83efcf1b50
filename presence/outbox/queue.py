"""The bounded, ordered queue between the engine and Redis.

Appending never waits: presence is kept in memory while Redis is unreachable. One bound holds for all shards
together. With several shards, each has a reserve beyond it, so that a shard whose server is unreachable does
not block the others. What a full outbox refuses, and until when: see `overflow`.

A change counts against the bounds, of items and of bytes, from `append` until it leaves its shard's log.
So changes that were taken but not yet acknowledged count too.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from sys import getsizeof

from presence.core.changes import Change
from presence.core.profiles import PLAIN
from presence.outbox.overflow import Overflow
from presence.outbox.pending_ages import PendingAges

# Memory of a change beside the characters of its texts: the tuple, its numbers, the texts' headers, a place
# in the log (sys.getsizeof and 9: 307).
CHANGE_BYTES = 310


@dataclass(slots=True)
class OutboxStatistics:
    """Fill level and counters of the outbox."""

    pending: int = 0  # changes in the logs of all shards; a stop would lose them
    pending_bytes: int = 0  # memory that they take
    queued: int = 0  # those of them that are neither in flight nor held back
    high_water: int = 0  # maximum of `pending` since the start
    appended_total: int = 0  # changes accepted since the start
    skipped_total: int = 0  # changes skipped since the start because the bound was hit
    skipping_shards: int = 0  # shards that skip changes now, until their resync
    max_items: int = 0  # the bounds
    max_bytes: int = 0


class ShardLog:
    """The pending changes of one shard, in order: each from `append` until Redis has it or need not get it.

        0                         cursor            len(changes)
        │ in flight or held back  │ queued          │

    Taking changes moves the cursor, and putting them back moves it back; they stay in the log.
    O(1) for each change, and a `memmove` of 8 bytes for each later change when a batch leaves the log.

    Attributes:
        changes: oldest first; only read by others.
        cursor: how many of them were taken.
        size_bytes: their approximate memory.
        overflow: the changes that were skipped.
    """

    def __init__(self, totals: OutboxStatistics, ages: PendingAges | None) -> None:
        self.changes: list[Change] = []
        self.cursor = 0
        self.size_bytes = 0
        self.overflow = Overflow()
        self._totals = totals
        self._ages = ages

    @property
    def queued(self) -> int:
        """Number of changes that were not taken."""
        return len(self.changes) - self.cursor

    def append(self, change: Change) -> None:
        totals, size = self._totals, size_of(change)
        self.changes.append(change)
        self.size_bytes += size
        totals.pending_bytes += size
        totals.pending += 1
        totals.queued += 1
        totals.appended_total += 1
        totals.high_water = max(totals.high_water, totals.pending)
        if self._ages is not None:
            self._ages.add(change)

    def take(self, limit: int) -> list[Change]:
        """Take the next changes, at most `limit`."""
        taken = self.changes[self.cursor : self.cursor + limit]
        self.cursor += len(taken)
        self._totals.queued -= len(taken)
        return taken

    def put_back(self, index: int) -> None:
        """Put back the changes from an index on: they are queued again."""
        self._totals.queued += self.cursor - index
        self.cursor = index

    def acknowledge(self, start: int, kept: Sequence[int] = ()) -> list[Change]:
        """Remove what was taken from `start` on because Redis has it; return the removed changes.

        Args:
            start: an index of the log.
            kept: indexes of taken changes that stay, in order.
        """
        removed = self._remove(start, self.cursor, kept)
        if self._ages is not None:
            self._ages.acknowledge(removed)
        self.cursor -= len(removed)
        return removed

    def drop(self, start: int, end: int, kept: Sequence[int]) -> int:
        """Remove queued changes of a range that Redis need not get; return how many were removed."""
        removed = len(self._remove(start, end, kept))
        self._totals.queued -= removed
        return removed

    def _remove(self, start: int, end: int, kept: Sequence[int]) -> list[Change]:
        removed, staying = self.changes[start:end], [self.changes[index] for index in kept]
        if staying:
            indexes = set(kept)
            removed = [change for index, change in enumerate(removed, start) if index not in indexes]
        self.changes[start:end] = staying
        size = sum(map(size_of, removed))
        self.size_bytes -= size
        self._totals.pending_bytes -= size
        self._totals.pending -= len(removed)
        if self._ages is not None:
            self._ages.remove(removed)
        return removed


class Outbox:
    """Changes on their way to Redis, first in first out in each shard.

    Args:
        shard_of: the shard of a uid, from 0 to `shards` - 1.
        shards: number of shards.
        max_items: the bound over all shards; several shards may have a quarter more, in equal parts.
        max_bytes: the bound of the changes' memory, over all shards; approximate, with the same reserve.
        ages: measures the ages of changes; None: not measured.

    Attributes:
        shard_of, shards: as above.
        logs: the pending changes, by shard.
    """

    def __init__(
        self,
        shard_of: Callable[[str], int],
        shards: int,
        *,
        max_items: int,
        max_bytes: int = sys.maxsize,
        ages: PendingAges | None = None,
    ) -> None:
        self.shards = shards
        self.shard_of = shard_of
        self._counters = OutboxStatistics(max_items=max_items, max_bytes=max_bytes)
        self.logs = [ShardLog(self._counters, ages) for _ in range(shards)]
        self._own_room = max(1, max_items // (4 * shards)) if shards > 1 else 0
        self._own_bytes = max_bytes // (4 * shards)
        self._notify_at = 0  # number of queued changes at which `_notify` is called; 0: never
        self._notify: Callable[[], None] = lambda: None

    @property
    def pending(self) -> int:
        """Changes that are queued, in flight or held back."""
        return self._counters.pending

    @property
    def queued_total(self) -> int:
        """Changes that were not taken."""
        return self._counters.queued

    @property
    def total_offered(self) -> int:
        """Changes accepted and skipped since the start."""
        return self._counters.appended_total + self._counters.skipped_total

    def append(self, change: Change) -> None:
        """Queue one change, or skip and count it when a bound is hit. Never waits."""
        log, counted = self.logs[self.shard_of(change.uid)], self._counters
        is_full = counted.pending >= counted.max_items or counted.pending_bytes >= counted.max_bytes
        if log.overflow.is_skipping or (is_full and not self._has_own_room(log)):
            counted.skipped_total += 1
            log.overflow.skip(change)
            return
        log.append(change)
        if self._notify_at and self._notify_at <= counted.queued:
            self._notify_at = 0
            self._notify()

    def _has_own_room(self, log: ShardLog) -> bool:
        return len(log.changes) < self._own_room and log.size_bytes < self._own_bytes

    def extend(self, changes: Iterable[Change]) -> None:
        """Append several changes in order. Never waits."""
        for change in changes:
            self.append(change)

    def queued(self, shard: int) -> int:
        """Return how many changes of a shard were not taken."""
        return self.logs[shard].queued

    def notify_at(self, queued: int, notify: Callable[[], None]) -> None:
        """Call `notify` once, when so many changes are queued; 0: never. Replaces the last."""
        if 0 < queued <= self._counters.queued:
            self._notify_at = 0
            notify()
        else:
            self._notify_at, self._notify = queued, notify

    def statistics(self) -> OutboxStatistics:
        return replace(self._counters, skipping_shards=sum(log.overflow.is_skipping for log in self.logs))


def size_of(change: Change) -> int:
    """Return the approximate memory of a change in bytes."""
    texts: tuple[str, ...] = (change.uid, change.device, change.session)
    if change.profile is not PLAIN:
        texts += (*change.profile.texts, change.profile.rooms)
    size = CHANGE_BYTES
    for text in texts:
        size += len(text) if text.isascii() else getsizeof(text)  # one wide character makes all of them wide
    return size
