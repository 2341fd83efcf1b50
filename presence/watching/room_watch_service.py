"""Rooms that clients of this worker watch and query.

Hints say that rooms have changed, and reads say how they are now. So hints that are lost, doubled or late do
no harm: a room is read again when hints may have been lost, and now and then in any case (`room_schedule`).
Each request reads its rooms, together with those of others, so an answer is never older than its request. A
watch holds its rooms from the moment that it is taken, so no hint is missed between the read and the answer.

`room_views` has what sessions are sent, and `room_pushes` how. Memory: see `RoomWatchService.memory_bytes`.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from sys import getsizeof
from typing import Final, Protocol

import trio

from presence.common.errors import StoreError, StoreUnavailable
from presence.common.faults import Faults
from presence.common.runtime import Runtime
from presence.core.authenticator import NO_ROOM_CLAIM, RoomClaim
from presence.core.quiet_sessions import QuietSessions
from presence.core.registry import Session
from presence.core.rooms import RoomMode, may_watch, shows_members
from presence.core.service_requests import RoomQueryRequest, RoomWatchRequest, send_error, send_ok
from presence.core.visibility import Visibility
from presence.protocol import WATCHED_ROOMS_MAX, Code, EncodeError
from presence.protocol.prepacked import pack_room_row, rooms_answer, rooms_packet
from presence.watching.client_answers import RETRY_S, refuse_busy, refuse_failed, send
from presence.watching.pending_watches import RequestTimeouts, memory_of
from presence.watching.room_pushes import RoomPushes
from presence.watching.room_schedule import RoomSchedule
from presence.watching.room_views import (
    NOTHING_SENT,
    FoundRooms,
    RoomOccupancy,
    Shown,
    WatchedRoom,
    whole_row,
)

GATHER_S: Final = 0.003
MAX_ROOMS_PER_READ: Final = 128  # of 200 members each: some milliseconds of Redis and of this process
MAX_REQUESTS_PER_READ: Final = 1_000  # about the same rooms
MAX_PENDING_ROOMS: Final = 20_000  # in requests that wait: a second of work
REQUEST_TIMEOUT_S: Final = 4.5
FULL_RETRY_S: Final = 15.0  # on average, after a refusal for lack of memory
MEMBERS_PER_COST: Final = 20  # that may be listed: they make a room as costly as a user
MAX_ANSWER_BYTES: Final = 65_536  # of the answer to a watch; lists of further members follow as pushes
# Measured by `tests/system/matrices/test_bounds.py`, rounded up.
ROOM_BYTES: Final = 850  # of a watched room beside its name and its members
MEMBER_BYTES: Final = 100  # of a member beside the uid: a set may be only a sixth full
WATCH_BYTES: Final = 80
SESSION_BYTES: Final = 400  # of a session that watches rooms
NOT_ALLOWED: Final = "this room may not be watched"


class RoomReads(Protocol):
    """The rooms in Redis: blocking calls, one at a time."""

    def read(self, rooms: Sequence[str], most_members: int) -> FoundRooms:
        """Return each room as it is, with members if they are not more."""


@dataclass(frozen=True, slots=True)
class RoomSource:
    """Where rooms are, and what clients are shown of them."""

    reads: RoomReads  # used by one `RoomWatchService` only
    most_members: int  # of a room that clients are shown; 0: only how many there are
    mode: RoomMode
    claims: Mapping[Session, RoomClaim]  # of the tokens of sessions that have one


class _NoRooms:
    """Rooms where there are none."""

    def read(self, rooms: Sequence[str], most_members: int) -> FoundRooms:
        return {}


@dataclass(slots=True)
class RoomWatchStatistics:
    """Gauges, and counters since the start."""

    sessions: int = 0  # that watch rooms
    rooms: int = 0  # that are watched
    watches: int = 0
    behind: int = 0  # sessions that are sent changes when they can take them
    answered: int = 0  # requests that were granted,
    refused: int = 0  # or not,
    full: int = 0  # the latter for lack of memory
    reads: int = 0  # rooms read
    rereads: int = 0  # without a hint or a request
    failures: int = 0  # rooms that could not be read
    unlisted: int = 0  # lists of members that were not kept for lack of memory
    sent: int = 0  # rows that connections took
    put_off: int = 0  # times that a session fell behind, because the connection had not taken earlier bytes,
    held: int = 0  # or because it was quiet


@dataclass(eq=False, slots=True)
class _Request:
    session: Session
    id: int | None  # of the packet
    rooms: list[str]  # each once
    is_watch: bool  # else it is a query
    unwatched: set[str] = field(default_factory=set)  # by the session meanwhile
    is_settled: bool = False  # answered, refused or dropped


class RoomWatchService:
    """Answers requests about rooms, and pushes changes to the sessions that watch them.

    Args:
        source: None: the server has no rooms.
        allows: whether memory is left for a session with so many watches, if all take so many bytes more.
        visibility: whom each client may see; None: all users.
        quiet: sessions that are sent changes after their next packet.
    """

    def __init__(
        self,
        source: RoomSource | None,
        allows: Callable[[float, int], bool],
        *,
        visibility: Visibility | None,
        quiet: QuietSessions,
        runtime: Runtime,
        faults: Faults,
    ) -> None:
        self._source = source or RoomSource(_NoRooms(), 0, "off", {})
        self._allows = allows
        self._visibility = visibility
        self._faults = faults
        self._redis = runtime.loop_caller()
        self._schedule = RoomSchedule()
        self._pushes = RoomPushes(self._rooms_of, self._shown, self._schedule.pushed, quiet, faults)
        self._by_session: dict[Session, dict[str, WatchedRoom]] = {}
        self._listed: set[Session] = set()  # of these, those that are shown members
        self._pending: dict[Session, list[_Request]] = {}
        self._requests: deque[_Request] = deque()  # some may be settled
        self._pending_rooms = 0  # of `_requests`
        self._timeouts = RequestTimeouts(REQUEST_TIMEOUT_S, self._refuse_busy, faults, "watch")
        self._watches = self._name_bytes = self._list_bytes = 0
        self._statistics = RoomWatchStatistics()

    @property
    def memory_bytes(self) -> int:
        """Approximate memory of all watches of rooms."""
        stored = ROOM_BYTES * len(self._schedule.rooms) + self._name_bytes + self._list_bytes
        return stored + WATCH_BYTES * self._watches + SESSION_BYTES * len(self._by_session)

    async def run(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            for task in (self._read_all, self._schedule.run, self._pushes.run, self._timeouts.run):
                nursery.start_soon(task)

    # Requests

    def cost(self, rooms: Sequence[str]) -> int:
        """Return what a request about rooms costs, in users asked about."""
        return len(rooms) * (1 + self._source.most_members // MEMBERS_PER_COST)

    def take(self, session: Session, asked: RoomQueryRequest | RoomWatchRequest) -> None:
        """Take a request, or refuse it."""
        is_watch = isinstance(asked, RoomWatchRequest)
        request = _Request(session, asked.id, [*dict.fromkeys(asked.rooms)], is_watch)
        if self._source.mode == "off":
            send_ok(session, asked.id, {})
        elif not self._is_allowed(request):
            self._refuse(request, Code.NOT_ALLOWED, NOT_ALLOWED)
        elif not request.rooms:
            self._grant(request, rooms_answer(asked.id, []))
        elif self._pending_rooms + len(request.rooms) > MAX_PENDING_ROOMS:
            self._refuse_busy(request, "too many requests wait")
        elif not is_watch or self._hold(request):
            self._pending.setdefault(session, []).append(request)
            self._requests.append(request)
            self._pending_rooms += len(request.rooms)
            self._timeouts.add(request)
            self._schedule.arrived.set()

    def _is_allowed(self, request: _Request) -> bool:
        return all(self._may_watch(request.session, room) for room in request.rooms)

    def _may_watch(self, session: Session, room: str) -> bool:
        return may_watch(room, self._source.claims.get(session, NO_ROOM_CLAIM), self._source.mode)

    def _hold(self, request: _Request) -> bool:
        """Hold the rooms of a watch until it is settled, or refuse it."""
        session = request.session
        watched = {*self._by_session.get(session, ())}
        for each in self._pending.get(session, ()):
            watched.update(each.rooms if each.is_watch else ())
        added = [name for name in request.rooms if name not in watched]
        most = len(watched) + len(added)
        if most > WATCHED_ROOMS_MAX:
            message = f"a connection may watch {WATCHED_ROOMS_MAX} rooms; this one watches {len(watched)}"
            self._refuse(request, Code.TOO_LARGE, message)
            return False
        new = [name for name in added if name not in self._schedule.rooms]
        size = ROOM_BYTES * len(new) + memory_of(new) + WATCH_BYTES * len(added)
        if added and not self._allows(most, size if watched else size + SESSION_BYTES):
            self._statistics.full += 1
            message = "no memory is left here for so many rooms: watch fewer, or try again later"
            self._refuse_busy(request, message, FULL_RETRY_S)
            return False
        for name in new:
            self._schedule.add(name)
            self._name_bytes += getsizeof(name)
        for name in request.rooms:
            self._schedule.rooms[name].waiting += 1
        return True

    def unwatch(self, session: Session, rooms: Iterable[str] | None) -> None:
        """End watches of a session, pending ones included; None: all. It is not answered here."""
        gone = None if rooms is None else {*rooms}
        for request in self._pending.get(session, ()):
            request.unwatched.update(request.rooms if gone is None else gone)
        for name in [*self._by_session.get(session, ())]:
            if gone is None or name in gone:
                self._end(session, name)

    def left(self, session: Session) -> None:
        """Drop what belongs to a session whose connection is lost or closing."""
        self.unwatch(session, None)
        for request in [*self._pending.get(session, ())]:
            self._settle(request)

    def rights_changed(self, session: Session) -> None:
        """End watches that a session has no right to any more, and show it the members that it may see."""
        gone = [name for name in self.watched_by(session) if not self._may_watch(session, name)]
        for name in gone:
            self._end(session, name)
        if gone:
            send(session, rooms_packet([pack_room_row([name, None]) for name in gone]))
        if session not in self._by_session:
            return
        sees_others = self._visibility is not None and session in self._listed
        if self._note_listed(session) or sees_others:
            for room in self._rooms_of(session):
                room.watchers[session] = NOTHING_SENT
            self._pushes.refresh(session)

    def _note_listed(self, session: Session) -> bool:
        """Note whether a session is shown members from now on; return whether that is new."""
        was_listed = session in self._listed
        if is_listed := self._shown(session) is not None:
            self._listed.add(session)
        else:
            self._listed.discard(session)
        return is_listed != was_listed

    def watched_by(self, session: Session) -> list[str]:
        """Return the rooms that a session watches."""
        return [*self._by_session.get(session, ())]

    def sent_to(self, session: Session, most: int) -> list[dict[str, object]]:
        """Return what a session was sent of at most so many of the rooms that it watches, and what is known.

        Each is ``{room, sent, sent_version, count, version, read_age_s}``: the count that the session was
        sent last, None if that is older than two versions ago or never was; and the count by the last read.
        """
        now = trio.current_time()
        rows: list[dict[str, object]] = []
        for room in islice(self._by_session.get(session, {}).values(), most):
            version = room.watchers[session]
            known = {room.pushed_version: room.pushed, room.version: room.occupancy}
            sent = None if version == NOTHING_SENT else known.get(version)
            rows.append(
                {
                    "room": room.name,
                    "sent": None if sent is None else sent.count,
                    "sent_version": version,
                    "count": room.occupancy.count,
                    "version": room.version,
                    "read_age_s": round(now - room.asked_at, 3),
                }
            )
        return rows

    def _rooms_of(self, session: Session) -> list[WatchedRoom]:
        return [*self._by_session.get(session, {}).values()]

    def _end(self, session: Session, name: str) -> None:
        mine = self._by_session[session]
        room = mine.pop(name)
        if not mine:
            del self._by_session[session]
            self._listed.discard(session)
            self._pushes.discard(session)
        del room.watchers[session]
        self._watches -= 1
        self._drop_unused(room)

    def _drop_unused(self, room: WatchedRoom) -> None:
        if not (room.watchers or room.waiting):
            self._schedule.remove(room)
            self._name_bytes -= getsizeof(room.name)
            self._list_bytes -= bytes_of_list(room.occupancy)

    # Changes

    def changed(self, rooms: Iterable[str] | None) -> None:
        """Read rooms that have changed, of those that are watched; None: any may have."""
        if rooms is None:
            self._schedule.missed()
            return
        for name in rooms:
            if (room := self._schedule.rooms.get(name)) is not None:
                self._schedule.read_soon(room)

    def catch_up(self, session: Session) -> None:
        """Send a session soon what it has missed, if it is behind."""
        self._pushes.catch_up(session)

    def is_behind(self, session: Session) -> bool:
        """Whether a session is sent changes when it can take them."""
        return session in self._pushes.behind

    def _shown(self, session: Session) -> Shown:
        """Return what selects the members that a session is shown: `sorted` if it is shown all."""
        source = self._source
        claim = source.claims.get(session, NO_ROOM_CLAIM)
        if not (source.most_members and shows_members(claim, source.mode)):
            return None
        if (visibility := self._visibility) is None:
            return sorted
        return lambda uids: sorted(uid for uid in uids if visibility.allows(session, uid))

    # Reads

    async def _read_all(self) -> None:
        while True:
            if not (self._requests or self._schedule.is_due):
                await self._schedule.arrived.wait(math.inf)
                await trio.sleep(GATHER_S)
            requests, due = self._next_requests(), self._schedule.take(MAX_ROOMS_PER_READ // 2)
            asked = [name for request in requests for name in request.rooms]
            names = [*dict.fromkeys([*asked, *(room.name for room in due)])]
            if names:
                await self._read(names, requests, due)
            await trio.lowlevel.checkpoint()

    def _next_requests(self) -> list[_Request]:
        """Return the next requests, about at most half of the rooms of a read, or one request."""
        some: list[_Request] = []
        names: set[str] = set()
        while self._requests and len(some) < MAX_REQUESTS_PER_READ:
            request = self._requests[0]
            if some and len(names.union(request.rooms)) > MAX_ROOMS_PER_READ // 2:
                break
            self._requests.popleft()
            self._pending_rooms -= len(request.rooms)
            if not request.is_settled:
                some.append(request)
                names.update(request.rooms)
        return some

    async def _read(
        self, names: Sequence[str], requests: Sequence[_Request], due: Sequence[WatchedRoom]
    ) -> None:
        found = await self._find(names)
        watched = [room for name in names if (room := self._schedule.rooms.get(name)) is not None]
        for room in watched:
            if isinstance(occupancy := found[room.name], RoomOccupancy):
                self._update(room, occupancy)
        for room in due:
            if self._schedule.rooms.get(room.name) is not room:
                continue
            if isinstance(found[room.name], RoomOccupancy):
                self._schedule.pause(room)
                self._pushes.push(room)
            else:
                self._schedule.retry(room)
        for room in watched:
            if room.version != room.pushed_version:
                self._schedule.read_soon(room)
        for request in requests:
            if not request.is_settled:
                with self._faults.contained("watch", partial(self._refuse_broken, request)):
                    self._answer(request, found)
                await trio.lowlevel.checkpoint()

    async def _find(self, names: Sequence[str]) -> FoundRooms:
        reads, most_members = self._source.reads, self._source.most_members
        found: FoundRooms
        try:
            found = await self._redis.call(lambda: reads.read(names, most_members))
        except (StoreUnavailable, StoreError) as error:
            found = dict.fromkeys(names, error)
        except Exception as error:  # perhaps because of one room: the others must not fail with it
            if len(names) > 1:
                return {name: (await self._find([name]))[name] for name in names}
            self._faults.record("watch", error)
            found = dict.fromkeys(names, StoreError("the read failed"))
        failures = sum(isinstance(each, Exception) for each in found.values())
        self._statistics.failures += failures
        self._statistics.reads += len(names) - failures
        return found

    def _update(self, room: WatchedRoom, found: RoomOccupancy) -> None:
        is_list_new = found.members and room.occupancy.members is None
        if is_list_new and not self._allows(math.inf, bytes_of_list(found)):
            self._statistics.unlisted += 1
            found = replace(found, members=None)
        before = room.occupancy
        if room.update(found):
            self._list_bytes += bytes_of_list(found) - bytes_of_list(before)

    # Answers

    def _answer(self, request: _Request, found: FoundRooms) -> None:
        failure = next((each for name in request.rooms if isinstance(each := found[name], Exception)), None)
        if failure is not None:
            is_away = isinstance(failure, StoreUnavailable)
            self._refuse_busy(request, "Redis is away" if is_away else "Redis refuses")
        elif not self._is_allowed(request):  # by a token that came meanwhile
            self._refuse(request, Code.NOT_ALLOWED, NOT_ALLOWED)
        elif request.is_watch:
            self._begin(request)
        else:
            shown = self._shown(request.session)
            rows = [
                pack_room_row(whole_row(name, each, shown))
                for name in request.rooms
                if isinstance(each := found[name], RoomOccupancy)
            ]
            try:
                packet = rooms_answer(request.id, rows)
            except EncodeError:
                self._refuse(request, Code.TOO_LARGE, "ask for fewer rooms")
            else:
                self._grant(request, packet)

    def _begin(self, request: _Request) -> None:
        """Answer a watch, which begins it."""
        session, size = request.session, 0
        rows: list[bytes] = []
        later: list[str] = []
        begun: dict[WatchedRoom, int] = {}  # with the version in the answer
        for name in request.rooms:
            room = self._schedule.rooms[name]
            row, version = self._pushes.whole(room, session), room.version
            if room.occupancy.members and size + len(row) > MAX_ANSWER_BYTES:
                row, version = pack_room_row(whole_row(name, room.occupancy, None)), NOTHING_SENT
                later.append(name)
            rows.append(row)
            size += len(row)
            if name not in request.unwatched:
                begun[room] = version
        packet = rooms_answer(request.id, rows, later)
        for room, version in begun.items():
            self._watches += session not in room.watchers
            room.watchers[session] = version
            self._by_session.setdefault(session, {})[room.name] = room
        if begun:
            self._note_listed(session)
        self._grant(request, packet)
        if NOTHING_SENT in begun.values():
            self._pushes.refresh(session)

    def _grant(self, request: _Request, packet: bytes) -> None:
        self._settle(request)
        self._statistics.answered += 1
        send(request.session, packet)

    def _refuse(self, request: _Request, code: Code, message: str) -> None:
        self._settle(request)
        self._statistics.refused += 1
        send_error(request.session, request.id, code, message)

    def _refuse_busy(
        self, request: _Request, message: str = "Redis is away", retry_s: float = RETRY_S
    ) -> None:
        self._settle(request)
        self._statistics.refused += 1
        refuse_busy(request.session, request.id, message, retry_s)

    def _refuse_broken(self, request: _Request) -> None:
        """Refuse a request whose answer failed."""
        if request.is_settled:  # it could not be sent, but its watch may have begun
            self._faults.disconnect(request.session)
            return
        self._settle(request)
        self._statistics.refused += 1
        refuse_failed(request.session, request.id)

    def _settle(self, request: _Request) -> None:
        """Note that a request is answered, refused or dropped."""
        request.is_settled = True
        self._timeouts.discard(request)
        mine = self._pending.get(request.session, [])
        if request not in mine:  # it was refused immediately
            return
        mine.remove(request)
        if not mine:
            del self._pending[request.session]
        if request.is_watch:
            for name in request.rooms:
                room = self._schedule.rooms[name]
                room.waiting -= 1
                self._drop_unused(room)

    @property
    def statistics(self) -> RoomWatchStatistics:
        found, pushes = self._statistics, self._pushes
        found.sessions, found.watches = len(self._by_session), self._watches
        found.rooms = len(self._schedule.rooms)
        found.rereads, found.behind = self._schedule.rereads, len(pushes.behind)
        found.sent, found.put_off, found.held = pushes.sent, pushes.put_off, pushes.held
        return found


def bytes_of_list(occupancy: RoomOccupancy) -> int:
    """Return the memory of the members of a room, with its packed row, and their names in UTF-8."""
    members = occupancy.members or ()
    return MEMBER_BYTES * len(members) + memory_of(members) + 2 * sum(map(len, members))
