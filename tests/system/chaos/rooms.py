"""Rooms in a run: a projector beside those of the nodes, and what the streams and the rooms say of members.

occupancy  `occupied` and `vacated` of a room alternate, with 1 and 0 members.
counts     `joined` and `left` of a member alternate, and each count is that of the members after the entry.

What Redis has forgotten is forgotten here too. At rest the members of the rooms are those of the records,
with their statuses, and those of the streams.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from loadtest.checker import Broken

STOP_TIMEOUT_S: Final = 10.0
START_S: Final = 1.0  # after which a projector that finds no Redis has ended
START_TIMEOUT_S: Final = 30.0
ROOM_FLAGS: Final = ("--rooms", "open", "--room-events", "all")


class RoomEntry(NamedTuple):
    """An entry of a stream of rooms."""

    type: str
    room: str
    uid: str
    size: int  # members after it
    reason: str
    id: str
    written_at: float  # when it was read, at the latest


class ToldRooms(NamedTuple):
    """What the streams of rooms said until one moment."""

    occupied: frozenset[str]
    members: dict[str, frozenset[str]]


def told_after(told: ToldRooms, entries: Iterable[RoomEntry]) -> ToldRooms:
    """Return what the streams have said after these entries; `told` may have some of them already."""
    occupied, members = {*told.occupied}, {room: {*uids} for room, uids in told.members.items()}
    for each in entries:
        uids = members.setdefault(each.room, set())
        match each.type:
            case "occupied":
                occupied.add(each.room)
            case "vacated":
                occupied.discard(each.room)
            case "joined":
                uids.add(each.uid)
            case _:
                uids.discard(each.uid)
    return ToldRooms(frozenset(occupied), {room: frozenset(uids) for room, uids in members.items() if uids})


class RoomEntries:
    """Follows the streams of rooms."""

    def __init__(self) -> None:
        self.occupied: set[str] = set()
        self.members: dict[str, set[str]] = {}

    def snapshot(self) -> ToldRooms:
        """Return what `data_lost` needs if Redis goes back to this moment."""
        present = [*self.members.items()]  # the judge's thread goes on
        members = {room: frozenset(uids) for room, uids in present if uids}
        return ToldRooms(frozenset(self.occupied), members)

    def data_lost(self, known: ToldRooms | None) -> None:
        """Redis went back to its state of a snapshot; None: it is empty."""
        self.occupied = set(known.occupied) if known else set()
        self.members = {room: set(uids) for room, uids in known.members.items()} if known else {}

    def check_entry(self, entry: RoomEntry) -> list[Broken]:
        """Check the next entry."""
        room, uids = entry.room, self.members.setdefault(entry.room, set())
        if entry.type in {"occupied", "vacated"}:
            is_coming = entry.type == "occupied"
            is_right = (room in self.occupied) != is_coming and entry.size == int(is_coming)
            (self.occupied.add if is_coming else self.occupied.discard)(room)
            return [] if is_right else [Broken("occupancy", f"{entry}, {len(uids)} members")]
        uids.symmetric_difference_update({entry.uid})
        is_right = (entry.uid in uids) == (entry.type == "joined") and entry.size == len(uids)
        return [] if is_right else [Broken("counts", f"{entry}, {len(uids)} members")]


def room_entry(raw: Any, written_at: float) -> RoomEntry:
    """Return an entry as redis-py reads it."""
    entry_id, fields = raw
    texts = {name.decode(): value.decode() for name, value in fields.items()}
    kind, room, uid = (texts[name] for name in ("type", "room", "uid"))
    return RoomEntry(kind, room, uid, int(texts["count"]), texts["reason"], entry_id.decode(), written_at)


class ProjectorProcess:
    """`presence rooms run`, which may be killed and started again."""

    def __init__(self, url: str) -> None:
        self._words = [sys.executable, "-P", "-m", "presence", "rooms", "run", "--redis", url]
        self._words += ["--room-events", "all", "--log-level", "error"]
        self.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        """Start it; without Redis it ends, and only the nodes' projectors go on."""
        self._process = subprocess.Popen(self._words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> int:
        """Kill it; return its exit status. If it found no Redis when it started, start it again first."""
        give_up = time.monotonic() + START_TIMEOUT_S
        while self._process.poll() is not None and time.monotonic() < give_up:
            self.start()
            time.sleep(START_S)
        return self._end()

    def _end(self) -> int:
        self._process.kill()
        return self._process.wait()

    def close(self) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        self._end()
