"""What a hierarchical wheel is made of: an entry, a slot, and the ring of slots of one level.

Only `presence/timers/levels.py`, which has the theory, puts them together.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, Generic, TypeVar

SPAN_BITS: Final = 8  # 256 slots a lap
RING: Final = 2 << SPAN_BITS  # two laps: the one that runs, and the next, which fills ahead of its beginning
NEVER: Final = 1 << 62


class Entry:
    """What a wheel holds; subclasses add what it is for. Belongs to one wheel at a time.

    Attributes:
        tick: when it is due, once it was added.
        slot: where it stands, once it was added; None in no wheel.
    """

    __slots__ = ("slot", "tick")

    tick: int
    slot: Slot[Any] | None


E = TypeVar("E", bound=Entry)


class Slot(list[E]):
    """Entries in the order in which they came, and husks: places of entries that are no longer here.

    Attributes:
        position: how many places were taken; they stay in the list.
        husks: how many of the other places are husks.
    """

    __slots__ = ("husks", "position")

    def __init__(self) -> None:
        self.husks = 0
        self.position = 0

    def take(self, limit: int) -> list[E]:
        """Take the entries of the next `limit` places; they stand in no slot then."""
        part = self[self.position : self.position + limit]
        self.position += len(part)
        taken = []
        for entry in part:
            # Who left and came back stands in two places, and the first one counts.
            if entry.slot is self:
                entry.slot = None
                taken.append(entry)
            else:
                self.husks -= 1
        return taken

    def rewrite(self) -> None:
        """Leave out what was taken, and the husks."""
        here = islice(self, self.position, None)
        self[:] = dict.fromkeys(entry for entry in here if entry.slot is self)
        self.husks = self.position = 0


class Level(Generic[E]):
    """A ring of slots, each `1 << shift` ticks long, and a bitmap of those that are there.

    Args:
        number: 0 for single ticks.
        cursor: the tick before the first one that can be due.

    Attributes:
        shift: see above.
        horizon: what is due before this tick, and not held by a level below, is held here.
        occupied: a bit for each slot of the ring.
        ring: the slots; None where there is none.
        reach: how many ticks ahead of the cursor the ring can hold.
    """

    __slots__ = ("horizon", "number", "occupied", "reach", "ring", "shift")

    def __init__(self, number: int, cursor: int) -> None:
        self.number = number
        self.shift = SPAN_BITS * number
        self.horizon = horizon_after(cursor, number)
        self.occupied = 0
        self.ring: list[Slot[E] | None] = [None] * RING
        self.reach = (RING - 1) << self.shift

    def open(self, index: int) -> Slot[E]:
        """Put a new slot into the ring at `index`, where there is none."""
        slot: Slot[E] = Slot()
        self.ring[index] = slot
        self.occupied |= 1 << index
        return slot

    def put_all(self, entries: Iterable[E]) -> None:
        """Let entries stand in the slots of their ticks."""
        ring, shift = self.ring, self.shift
        for entry in entries:
            index = entry.tick >> shift & RING - 1
            slot = ring[index]
            if slot is None:
                slot = self.open(index)
            slot.append(entry)
            entry.slot = slot

    def first(self, tick: int) -> int | None:
        """Return at which tick the first slot with entries begins, that of `tick` or one after it."""
        base = tick >> self.shift
        slot = self.ring[base & RING - 1]
        if slot is not None and slot.husks < len(slot) - slot.position:
            return base << self.shift
        while self.occupied:
            index = base & RING - 1
            ahead = self.occupied >> index
            window = base + _lowest(ahead) if ahead else base - index + RING + _lowest(self.occupied)
            slot = self.ring[window & RING - 1]
            if slot is not None and slot.husks < len(slot) - slot.position:
                return window << self.shift
            self.pop(window << self.shift)
        return None

    def slot(self, tick: int) -> Slot[E]:
        """Return the slot of `tick`, which is there."""
        slot = self.ring[tick >> self.shift & RING - 1]
        assert slot is not None  # noqa: S101 # the bitmap said so
        return slot

    def size(self, tick: int) -> int:
        """Return how many places of the slot of `tick` are left to take."""
        slot = self.slot(tick)
        return len(slot) - slot.position

    def pop(self, tick: int) -> Slot[E]:
        """Take the slot of `tick` out of the ring."""
        index = tick >> self.shift & RING - 1
        slot = self.ring[index]
        assert slot is not None  # noqa: S101 # see slot
        self.ring[index] = None
        self.occupied ^= 1 << index
        return slot


def horizon_after(tick: int, number: int) -> int:
    """Return where the lap of level `number` ends that `tick` is in."""
    shift = SPAN_BITS * (number + 1)
    return (tick >> shift) + 1 << shift


def _lowest(bits: int) -> int:
    """Return the place of the lowest bit that is set."""
    return (bits & -bits).bit_length() - 1
