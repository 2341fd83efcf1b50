"""Counters of a projector of rooms.

Tests: `tests/rooms/test_projector.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(slots=True)
class RoomCounters:
    """Counters of a projector in this process; the first three are of the shards that it is active in."""

    rooms: int = 0  # that have members
    members: int = 0  # a user counts once per room
    lag_s: float = 0.0  # age of the oldest event of the latest read; or since when not all is passed on
    reads: int = 0  # answered
    busy: int = 0  # of these, those that found another projector active
    events: int = 0  # entries read from the event streams
    joined: int = 0
    left: int = 0
    occupied: int = 0
    vacated: int = 0
    refused: int = 0  # times that a room was not created, because the limit was reached
    differences: int = 0  # members that the comparison had to correct, outside rebuilds
    rebuilds: int = 0
    gaps: int = 0  # times that events were missing
    failures: int = 0  # failed calls

    def add(self, numbers: Iterable[int]) -> None:
        """Add the numbers of an answer of project.lua, in its order, except the differences."""
        for name, number in zip(COUNTED_BY_SCRIPT, numbers, strict=True):
            if name != "differences":
                setattr(self, name, getattr(self, name) + number)


COUNTED_BY_SCRIPT: Final = ("joined", "left", "occupied", "vacated", "differences", "refused")
