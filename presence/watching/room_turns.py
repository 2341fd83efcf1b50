"""When rooms that are watched have their turns: each is read then, and pushed to the sessions that watch it.

A room that has changed has its turn immediately, or, if it just had one, after a pause: a longer one if it is
large. A turn waits until the sessions that watch the room have been sent what its last turn found. A room of
which no change is known is read every `REREAD_S`, and all rooms are when hints of changes may have been lost,
both at a pace.
"""

import heapq
import math
from collections import OrderedDict
from typing import Final

import trio

from presence.common.backoff import jittered
from presence.common.runtime import TrioWakeEvent
from presence.watching.room_views import WatchedRoom

SMALL_PAUSE_S: Final = 0.1  # between two turns of a room
LARGE_ROOM: Final = 100  # a room of more members has
LARGE_PAUSE_S: Final = 1.0  # between two turns
RETRY_S: Final = 2.0  # after a read that failed, on average
REREAD_S: Final = 30.0
REREADS_PER_S: Final = 500  # of a worker; so more than 15,000 rooms have longer intervals
REREAD_INTERVAL_S: Final = 0.05


class RoomTurns:
    """The rooms that are watched, and the order of their turns.

    Attributes:
        rooms: by `asked_at`, oldest first.
        rereads: turns without a hint, since the start.
        arrived: set when a turn is due.
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
        """Whether any turn is due."""
        return bool(self._due)

    def add(self, name: str) -> WatchedRoom:
        """Add a room that a request is about to read."""
        room = self.rooms[name] = WatchedRoom(name, trio.current_time())
        self._changed.set()
        return room

    def remove(self, room: WatchedRoom) -> None:
        del self.rooms[room.name]
        self._due.pop(room.name, None)

    def schedule(self, room: WatchedRoom) -> None:
        """Let a room have its turn as soon as it may."""
        if room.is_scheduled:
            return
        room.is_scheduled = True
        if room.next_turn_at <= trio.current_time():
            self._make_due(room)
        else:
            heapq.heappush(self._later, (room.next_turn_at, room.name))
            self._changed.set()

    def missed(self) -> None:
        """Let all rooms have a turn, because hints may have been lost."""
        self._missed_at = trio.current_time()
        self._changed.set()

    def take(self, most: int) -> list[WatchedRoom]:
        """Take the next rooms whose turn is due; the pause until the next one begins."""
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
        """Let the pause until the next turn begin, as long as the room is large."""
        pause_s = LARGE_PAUSE_S if room.occupancy.count > LARGE_ROOM else SMALL_PAUSE_S
        room.next_turn_at = trio.current_time() + pause_s

    def retry(self, room: WatchedRoom) -> None:
        """Let a room have another turn after a while: it could not be read."""
        room.next_turn_at = trio.current_time() + jittered(RETRY_S)
        self.schedule(room)

    def pushed(self, room: WatchedRoom) -> None:
        """Note that what the last turn of a room has found was sent to all sessions that could take it."""
        room.is_pushing = False
        if room.is_put_off and self.rooms.get(room.name) is room:
            self._make_due(room)
        room.is_put_off = False

    async def run(self) -> None:
        """Make turns due until cancelled."""
        while True:
            now = trio.current_time()
            while self._later and self._later[0][0] <= now:
                _, name = heapq.heappop(self._later)
                if (room := self.rooms.get(name)) is not None:
                    room.is_scheduled = False
                    self.schedule(room)  # for now, unless it has become a large one
            if self._reread_at <= now:
                self._recall(now)
            next_at = self._later[0][0] if self._later else math.inf
            if (oldest := next(iter(self.rooms.values()), None)) is not None:
                next_at = min(next_at, max(self._reread_at, self._old_at(oldest)))
            await self._changed.wait(next_at - now)

    def _recall(self, now: float) -> None:
        """Give a turn to rooms that had none for long, as many as the pace allows."""
        for _ in range(round(REREADS_PER_S * REREAD_INTERVAL_S)):
            oldest = next(iter(self.rooms.values()), None)
            if oldest is None or self._old_at(oldest) > now:
                break
            self._reread_at = now + REREAD_INTERVAL_S
            self._note_asked(oldest)
            self.rereads += 1
            self.schedule(oldest)

    def _old_at(self, room: WatchedRoom) -> float:
        """Return when a room has a turn without a hint."""
        return -math.inf if room.asked_at <= self._missed_at else room.asked_at + REREAD_S

    def _note_asked(self, room: WatchedRoom) -> None:
        room.asked_at = trio.current_time()
        self.rooms.move_to_end(room.name)

    def _make_due(self, room: WatchedRoom) -> None:
        self._due[room.name] = None
        self.arrived.set()
