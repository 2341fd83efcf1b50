"""The rooms that a client watches, and their known state, across connections.

A row of a room follows from the one before it on the same connection. So the rows of watched rooms are all
applied, in the order of arrival, also those of an answer that no call waits for any more. The answer on a new
connection is compared with what is known, and a difference is reported as a change. Of a room whose members
follow the answer, their row is compared.

Tests: `tests/client/test_watched_rooms.py`, `tests/client/test_watched_rooms_model.py`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from presence import protocol
from presence.client.pushes import RoomChanged, RoomState, room_state
from presence.protocol import WATCHED_ROOMS_MAX, Packet, RoomRow


class WatchedRooms:
    """The watched rooms and their newest known state; pending watch requests are kept by id."""

    def __init__(self) -> None:
        self._known: dict[str, RoomState] = {}
        self._requested: dict[int, set[str]] = {}
        self._abandoned: set[int] = set()  # requests that no call waits for, and that may be answered yet

    def states(self) -> dict[str, RoomState]:
        return dict(self._known)

    def newest(self, states: Mapping[str, RoomState]) -> dict[str, RoomState]:
        """Return the newest known state of the rooms in an answer: a later push may have been newer."""
        return {room: self._known.get(room, state) for room, state in states.items()}

    def __contains__(self, room: str) -> bool:
        return room in self._known

    def batches(self) -> Iterator[list[str]]:
        """Return the watched rooms, and those that are asked for, in lists that each fit into one request."""
        rooms = [*{*self._known}.union(*self._requested.values())]
        for start in range(0, len(rooms), WATCHED_ROOMS_MAX):
            yield rooms[start : start + WATCHED_ROOMS_MAX]

    def request_sent(self, id: int, rooms: Iterable[str]) -> None:
        self._requested[id] = set(rooms)

    def request_granted(self, id: int, answer: Mapping[str, Any], *, is_own: bool) -> list[RoomChanged]:
        """Apply the answer to a request; return the changes of rooms that were watched before.

        `is_own`: it was the client's own request, for rooms that it watches already.
        """
        requested = self._requested.pop(id, set())
        return self._answered(answer, () if is_own else requested)

    def request_refused(self, id: int) -> None:
        self._requested.pop(id, None)
        self._abandoned.discard(id)

    def request_abandoned(self, id: int) -> Packet | None:
        """Note that no call waits for a request; return the unwatch that undoes it, in case it is granted."""
        if id not in self._requested:
            return None
        self._abandoned.add(id)
        unwanted = self._requested.pop(id).difference(self._known, *self._requested.values())
        return protocol.unwatch(rooms=unwanted) if unwanted else None

    def answered_late(self, id: int, answer: Mapping[str, Any]) -> list[RoomChanged]:
        """Apply the answer to an abandoned request: later rows follow from it."""
        if id not in self._abandoned:
            return []
        self._abandoned.remove(id)
        return self._answered(answer)

    def pushed(self, rows: Iterable[RoomRow]) -> list[RoomChanged]:
        """Apply pushed rows; return the changes. Rooms that are not watched are ignored."""
        return self._applied(rows)

    def connection_lost(self) -> None:
        """Drop all pending requests."""
        self._requested.clear()
        self._abandoned.clear()

    def end(self, rooms: Iterable[str]) -> list[RoomChanged]:
        """The server has refused to let some rooms be watched; return the last change of each."""
        return self._applied([room, None] for room in rooms)

    def remove(self, rooms: Iterable[str] | None) -> None:
        """Stop watching some rooms, or all, also in pending requests."""
        gone = {room for batch in self.batches() for room in batch} if rooms is None else set(rooms)
        for requested in self._requested.values():
            requested.difference_update(gone)
        for room in gone:
            self._known.pop(room, None)

    def _answered(self, answer: Mapping[str, Any], requested: Collection[str] = ()) -> list[RoomChanged]:
        """Apply an answer, except to rooms that are known and whose members follow."""
        later = self._known.keys() & {*answer.get("later", ())}
        return self._applied([row for row in answer.get("rooms", ()) if row[0] not in later], requested)

    def _applied(self, rows: Iterable[RoomRow], requested: Collection[str] = ()) -> list[RoomChanged]:
        """Apply rows to the rooms that are watched, or requested; return the changes of the former."""
        changes = []
        for row in rows:
            room, count = row[:2]
            before = self._known.get(room)
            if before is None:
                if room in requested and count is not None:
                    self._known[room] = room_state(row)
            elif count is None:
                del self._known[room]
                changes.append(RoomChanged(room, None, frozenset(), frozenset()))
            elif (state := room_state(row, before)) != before:
                self._known[room] = state
                changes.append(_changed(room, before, state))
        return changes


def _changed(room: str, before: RoomState, after: RoomState) -> RoomChanged:
    if before.members is None or after.members is None:
        return RoomChanged(room, after, frozenset(), frozenset())
    return RoomChanged(room, after, after.members - before.members, before.members - after.members)
