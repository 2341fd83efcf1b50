"""The bounded, ordered queue between the engine and Redis.

Appending never waits: presence is kept in memory while Redis is unreachable. One bound holds for all shards
together. With several shards, each has a reserve beyond it, so that a shard whose server is unreachable does
not block the others. Once a shard has hit its bound, all further changes of the shard are skipped, even when
there is room again, because a later change must not overtake a skipped one. Skipped changes are counted until
a resync compares the live sessions with Redis and writes the count into the stream (`begin_resync`).

A change counts against the bounds, of items and of bytes, from `append` until `release`. So changes that were
taken but not yet acknowledged count too.
"""

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from sys import getsizeof

from presence.core.changes import Change
from presence.outbox.pending_ages import PendingAges

# Memory of a change beside the characters of its texts: the tuple, its numbers, the texts' headers, a place
# in the queue (sys.getsizeof and 8: 306).
CHANGE_BYTES = 310


@dataclass(frozen=True, slots=True)
class SkippedChanges:
    """Changes of one shard that were skipped because the outbox was full."""

    number: int
    from_ms: int  # Unix milliseconds of the earliest decision among them
    to_ms: int  # Unix milliseconds of the latest
    from_at: float  # earliest `Change.at` among them, monotonic seconds; an earlier login was not skipped

    def with_change(self, change: Change) -> "SkippedChanges":
        return self.merged(SkippedChanges(1, change.at_ms, change.at_ms, change.at))

    def merged(self, other: "SkippedChanges") -> "SkippedChanges":
        return SkippedChanges(
            self.number + other.number,
            min(self.from_ms, other.from_ms),
            max(self.to_ms, other.to_ms),
            min(self.from_at, other.from_at),
        )


@dataclass(slots=True)
class OutboxStatistics:
    """Fill level and counters of the outbox."""

    pending: int = 0  # changes that are queued or in flight; a stop would lose them
    pending_bytes: int = 0  # memory that they take
    queued: int = 0  # those of them that were not taken yet
    high_water: int = 0  # maximum of `pending` since the start
    appended_total: int = 0  # changes accepted since the start
    skipped_total: int = 0  # changes skipped since the start because the bound was hit
    skipping_shards: int = 0  # shards that skip changes now, until their resync
    max_items: int = 0  # the bounds
    max_bytes: int = 0


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
        self._ages = ages
        self._queues: list[deque[Change]] = [deque() for _ in range(shards)]
        self._skipped: list[SkippedChanges | None] = [None] * shards
        self._skipping = [False] * shards
        self._pending_in = [0] * shards
        self._pending_bytes_in = [0] * shards
        self._own_room = max(1, max_items // (4 * shards)) if shards > 1 else 0
        self._own_bytes = max_bytes // (4 * shards)
        self._notify_at = 0  # number of queued changes at which `_notify` is called; 0: never
        self._notify: Callable[[], None] = lambda: None

    @property
    def pending(self) -> int:
        """Changes that are queued or in flight."""
        return self._counters.pending

    @property
    def queued_total(self) -> int:
        """Changes that were not taken yet."""
        return self._counters.queued

    @property
    def total_offered(self) -> int:
        """Changes accepted and skipped since the start."""
        return self._counters.appended_total + self._counters.skipped_total

    def append(self, change: Change) -> None:
        """Queue one change, or skip and count it when a bound is hit. Never waits."""
        shard = self.shard_of(change.uid)
        counted = self._counters
        is_full = counted.pending >= counted.max_items or counted.pending_bytes >= counted.max_bytes
        if is_full and not self._has_own_room(shard):
            self._skipping[shard] = True
        if self._skipping[shard]:
            self._skip(shard, change)
            return
        self._queues[shard].append(change)
        self._pending_in[shard] += 1
        counted.appended_total += 1
        counted.queued += 1
        counted.pending += 1
        size = size_of(change)
        counted.pending_bytes += size
        self._pending_bytes_in[shard] += size
        if self._ages is not None:
            self._ages.add(change)
        counted.high_water = max(counted.high_water, counted.pending)
        if self._notify_at and self._notify_at <= counted.queued:
            self._notify_at = 0
            self._notify()

    def _has_own_room(self, shard: int) -> bool:
        return self._pending_in[shard] < self._own_room and self._pending_bytes_in[shard] < self._own_bytes

    def extend(self, changes: Iterable[Change]) -> None:
        """Append several changes in order. Never waits."""
        for change in changes:
            self.append(change)

    def _skip(self, shard: int, change: Change) -> None:
        skipped = self._skipped[shard]
        self._counters.skipped_total += 1
        self._skipped[shard] = (
            skipped.with_change(change)
            if skipped
            else SkippedChanges(1, change.at_ms, change.at_ms, change.at)
        )

    def take_batch(self, shard: int, limit: int) -> list[Change]:
        """Take the oldest changes of a shard, at most `limit`; they stay pending until `release`."""
        queue = self._queues[shard]
        taken = [queue.popleft() for _ in range(min(limit, len(queue)))]
        self._counters.queued -= len(taken)
        return taken

    def release(self, shard: int, changes: Iterable[Change]) -> None:
        """Drop changes of a shard that were taken."""
        changes = list(changes)
        self._pending_in[shard] -= len(changes)
        self._counters.pending -= len(changes)
        size = sum(map(size_of, changes))
        self._counters.pending_bytes -= size
        self._pending_bytes_in[shard] -= size
        if self._ages is not None:
            self._ages.remove(changes)

    def acknowledge(self, shard: int, changes: Iterable[Change]) -> None:
        """Drop changes of a shard that were taken and acknowledged by Redis."""
        changes = list(changes)
        if self._ages is not None:
            self._ages.acknowledge(changes)
        self.release(shard, changes)

    def queued(self, shard: int) -> int:
        """Return how many changes of a shard were not taken yet."""
        return len(self._queues[shard])

    def is_skipping(self, shard: int) -> bool:
        """Whether changes of this shard are skipped until its resync begins."""
        return self._skipping[shard]

    def skipped_from(self, shard: int) -> float:
        """Return the earliest `Change.at` skipped in this shard since its last resync; infinity if none."""
        skipped = self._skipped[shard]
        return skipped.from_at if skipped else math.inf

    def begin_resync(self, shard: int) -> SkippedChanges | None:
        """Queue changes again from now on; return the skipped ones, now the caller's."""
        skipped, self._skipped[shard] = self._skipped[shard], None
        self._skipping[shard] = False
        return skipped

    def notify_at(self, queued: int, notify: Callable[[], None]) -> None:
        """Call `notify` once, when so many changes are queued; 0: never. Replaces the last."""
        if 0 < queued <= self._counters.queued:
            self._notify_at = 0
            notify()
        else:
            self._notify_at, self._notify = queued, notify

    def statistics(self) -> OutboxStatistics:
        return replace(self._counters, skipping_shards=sum(self._skipping))


def size_of(change: Change) -> int:
    """Return the approximate memory of a change in bytes."""
    return (
        CHANGE_BYTES
        + _text_bytes(change.uid)
        + _text_bytes(change.device)
        + len(change.session)
        + _text_bytes(change.profile.meta)
        + _text_bytes(change.profile.private)
        + len(change.profile.address)
        + len(change.profile.device_class)
    )


def _text_bytes(text: str) -> int:
    """Return the memory of the characters of a text: one beyond ASCII makes all of them wider."""
    return len(text) if text.isascii() else getsizeof(text)
