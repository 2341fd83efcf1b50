"""A timing wheel: a ring of sets, and a hash from each key to its slot.

After Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (SOSP 1987), scheme 6, with two choices:

* A key is moved at every touch, out of one set and into another; nothing is re-armed lazily. So the
  caller gets exactly the keys that are due, and no others are examined. A touch into the slot where the key
  already is costs one look-up.
* Slots are absolute numbers, never positions in the ring. However late the wheel is driven, a new key
  cannot be mistaken for an old one.

Invariants: every key is in exactly one set, that of `slot_of(key)`; a set holds keys of one slot only
(the ring grows before two slots would share a set); no key has a slot at or before the cursor, the last
slot that has passed and holds no key.

Costs: `touch`, `discard`, `advance` O(1); `pop_due` O(keys taken + slots passed). Memory per key: an entry of
a dict and one of a set, about 100 to 150 bytes beside the key itself. Keys that were discarded leave nothing
behind.

The wheel has no clock and no tasks: the caller passes the current slot.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_MIN_SLOTS = 8
# Of a set for each of its keys; a set that takes more is made anew. One that grows takes half as much.
_SPARSE_BYTES = 256


class TimingWheel(Generic[K]):
    """Keys with the slot in which each is due.

    Args:
        slots: how many the ring covers at first; it grows when a key is due further ahead.
        cursor: the last slot that counts as passed.
    """

    __slots__ = ("_cursor", "_ring", "_slot_of")

    def __init__(self, slots: int = 64, cursor: int = 0) -> None:
        self._ring: list[set[K]] = [set() for _ in range(max(slots, _MIN_SLOTS))]
        self._slot_of: dict[K, int] = {}
        self._cursor = cursor

    def __len__(self) -> int:
        return len(self._slot_of)

    def __contains__(self, key: K) -> bool:
        return key in self._slot_of

    @property
    def cursor(self) -> int:
        """The last slot that has passed and holds no key."""
        return self._cursor

    def slot_of(self, key: K) -> int | None:
        return self._slot_of.get(key)

    def slot_sizes(self, slots: int) -> list[int]:
        """Return how many keys are due in each of the next `slots` slots, soonest first."""
        ring, size = self._ring, len(self._ring)
        return [len(ring[(self._cursor + n) % size]) if n < size else 0 for n in range(1, slots + 1)]

    def touch(self, key: K, slot: int) -> None:
        """Make `key` due in `slot`, wherever it was before; a slot that has passed becomes the next one."""
        old = self._slot_of.get(key)
        if old == slot:
            return
        slot = self._clamp(slot)
        ring = self._ring
        size = len(ring)
        if old is not None:
            ring[old % size].discard(key)
        ring[slot % size].add(key)
        self._slot_of[key] = slot

    def touch_all(self, keys: Iterable[K], slot: int) -> None:
        """Make every key of a batch due in `slot`: one touch each, with shared look-ups."""
        slot = self._clamp(slot)
        ring, size, slot_of = self._ring, len(self._ring), self._slot_of
        add = ring[slot % size].add
        known = slot_of.get
        for key in keys:
            old = known(key)
            if old != slot:
                if old is not None:
                    ring[old % size].discard(key)
                add(key)
                slot_of[key] = slot

    def discard(self, key: K) -> bool:
        """Remove `key`; return whether it was in the wheel."""
        slot = self._slot_of.pop(key, None)
        if slot is None:
            return False
        index = slot % len(self._ring)
        keys = self._ring[index]
        keys.discard(key)
        # A set keeps its table when it loses keys, and a slot may be an hour away.
        if keys.__sizeof__() > _SPARSE_BYTES * (len(keys) + 1):
            self._ring[index] = set(keys)
        return True

    def advance(self, slot: int) -> None:
        """Count every slot up to `slot` as passed if the wheel is empty; otherwise `pop_due` does it."""
        if not self._slot_of:
            self._cursor = max(self._cursor, slot)

    def pop_due(self, slot: int, limit: int) -> list[K]:
        """Take keys that are due in or before `slot`, oldest slots first, at most `limit` of them.

        Every slot that passed is emptied, however many. Keys that are left for the next call stay in their
        slots, where a touch still rescues them. An empty list means that nothing more is due in `slot`.
        """
        taken: list[K] = []
        ring, size, slot_of = self._ring, len(self._ring), self._slot_of
        if not slot_of:
            self.advance(slot)
            return taken
        while self._cursor < slot:
            index = (self._cursor + 1) % size
            due = ring[index]
            while due:
                if len(taken) == limit:
                    return taken
                key = due.pop()
                del slot_of[key]
                taken.append(key)
            ring[index] = set()  # an emptied set keeps its table; a new one frees the memory
            self._cursor += 1
        return taken

    def _clamp(self, slot: int) -> int:
        """Return `slot`, or the next one if it has passed; grow the ring if it has no set for it."""
        ahead = slot - self._cursor
        if ahead <= 0:
            return self._cursor + 1
        if ahead >= len(self._ring):
            self._grow(slot)
        return slot

    def _grow(self, slot: int) -> None:
        """Grow the ring to cover `slot`; every set keeps its keys (O(slots))."""
        old = self._ring
        size = max(2 * len(old), slot - self._cursor + 1)
        ring: list[set[K]] = [set() for _ in range(size)]
        for n in range(1, len(old) + 1):
            ring[(self._cursor + n) % size] = old[(self._cursor + n) % len(old)]
        self._ring = ring
