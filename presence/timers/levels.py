"""A hierarchical timing wheel: any delay, O(1) to add and to cancel, no work for timers that are far off.

After Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (SOSP 1987), scheme 7. A slot of level 0 is
one tick; a slot of a higher level, a window, covers a lap of the level below. Entries due soon are in level
0; later ones are in higher levels and cascade down when their window is near. Taken from others: ticks are
arguments, and a slot is emptied before it is handed out (Kafka's `TimingWheel`); a bitmap per level finds the
next occupied slot without walking over empty ones (tokio's `wheel::Level`).

New here: a ring has two laps, and a window cascades in slices *before* it begins. A plain wheel moves the
whole window when its first timer is due, which is then late: a third of 1,000,000 timers in one window are
some 60 ms of work. Here a window of n entries begins to cascade n / `moves_per_tick` ticks ahead; at its
beginning at most one tick's moves are left.

Invariants:

* An entry is in exactly one slot, `entry.slot`, or in none (None: it was handed out, or cancelled).
* A level holds the ticks before its `horizon` that the levels below do not hold; the horizon is the beginning
  of the first window above that has not cascaded. So an entry added to a window after the cascade comes after
  the cascaded ones: entries of one tick are handed out in the order of adding.
* No entry is due at or before the cursor, the last tick that was handed out or passed.

Costs: add and remove O(1); step O(entries taken or moved + occupied slots passed), never empty ones. An entry
moves once per level: with 256 slots per lap and ticks of 10 ms not at all within 2.5 s, once within 11
minutes, twice within 46 hours. Cancelling leaves a husk (8 bytes) in the slot's list, not the entry: a slot
that is half husks is rewritten, so there are fewer husks than entries, plus at most `HUSKS_TOLERATED` per
slot.

The wheel has no clock and no tasks: its caller passes the current tick.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, Generic, TypeVar

LEVELS: Final = 5
MOVES_PER_TICK: Final = 2_000  # about 1 ms of work in a tick of 10 ms
UNKNOWN: Final = -1
HUSKS_TOLERATED: Final = 32  # husks that a slot may hold before it is rewritten
SPAN_BITS: Final = 8  # 256 slots a lap
RING_SLOTS: Final = 2 << SPAN_BITS  # two laps: the current one, and the next, which fills ahead of time
NEVER: Final = 1 << 62


class TimerEntry:
    """An entry of a wheel; subclasses add the payload. Belongs to one wheel at a time.

    Attributes:
        tick: when it is due, once added.
        slot: the slot it is in, once added; None if in no wheel.
    """

    __slots__ = ("slot", "tick")

    tick: int
    slot: Slot[Any] | None


E = TypeVar("E", bound=TimerEntry)


class Slot(list[E]):
    """Entries in the order of adding, and husks: places of removed entries.

    Attributes:
        position: number of places already taken; they stay in the list.
        husks: number of husks among the other places.
    """

    __slots__ = ("husks", "position")

    def __init__(self) -> None:
        self.husks = 0
        self.position = 0

    def pop_entries(self, limit: int) -> list[E]:
        """Remove and return the entries of the next `limit` places."""
        places = self[self.position : self.position + limit]
        self.position += len(places)
        taken = []
        for entry in places:
            # An entry that was removed and added again has two places, and the first one counts.
            if entry.slot is self:
                entry.slot = None
                taken.append(entry)
            else:
                self.husks -= 1
        return taken

    def rewrite(self) -> None:
        """Drop taken places and husks from the list."""
        here = islice(self, self.position, None)
        self[:] = dict.fromkeys(entry for entry in here if entry.slot is self)
        self.husks = self.position = 0


class Level(Generic[E]):
    """A ring of slots, each `1 << shift` ticks long, and a bitmap of the existing ones.

    Args:
        number: 0 for single ticks.
        cursor: the tick before the first one that can be due.

    Attributes:
        shift: see above.
        horizon: entries due before this tick are here, unless a level below holds them.
        occupied: a bit for each slot of the ring.
        ring: the slots, or None.
        reach: maximum of ticks ahead of the cursor.
    """

    __slots__ = ("horizon", "number", "occupied", "reach", "ring", "shift")

    def __init__(self, number: int, cursor: int) -> None:
        self.number = number
        self.shift = SPAN_BITS * number
        self.horizon = horizon_after(cursor, number)
        self.occupied = 0
        self.ring: list[Slot[E] | None] = [None] * RING_SLOTS
        self.reach = (RING_SLOTS - 1) << self.shift

    def open_slot(self, index: int) -> Slot[E]:
        """Create the slot at `index`, which must not exist."""
        slot: Slot[E] = Slot()
        self.ring[index] = slot
        self.occupied |= 1 << index
        return slot

    def insert_all(self, entries: Iterable[E]) -> None:
        """Put entries into the slots of their ticks."""
        ring, shift = self.ring, self.shift
        for entry in entries:
            index = entry.tick >> shift & RING_SLOTS - 1
            slot = ring[index]
            if slot is None:
                slot = self.open_slot(index)
            slot.append(entry)
            entry.slot = slot

    def first_occupied(self, tick: int) -> int | None:
        """Return the tick at which the first slot with entries at or after `tick` begins."""
        base = tick >> self.shift
        while self.occupied:
            index = base & RING_SLOTS - 1
            ahead = self.occupied >> index
            window = base + _lowest(ahead) if ahead else base - index + RING_SLOTS + _lowest(self.occupied)
            slot = self.ring[window & RING_SLOTS - 1]
            if slot is not None and slot.husks < len(slot) - slot.position:
                return window << self.shift
            self.pop_slot(window << self.shift)
        return None

    def slot(self, tick: int) -> Slot[E]:
        """Return the slot of `tick`, which must exist."""
        slot = self.ring[tick >> self.shift & RING_SLOTS - 1]
        assert slot is not None  # noqa: S101 # the bitmap said so
        return slot

    def pop_slot(self, tick: int) -> Slot[E]:
        slot, index = self.slot(tick), tick >> self.shift & RING_SLOTS - 1
        self.ring[index] = None
        self.occupied ^= 1 << index
        return slot


def horizon_after(tick: int, number: int) -> int:
    """Return the tick at which the lap of level `number` around `tick` ends."""
    shift = SPAN_BITS * (number + 1)
    return (tick >> shift) + 1 << shift


def _lowest(bits: int) -> int:
    """Return the index of the lowest set bit."""
    return (bits & -bits).bit_length() - 1


class Levels(Generic[E]):
    """Entries with the tick at which each is due.

    Args:
        cursor: the tick before the first one that can be due.
        moves_per_tick: entries that may cascade per tick, besides due ones.

    Attributes:
        cursor: the last tick handed out, or passed with nothing due.
    """

    __slots__ = (
        "_cascade_at",
        "_due",
        "_levels",
        "_lowest_level",
        "_moves_per_tick",
        "_upper_levels",
        "cursor",
    )

    def __init__(self, cursor: int = 0, *, moves_per_tick: int = MOVES_PER_TICK) -> None:
        self._moves_per_tick = moves_per_tick
        self.cursor = cursor
        self._levels: list[Level[E]] = [Level(number, cursor) for number in range(LEVELS)]
        self._levels[-1].horizon = NEVER
        self._lowest_level, *self._upper_levels = self._levels
        self._due: Slot[E] | None = None  # the slot that is being handed out; in no ring any more
        self._cascade_at = NEVER  # no window has to cascade before this tick

    def __len__(self) -> int:
        """Count the entries in O(slots), so that `add` need not count."""
        slots = [self._due, *(slot for level in self._levels for slot in level.ring)]
        return sum(len(slot) - slot.position - slot.husks for slot in slots if slot is not None)

    @property
    def reach(self) -> int:
        """Maximum of ticks ahead."""
        return self._levels[-1].reach

    def add(self, entry: E, tick: int) -> None:
        """Add `entry`, which is in no wheel, due at `tick`; a past tick becomes the next one.

        Raises:
            OverflowError: `tick` is more than `reach` ahead.
        """
        if tick <= self.cursor:
            tick = self.cursor + 1
        level = self._lowest_level
        if tick >= level.horizon:
            level = self._level_above(tick)
        index = tick >> level.shift & RING_SLOTS - 1
        slot = level.ring[index]
        if slot is None:
            slot = level.open_slot(index)
        slot.append(entry)
        entry.slot = slot
        entry.tick = tick

    def remove(self, entry: E) -> bool:
        """Remove an entry; return whether it was in the wheel."""
        slot = entry.slot
        if slot is None:
            return False
        entry.slot = None
        slot.husks = husks = slot.husks + 1
        if husks > HUSKS_TOLERATED and 2 * husks > len(slot):
            slot.rewrite()
        return True

    def next_tick(self) -> int | None:
        """Return the next tick at which `step` has work, or None.

        That is the first tick with a due entry, or an earlier one at which a large window begins to cascade.
        After cancellations it may be too early, but never too late.
        """
        if self._due is not None:
            return self.cursor
        first = self._lowest_level.first_occupied(self.cursor + 1)
        if self._cascade_at == UNKNOWN:
            self._find_cascade(self.cursor, self.cursor)
        soonest = self._cascade_at if first is None else min(first, self._cascade_at)
        return None if soonest == NEVER else soonest

    def step(self, tick: int, limit: int) -> list[E] | None:
        """Take at most `limit` entries due at or before `tick`, earliest first, all of one tick.

        An empty list: at most `limit` entries cascaded instead; call again. None: no more work at `tick`.
        Empty slots cost nothing, however far the tick jumped.
        """
        if self._due is None:
            found = self._find(tick)
            if found is None:
                return None
            level, start = found
            if level is not self._lowest_level:
                self._cascade(level, start, limit)
                return []
            self.cursor = start
            self._due = level.pop_slot(start)
        slot = self._due
        taken = slot.pop_entries(limit)
        if slot.position == len(slot):
            self._due = None
        return taken

    def _level_above(self, tick: int) -> Level[E]:
        self._cascade_at = UNKNOWN
        for level in self._upper_levels:
            if tick < level.horizon:
                if level is self._upper_levels[-1] and tick - self.cursor > level.reach:
                    break
                return level
        raise OverflowError("beyond the reach of the wheel")

    def _find(self, tick: int) -> tuple[Level[E], int] | None:
        """Return the first work at `tick`: a level, and the beginning of its slot or window."""
        due = self._lowest_level.first_occupied(self.cursor + 1)
        start = tick + 1 if due is None or due > tick else due
        cascade = self._find_cascade(tick, start) if self._cascade_at <= tick else None
        if cascade is not None and cascade[1] <= start:
            self._advance_to(cascade[1] - 1)
            return cascade
        if start <= tick:
            return self._lowest_level, start
        self._advance_to(tick)
        return cascade

    def _find_cascade(self, tick: int, due: int) -> tuple[Level[E], int] | None:
        """Return the window to cascade: the first that begins by `due`, or else one that is near."""
        self._cascade_at = NEVER
        due_window = near_window = None
        for level in self._upper_levels:
            start = level.first_occupied(self.cursor + 1) if level.occupied else None
            if start is None:
                continue
            if start <= due:
                due_window, due = (level, start), start
            cascade_tick = self._cascade_tick(level, start)
            self._cascade_at = min(self._cascade_at, cascade_tick)
            if cascade_tick <= tick:
                near_window = level, start
        return due_window or near_window

    def _cascade_tick(self, level: Level[E], start: int) -> int:
        """Return the tick at which the window at `start` has to begin to cascade.

        Early enough to be done before its inner windows have to cascade, and never before the level below has
        room for it.
        """
        slot = level.slot(start)
        size = len(slot) - slot.position
        if size <= self._moves_per_tick:
            return start
        before = start - size // self._moves_per_tick
        if level.number > 1:
            before -= 1 << self._levels[level.number - 1].shift
        return max(before, start - (1 << level.shift), self.cursor)

    def _cascade(self, level: Level[E], start: int, limit: int) -> None:
        """Move at most `limit` entries of the window at `start` to the level below."""
        slot = level.slot(start)
        below = self._levels[level.number - 1]
        below.insert_all(slot.pop_entries(limit))
        if slot.position == len(slot):
            level.pop_slot(start)
            below.horizon = max(below.horizon, start + (1 << level.shift))

    def _advance_to(self, tick: int) -> None:
        """Move the cursor to `tick`, up to which nothing is due, and the horizons with it."""
        if tick <= self.cursor:
            return
        self.cursor = tick
        if tick < self._lowest_level.horizon:
            return  # nor has any upper level ended a lap
        for level in self._levels[:-1]:
            level.horizon = max(level.horizon, horizon_after(tick, level.number))
