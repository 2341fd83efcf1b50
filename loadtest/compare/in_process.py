"""The techniques that keep everything in one process and are asked who is silent."""

import heapq
import math
import time
from collections.abc import Sequence
from typing import Final

from loadtest.compare.technique import Found
from presence.ticks import SLOTS_PER_TICK, Ticks
from presence.wheel import TimingWheel

TICKS_A_TIMEOUT: Final = 30  # the server's own: a tick of 1 s for T of 30 s
SLICE: Final = 256  # as many as the server takes between two checkpoints


class Nothing:
    """Does nothing, so that what the player costs is known."""

    def touch(self, uid: str, now: float) -> None:
        """See `Technique`."""

    def touch_many(self, uids: Sequence[str], now: float) -> None:
        """See `Technique`."""

    def forget(self, uid: str) -> None:
        """See `Technique`."""

    def due(self, now: float) -> Sequence[Found]:
        """Nobody."""
        return ()

    def next_look(self, now: float) -> float:
        """Never."""
        return math.inf


class Wheel:
    """The presence wheel, driven as the server's ticker drives it."""

    def __init__(self, timeout_s: float, now: float) -> None:
        self._timeout_s = timeout_s
        self._ticks = Ticks(timeout_s / TICKS_A_TIMEOUT / SLOTS_PER_TICK, now)
        self._wheel: TimingWheel[str] = TimingWheel(2 * TICKS_A_TIMEOUT * SLOTS_PER_TICK)

    def touch(self, uid: str, now: float) -> None:
        """See `Technique`."""
        self._wheel.touch(uid, self._ticks.at_or_after(now + self._timeout_s))

    def touch_many(self, uids: Sequence[str], now: float) -> None:
        """See `Technique`."""
        self._wheel.touch_all(uids, self._ticks.at_or_after(now + self._timeout_s))

    def forget(self, uid: str) -> None:
        """See `Technique`."""
        self._wheel.forget(uid)

    def due(self, now: float) -> Sequence[Found]:
        """See `Technique`."""
        tick = self._ticks.begun(now)
        found = []
        while uids := self._wheel.expire(tick, SLICE):
            at = time.monotonic()
            found += [Found(uid, at) for uid in uids]
        return found

    def next_look(self, now: float) -> float:
        """At the next boundary of a slot."""
        return self._ticks.starts(self._wheel.cursor + 1)


class Heap:
    """A heap of (deadline, uid): each touch adds an entry, and one that is no longer true is skipped."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._deadlines: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def touch(self, uid: str, now: float) -> None:
        """See `Technique`."""
        deadline = now + self._timeout_s
        self._deadlines[uid] = deadline
        heapq.heappush(self._heap, (deadline, uid))

    def touch_many(self, uids: Sequence[str], now: float) -> None:
        """See `Technique`."""
        for uid in uids:
            self.touch(uid, now)

    def forget(self, uid: str) -> None:
        """See `Technique`."""
        self._deadlines.pop(uid, None)

    def due(self, now: float) -> Sequence[Found]:
        """See `Technique`."""
        found = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            deadline, uid = heapq.heappop(heap)
            if self._deadlines.get(uid) == deadline:
                del self._deadlines[uid]
                found.append(Found(uid, time.monotonic()))
        return found

    def next_look(self, now: float) -> float:
        """When the first entry is due that is still true."""
        heap = self._heap
        while heap and self._deadlines.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf


class RearmedHeap:
    """A heap with one entry a user: a touch notes the time, and the entry is put right when it comes up."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._touched: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def touch(self, uid: str, now: float) -> None:
        """See `Technique`."""
        if uid not in self._touched:
            heapq.heappush(self._heap, (now + self._timeout_s, uid))
        self._touched[uid] = now

    def touch_many(self, uids: Sequence[str], now: float) -> None:
        """See `Technique`."""
        for uid in uids:
            self.touch(uid, now)

    def forget(self, uid: str) -> None:
        """Whoever returns before his entry comes up has two, and is told of once."""
        self._touched.pop(uid, None)

    def due(self, now: float) -> Sequence[Found]:
        """See `Technique`."""
        found = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, uid = heap[0]
            touched = self._touched.get(uid)
            if touched is None:
                heapq.heappop(heap)
            elif (deadline := touched + self._timeout_s) > now:
                heapq.heapreplace(heap, (deadline, uid))
            else:
                heapq.heappop(heap)
                del self._touched[uid]
                found.append(Found(uid, time.monotonic()))
        return found

    def next_look(self, now: float) -> float:
        """When the first entry comes up, true or not."""
        return self._heap[0][0] if self._heap else math.inf
