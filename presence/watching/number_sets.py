"""Sets of small numbers by place, most of them with few members: who watches a user. Pure.

A small set is a chain of cells, each a member and the next cell; from `CROWD` members on it is a sorted
array.

Costs: 4 bytes per place, 8 per member of a chain and 4 per member of an array. Each operation takes a
microsecond or two, whatever the size of the set. The memory of the most members there were is kept.
"""

from array import array
from bisect import bisect_left, insort
from typing import Final

CROWD: Final = 16  # members; a chain is searched from its start
CHAIN: Final = 8  # down to here an array becomes a chain: far below, so that one member decides nothing
_IS_CROWD: Final = 1 << 31


class NumberSets:
    """A set of numbers at each of many places; a member is below 2^32, a place below 2^31."""

    def __init__(self) -> None:
        # By place: 0 of an empty set, or its first cell, or the number of its array and `_IS_CROWD`.
        self._sets = array("I")
        # By cell; cell 0 is none. Free cells are a chain as well.
        self._members, self._next = array("I", (0,)), array("I", (0,))
        self._free_cell = 0
        self._crowds: list[array[int]] = []
        self._free_crowds: list[int] = []

    def has_any(self, place: int) -> bool:
        return place < len(self._sets) and self._sets[place] != 0

    def get(self, place: int) -> list[int]:
        """Return the members of a set, in no order."""
        found = self._sets[place] if place < len(self._sets) else 0
        if found & _IS_CROWD:
            return self._crowds[found ^ _IS_CROWD].tolist()
        members = []
        while found:
            members.append(self._members[found])
            found = self._next[found]
        return members

    def add(self, place: int, member: int) -> None:
        """Add a number that is not in the set."""
        if (missing := place + 1 - len(self._sets)) > 0:
            self._sets.extend(array("I", bytes(missing * self._sets.itemsize)))
        first = self._sets[place]
        if first & _IS_CROWD:
            insort(self._crowds[first ^ _IS_CROWD], member)
            return
        cell, size = first, 1
        while cell:
            cell, size = self._next[cell], size + 1
        if size < CROWD:
            self._sets[place] = self._new_cell(member, first)
            return
        crowd = array("I", sorted((*self.get(place), member)))
        while first:
            first = self._free(first)
        if self._free_crowds:
            number = self._free_crowds.pop()
            self._crowds[number] = crowd
        else:
            number = len(self._crowds)
            self._crowds.append(crowd)
        self._sets[place] = number | _IS_CROWD

    def remove(self, place: int, member: int) -> None:
        """Remove a number that is in the set."""
        first = self._sets[place]
        if first & _IS_CROWD:
            crowd = self._crowds[first ^ _IS_CROWD]
            crowd.pop(bisect_left(crowd, member))
            if len(crowd) <= CHAIN:
                self._crowds[first ^ _IS_CROWD] = array("I")
                self._free_crowds.append(first ^ _IS_CROWD)
                first = 0
                for each in crowd:
                    first = self._new_cell(each, first)
                self._sets[place] = first
            return
        before, cell = 0, first
        while self._members[cell] != member:
            before, cell = cell, self._next[cell]
        following = self._free(cell)
        if before:
            self._next[before] = following
        else:
            self._sets[place] = following

    def _new_cell(self, member: int, following: int) -> int:
        cell = self._free_cell
        if cell:
            self._free_cell = self._next[cell]
            self._members[cell], self._next[cell] = member, following
        else:
            cell = len(self._next)
            self._members.append(member)
            self._next.append(following)
        return cell

    def _free(self, cell: int) -> int:
        """Free a cell; return the one that followed it."""
        following, self._next[cell], self._free_cell = self._next[cell], self._free_cell, cell
        return following
