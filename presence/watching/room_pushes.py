"""Pushes changes of rooms to the sessions that watch them: at most as fast as each client reads.

What a slice of work has for one session goes out together, and is encoded once for all who are shown the
same. A session that has not taken earlier bytes, or is quiet (`presence.core.quiet_sessions`), is *behind*:
it is sent nothing more until it can take it, and then the whole state of each room of which it has missed a
change. So nothing waits for a slow client, and of each room one version at a time is on its way.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

import trio

from presence.common.faults import Faults
from presence.common.runtime import TrioWakeEvent
from presence.core.quiet_sessions import QuietSessions
from presence.core.registry import Session
from presence.protocol.prepacked import pack_room_row, rooms_packet
from presence.watching.room_views import RoomPush, Shown, WatchedRoom, whole_row

MAX_PACKETS_PER_SLICE: Final = 256  # without a turn for other tasks: a millisecond or two,
WHOLE_ROW_PACKETS: Final = 4  # where the row of a whole room counts as so many
MAX_ROWS_PER_SESSION: Final = 16  # whole ones, in a slice
MAX_PACKET_BYTES: Final = 16_384  # unless one row alone has more


class _Row(NamedTuple):
    room: WatchedRoom
    version: int
    packed: bytes


class RoomPushes:
    """Sends rows of rooms; a connection that cannot be written to is closed.

    Args:
        rooms_of: returns the rooms that a session watches.
        shown: returns what selects the members that a session is shown: `sorted` if it is shown all.
        pushed: called when a version of a room was sent to all sessions that could take it.
        quiet: sessions that are sent changes after their next packet; this class adds to its `holding`.
        faults: contains errors.

    Attributes:
        behind: sessions that are sent changes when they can take them.
        sent: rows that connections took, since the start, as below.
        put_off: times that a session fell behind, because its connection had not taken earlier bytes,
        held: or because it was quiet.
    """

    def __init__(
        self,
        rooms_of: Callable[[Session], Iterable[WatchedRoom]],
        shown: Callable[[Session], Shown],
        pushed: Callable[[WatchedRoom], object],
        quiet: QuietSessions,
        faults: Faults,
    ) -> None:
        self._rooms_of = rooms_of
        self._shown = shown
        self._pushed = pushed
        self._quiet = quiet
        self._faults = faults
        self._queue: deque[RoomPush] = deque()
        self._ready: dict[Session, None] = {}  # those that were behind and are next, in order
        self._filled = TrioWakeEvent()
        self.behind: set[Session] = set()
        self.sent = self.put_off = self.held = 0

    def push(self, room: WatchedRoom) -> None:
        """Push the present version of a room to the sessions that watch it, unless it was pushed."""
        if (push := room.next_push()) is not None:
            room.is_pushing = True
            self._queue.append(push)
            self._filled.set()

    def refresh(self, session: Session) -> None:
        """Send a session what it has missed: soon, or if it is quiet, with its next packet."""
        self.behind.add(session)
        if session in self._quiet.sessions:
            self.held += 1
            self._quiet.holding.add(session)
        else:
            self.catch_up(session)

    def catch_up(self, session: Session) -> None:
        """Send a session soon what it has missed, if it is behind."""
        if session in self.behind:
            self.behind.discard(session)
            self._ready[session] = None
            self._filled.set()

    def discard(self, session: Session) -> None:
        """Forget a session that watches no rooms."""
        self.behind.discard(session)
        self._ready.pop(session, None)

    def whole(self, room: WatchedRoom, session: Session) -> bytes:
        """Return the row of the whole state, packed once for all who are shown the same."""
        shown = self._shown(session)
        if shown is not sorted:
            return pack_room_row(whole_row(room.name, room.occupancy, shown))
        if not room.packed:
            room.packed = pack_room_row(whole_row(room.name, room.occupancy, shown))
        return room.packed

    async def run(self) -> None:
        """Push until cancelled."""
        while True:
            if not (self._queue or self._ready):
                await self._filled.wait(math.inf)
            with self._faults.contained("push"):
                self.send_slice()
            with self._faults.contained("push"):
                self.send_missed_slice()
            await trio.lowlevel.checkpoint()

    def send_slice(self) -> None:
        gathered: dict[Session, list[_Row]] = {}
        left = MAX_PACKETS_PER_SLICE
        while left > 0 and self._queue:
            push = self._queue[0]
            due = push.remaining[-left:]
            del push.remaining[-left:]
            left -= max(1, len(due))
            if not push.remaining:
                self._queue.popleft()
                self._pushed(push.room)
            for session in due:
                if (row := self._row(push, session)) is not None:
                    gathered.setdefault(session, []).append(row)
        for session, rows in gathered.items():
            # A lost row would leave a wrong view, so the client is disconnected, and asks anew.
            with self._faults.contained("push", partial(self._faults.disconnect, session)):
                self._offer(session, rows)

    def _row(self, push: RoomPush, session: Session) -> _Row | None:
        """Return the row that a session is to be sent; None if it is no news, or has to wait."""
        room = push.room
        sent = room.watchers.get(session)
        if sent is None or sent >= push.version or session in self.behind:
            return None
        if session in self._quiet.sessions:
            self.refresh(session)
            return None
        shown, is_next = self._shown(session), sent == push.before_version
        form = (shown is not None, is_next)
        packed = push.packed.get(form)
        if packed is None or not (shown is None or shown is sorted):
            row = push.row(is_next=is_next, shown=shown)
            packed = push.packed[form] = b"" if row is None else pack_room_row(row)
        if not packed:
            room.watchers[session] = push.version
            return None
        return _Row(room, push.version, packed)

    def _offer(self, session: Session, rows: Sequence[_Row]) -> bool:
        """Offer rows to a connection, several in a packet; return whether it took all, else it is behind."""
        taken = 0
        while taken < len(rows) and session.transport is not None:
            end, size = taken + 1, len(rows[taken].packed)
            while end < len(rows) and size + len(rows[end].packed) <= MAX_PACKET_BYTES:
                size += len(rows[end].packed)
                end += 1
            some = rows[taken:end]
            if not session.transport.try_send(session.handle, rooms_packet([each.packed for each in some])):
                self.put_off += 1
                self.behind.add(session)
                return False
            for room, version, _ in some:
                if session in room.watchers:
                    room.watchers[session] = version
            self.sent += len(some)
            taken = end
        return True

    def send_missed_slice(self) -> None:
        left = MAX_PACKETS_PER_SLICE
        while left > 0 and self._ready:
            session = next(iter(self._ready))
            del self._ready[session]
            with self._faults.contained("push", partial(self._faults.disconnect, session)):
                left -= 1 + WHOLE_ROW_PACKETS * self._send_missed(session)

    def _send_missed(self, session: Session) -> int:
        """Send a session rooms of which it has missed a version; return how many."""
        rooms = [each for each in self._rooms_of(session) if each.watchers[session] < each.pushed_version]
        some = rooms[:MAX_ROWS_PER_SESSION]
        rows = [_Row(room, room.version, self.whole(room, session)) for room in some]
        if self._offer(session, rows) and len(some) < len(rooms):
            self._ready[session] = None
        return len(some)
