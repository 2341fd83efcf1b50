"""A timing wheel: a ring of sets, and a hash from each key to its tick.

After Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (SOSP 1987), scheme 6, with two choices:

* A key is moved at every touch, out of one set and into another; nothing is re-armed lazily. So a tick
  takes exactly the keys that are due and examines no others. A touch into the slot where the key already
  is costs one look-up.
* Ticks are absolute numbers, never positions in the ring. However late the wheel is driven, a new key
  cannot be mistaken for an old one.

Invariants: every key is in exactly one set, that of `tick_of(key)`; a set holds keys of one tick only
(the ring grows before two ticks would share a slot); no key has a tick at or before the cursor, the last
tick that has passed and holds no key.

Costs: `touch` and `discard` O(1); `pop_due` O(keys taken + slots passed). Memory per key: an entry of a dict
and one of a set, about 100 to 150 bytes beside the key itself. Keys that were discarded leave nothing behind.

The wheel has no clock and no tasks: the caller passes the current tick.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_MIN_SLOTS = 8
# Of a set for each of its keys; a set that takes more is made anew. One that grows takes half as much.
_SPARSE_BYTES = 256


class TimingWheel(Generic[K]):
    """Keys with the tick at which each is due.

    Args:
        slots: ticks that the ring covers at first; it grows when a key is due further ahead.
        cursor: the last tick that counts as passed.
    """

    __slots__ = ("_cursor", "_ring", "_tick_of")

    def __init__(self, slots: int = 64, cursor: int = 0) -> None:
        self._ring: list[set[K]] = [set() for _ in range(max(slots, _MIN_SLOTS))]
        self._tick_of: dict[K, int] = {}
        self._cursor = cursor

    def __len__(self) -> int:
        return len(self._tick_of)

    def __contains__(self, key: K) -> bool:
        return key in self._tick_of

    @property
    def cursor(self) -> int:
        """The last tick that has passed and holds no key."""
        return self._cursor

    def tick_of(self, key: K) -> int | None:
        return self._tick_of.get(key)

    def slot_sizes(self, ticks: int) -> list[int]:
        """Return how many keys are due at each of the next `ticks` ticks, soonest first."""
        ring, size = self._ring, len(self._ring)
        return [len(ring[(self._cursor + n) % size]) if n < size else 0 for n in range(1, ticks + 1)]

    def touch(self, key: K, tick: int) -> None:
        """Make `key` due at `tick`, wherever it was before; a tick that has passed becomes the next one."""
        old = self._tick_of.get(key)
        if old == tick:
            return
        tick = self._clamp(tick)
        ring = self._ring
        size = len(ring)
        if old is not None:
            ring[old % size].discard(key)
        ring[tick % size].add(key)
        self._tick_of[key] = tick

    def touch_all(self, keys: Iterable[K], tick: int) -> None:
        """Make every key of a batch due at `tick`: one touch each, with shared look-ups."""
        tick = self._clamp(tick)
        ring, size, tick_of = self._ring, len(self._ring), self._tick_of
        add = ring[tick % size].add
        known = tick_of.get
        for key in keys:
            old = known(key)
            if old != tick:
                if old is not None:
                    ring[old % size].discard(key)
                add(key)
                tick_of[key] = tick

    def discard(self, key: K) -> bool:
        """Remove `key`; return whether it was in the wheel."""
        tick = self._tick_of.pop(key, None)
        if tick is None:
            return False
        index = tick % len(self._ring)
        slot = self._ring[index]
        slot.discard(key)
        # A set keeps its table when it loses keys, and a slot may be an hour away.
        if slot.__sizeof__() > _SPARSE_BYTES * (len(slot) + 1):
            self._ring[index] = set(slot)
        return True

    def pop_due(self, tick: int, limit: int) -> list[K]:
        """Take keys that are due at or before `tick`, oldest slots first, at most `limit` of them.

        Every slot that passed is emptied, however many. Keys that are left for the next call stay in their
        slots, where a touch still rescues them. An empty list means that nothing more is due at `tick`.
        """
        taken: list[K] = []
        ring, size, tick_of = self._ring, len(self._ring), self._tick_of
        if not tick_of:
            self._cursor = max(self._cursor, tick)
            return taken
        while self._cursor < tick:
            index = (self._cursor + 1) % size
            due = ring[index]
            while due:
                if len(taken) == limit:
                    return taken
                key = due.pop()
                del tick_of[key]
                taken.append(key)
            ring[index] = set()  # an emptied set keeps its table; a new one frees the memory
            self._cursor += 1
        return taken

    def _clamp(self, tick: int) -> int:
        """Return `tick`, or the next one if it has passed; grow the ring if it has no slot for it."""
        ahead = tick - self._cursor
        if ahead <= 0:
            return self._cursor + 1
        if ahead >= len(self._ring):
            self._grow(tick)
        return tick

    def _grow(self, tick: int) -> None:
        """Grow the ring to cover `tick`; every set keeps its keys (O(slots))."""
        old = self._ring
        size = max(2 * len(old), tick - self._cursor + 1)
        ring: list[set[K]] = [set() for _ in range(size)]
        for n in range(1, len(old) + 1):
            ring[(self._cursor + n) % size] = old[(self._cursor + n) % len(old)]
        self._ring = ring
