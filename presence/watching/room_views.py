"""What a worker knows of a room that clients watch, and the rows that clients are sent. Pure.

A room has a version, which rises with each change that a read finds. Of each session that watches it, the
version that it was sent last is known. Versions are *pushed* to all sessions together, at the pace of the
room: a session that has the version pushed before gets the difference to it, any other that is behind gets
the whole state. So no session needs a queue of its own: whatever it has missed, one row is enough.

Tests: `tests/watching/test_room_views.py`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from presence.common.errors import StoreError, StoreUnavailable
from presence.core.registry import Session
from presence.protocol.rows import RoomRow

NOTHING_SENT: Final = 0  # a version of no room

Shown: TypeAlias = Callable[[Iterable[str]], list[str]] | None
"""Returns those of some members whom a client is shown, in order; None: it is shown no members."""


@dataclass(frozen=True, slots=True)
class RoomOccupancy:
    """How many members a room has and who they are, as one read found it.

    Attributes:
        count: of the members who are not invisible.
        members: these; None if they are not listed.
    """

    count: int
    members: frozenset[str] | None = None


NOBODY: Final = RoomOccupancy(0)
FoundRooms: TypeAlias = Mapping[str, RoomOccupancy | StoreUnavailable | StoreError]
"""Rooms as one read found them, or why they could not be read."""


@dataclass(eq=False, slots=True)
class WatchedRoom:
    """A room that sessions watch, or that a request of theirs waits for."""

    name: str
    asked_at: float  # when it was last taken for a read
    occupancy: RoomOccupancy = NOBODY
    version: int = NOTHING_SENT
    packed: bytes = b""  # the row of the whole `occupancy`, once it was needed
    pushed: RoomOccupancy = NOBODY
    pushed_version: int = NOTHING_SENT
    watchers: dict[Session, int] = field(default_factory=dict)  # with the version that each was sent last
    waiting: int = 0  # requests that wait for it
    next_read_at: float = 0.0  # at the earliest
    is_scheduled: bool = False  # a read is due, or will be
    is_pushing: bool = False  # a push is under way,
    is_put_off: bool = False  # and the read that is due waits for its end

    def update(self, occupancy: RoomOccupancy) -> bool:
        """Note what a read has found; return whether it is new."""
        if self.version != NOTHING_SENT and occupancy == self.occupancy:
            return False
        self.occupancy, self.packed = occupancy, b""
        self.version += 1
        if not self.watchers:
            self.pushed, self.pushed_version = occupancy, self.version
        return True

    def next_push(self) -> "RoomPush | None":
        """Return the push of the present version, which counts as pushed then; None if it does already."""
        if self.version == self.pushed_version:
            return None
        before, before_version = self.pushed, self.pushed_version
        push = RoomPush(self, self.occupancy, self.version, before, before_version, [*self.watchers])
        self.pushed, self.pushed_version = self.occupancy, self.version
        return push


@dataclass(eq=False, slots=True)
class RoomPush:
    """One version of a room on its way to all sessions that watch it."""

    room: WatchedRoom
    occupancy: RoomOccupancy
    version: int
    before: RoomOccupancy
    before_version: int
    remaining: list[Session] = field(default_factory=list)  # those that were not sent it yet
    packed: dict[tuple[bool, bool], bytes] = field(default_factory=dict)  # rows by form; b"": no news

    def row(self, *, is_next: bool, shown: Shown) -> RoomRow | None:
        """Return the row for a session, None if it is no news; `is_next`: it has the version before."""
        name, before = self.room.name, self.before
        count, members = self.occupancy.count, self.occupancy.members
        if not is_next:
            return whole_row(name, self.occupancy, shown)
        if shown is None or (members is None and before.members is None):
            return None if count == before.count else [name, count]
        if members is None or before.members is None:
            return whole_row(name, self.occupancy, shown)
        joined, left = shown(members - before.members), shown(before.members - members)
        is_news = joined or left or count != before.count
        return [name, count, joined, left] if is_news else None


def whole_row(room: str, occupancy: RoomOccupancy, shown: Shown) -> RoomRow:
    """Return the row of the whole state."""
    if shown is None or occupancy.members is None:
        return [room, occupancy.count]
    return [room, occupancy.count, shown(occupancy.members)]
