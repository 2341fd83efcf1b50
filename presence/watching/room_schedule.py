"""When rooms that are watched are read, to be pushed to the sessions that watch them.

A room that has changed is read immediately, or, if it just was, after a pause: a longer one if it is large. A
read waits until the sessions that watch the room have been sent what the last one found. A room of which no
change is known is read every `REREAD_S`, and all rooms are when hints of changes may have been lost: both at
a pace.
"""

import heapq
import math
from collections import OrderedDict
from typing import Final

import trio

from presence.common.backoff import jittered
from presence.common.runtime import TrioWakeEvent
from presence.watching.room_views import WatchedRoom

SMALL_PAUSE_S: Final = 0.1  # between two reads of a room
LARGE_ROOM: Final = 100  # members; a room of more has
LARGE_PAUSE_S: Final = 1.0  # between two reads
RETRY_S: Final = 2.0  # after a read that failed, on average
REREAD_S: Final = 30.0
REREADS_PER_S: Final = 500  # of a worker; so more than 15,000 rooms have longer intervals
REREAD_INTERVAL_S: Final = 0.05


class RoomSchedule:
    """The rooms that are watched, and the order in which they are read.

    Attributes:
        rooms: by `asked_at`, oldest first.
        rereads: reads without a hint, since the start.
        arrived: set when a read is due.
    """

    def __init__(self) -> None:
        self.rooms: OrderedDict[str, WatchedRoom] = OrderedDict()
        self.rereads = 0
        self.arrived = TrioWakeEvent()
        self._due: dict[str, None] = {}  # in order
        self._later: list[tuple[float, str]] = []  # a heap: when, which room
        self._missed_at = -math.inf  # hints of rooms read before may have been lost
        self._reread_at = -math.inf  # when the next rooms may be read again
        self._changed = TrioWakeEvent()

    @property
    def is_due(self) -> bool:
        """Whether any read is due."""
        return bool(self._due)

    def add(self, name: str) -> WatchedRoom:
        """Add a room that a request is about to read."""
        room = self.rooms[name] = WatchedRoom(name, trio.current_time())
        self._changed.set()
        return room

    def remove(self, room: WatchedRoom) -> None:
        del self.rooms[room.name]
        self._due.pop(room.name, None)

    def read_soon(self, room: WatchedRoom) -> None:
        """Let a room be read as soon as it may."""
        if room.is_scheduled:
            return
        room.is_scheduled = True
        if room.next_read_at <= trio.current_time():
            self._make_due(room)
        else:
            heapq.heappush(self._later, (room.next_read_at, room.name))
            self._changed.set()

    def missed(self) -> None:
        """Let all rooms be read, because hints may have been lost."""
        self._missed_at = trio.current_time()
        self._changed.set()

    def take(self, most: int) -> list[WatchedRoom]:
        """Take the next rooms that are due; the pauses until their next reads begin."""
        some: list[WatchedRoom] = []
        while self._due and len(some) < most:
            name = next(iter(self._due))
            del self._due[name]
            room = self.rooms[name]
            if room.is_pushing:
                room.is_put_off = True
            else:
                room.is_scheduled = False
                self.pause(room)
                self._note_asked(room)
                some.append(room)
        return some

    def pause(self, room: WatchedRoom) -> None:
        """Let the pause until the next read begin: a longer one if the room is large."""
        pause_s = LARGE_PAUSE_S if room.occupancy.count > LARGE_ROOM else SMALL_PAUSE_S
        room.next_read_at = trio.current_time() + pause_s

    def retry(self, room: WatchedRoom) -> None:
        """Let a room be read again after a while: it could not be read."""
        room.next_read_at = trio.current_time() + jittered(RETRY_S)
        self.read_soon(room)

    def pushed(self, room: WatchedRoom) -> None:
        """Note that what the last read of a room has found was sent to all sessions that could take it."""
        room.is_pushing = False
        if room.is_put_off and self.rooms.get(room.name) is room:
            self._make_due(room)
        room.is_put_off = False

    async def run(self) -> None:
        """Make reads due until cancelled."""
        while True:
            now = trio.current_time()
            while self._later and self._later[0][0] <= now:
                _, name = heapq.heappop(self._later)
                if (room := self.rooms.get(name)) is not None:
                    room.is_scheduled = False
                    self.read_soon(room)  # for now, unless it has become a large one
            if self._reread_at <= now:
                self._recall(now)
            next_at = self._later[0][0] if self._later else math.inf
            if (oldest := next(iter(self.rooms.values()), None)) is not None:
                next_at = min(next_at, max(self._reread_at, self._old_at(oldest)))
            await self._changed.wait(next_at - now)

    def _recall(self, now: float) -> None:
        """Let rooms be read that were not for long, as many as the pace allows."""
        for _ in range(round(REREADS_PER_S * REREAD_INTERVAL_S)):
            oldest = next(iter(self.rooms.values()), None)
            if oldest is None or self._old_at(oldest) > now:
                break
            self._reread_at = now + REREAD_INTERVAL_S
            self._note_asked(oldest)
            self.rereads += 1
            self.read_soon(oldest)

    def _old_at(self, room: WatchedRoom) -> float:
        """Return when a room is read without a hint."""
        return -math.inf if room.asked_at <= self._missed_at else room.asked_at + REREAD_S

    def _note_asked(self, room: WatchedRoom) -> None:
        room.asked_at = trio.current_time()
        self.rooms.move_to_end(room.name)

    def _make_due(self, room: WatchedRoom) -> None:
        self._due[room.name] = None
        self.arrived.set()
