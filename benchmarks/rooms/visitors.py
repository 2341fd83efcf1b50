"""Clients that are in rooms, change, and watch rooms; each change and each push is noted with its time.

Each client is in a room of about ten, its *game*, and some are in the lobby. Half of the clients watch the
game that they began in, and one in ten watches the lobby as well; these never log out. A client that changes
goes to another game, into the lobby or out of it, or logs out and in again. While clients change, the lobby
only grows or only shrinks (`VisitorLoop.lobby_grows`): so its count tells which changes a push shows.

Tests: `tests/benchmarks/test_room_pushes.py`, `tests/system/benchmarks/test_rooms.py`.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from benchmarks.rooms.costs import LOBBY, ROOM_SIZE, game_name, uid
from presence import protocol
from presence.loadtest.client_loop import LOGIN_ID, ClientLoop, LoopClient
from presence.protocol import Kind

WATCHERS: Final = 5  # of each ten clients
LOBBY_WATCHERS: Final = 1
LOBBY_MEMBERS: Final = 5  # in the beginning
WATCH_ID, UPDATE_ID, LOGOUT_ID = 3, 4, 5
REST_S: Final = 2.0  # of a client between two changes, lest the second one overtake the push of the first
CHOICE_ATTEMPTS: Final = 50
# What clients do, and how many of a hundred
MIX: Final = {"move": 50, "lobby": 20, "session": 30}


class Step(NamedTuple):
    """A client that enters a room or leaves it; the time is right before it was sent."""

    uid: str
    room: str
    is_member: bool
    at: float
    cause: str  # "move", "lobby", "login", "logout"


class Seen(NamedTuple):
    """A push that shows a watcher that a user has entered a room or left it."""

    watcher: str
    uid: str
    room: str
    is_member: bool
    at: float


class CountSeen(NamedTuple):
    """A push that shows a watcher how many are in the lobby."""

    watcher: str
    members: int
    at: float


@dataclass
class VisitorLog:
    """What was done and seen since `begin_phase`; times are monotonic seconds."""

    steps: list[Step] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    counts: list[CountSeen] = field(default_factory=list)


@dataclass
class VisitorStatus:
    """Counts of a process: the clients as they are, the others since its start."""

    arriving: int  # clients that are to be logged in, and are not
    watching: int  # clients whose watch was answered
    cpu_s: float
    late_max_s: float  # since `begin_phase`
    broken: Counter[str]


class RoomVisitor(LoopClient):
    """A client in a game, and perhaps in the lobby.

    Attributes:
        rooms: that it is in, or will be in after its next login.
        is_present: whether it is to be logged in.
        watched: the rooms that it watches; `views` has these that it was told of, as members or as a count.
        free_at: when it may change again.
    """

    def __init__(self, loop: VisitorLoop, number: int, clients: int) -> None:
        super().__init__(loop, uid(number))
        self.visitors = loop
        home, place = game_name(number // ROOM_SIZE, clients), number % ROOM_SIZE
        self.rooms = {home, LOBBY} if place < LOBBY_MEMBERS else {home}
        self.watched = ([home] if place < WATCHERS else []) + ([LOBBY] if place < LOBBY_WATCHERS else [])
        self.views: dict[str, set[str] | int] = {}
        self.is_present = False
        self.free_at = 0.0

    # What it does

    def change_rooms(self, cause: str, *, join: str | None = None, leave: str | None = None) -> None:
        joined, left = [join] if join else None, [leave] if leave else None
        frame = protocol.encode(protocol.update(id=UPDATE_ID, join=joined, leave=left))
        self.rooms = self.rooms.difference(left or ()).union(joined or ())
        self.visitors.note_steps(self, cause, joined=joined or (), left=left or ())
        self.send(frame)

    def log_out(self) -> None:
        """Go offline; it comes back into its game, and not into the lobby."""
        self.is_present = self.reconnects = False
        self.visitors.note_steps(self, "logout", left=self.rooms)
        self.rooms.discard(LOBBY)
        self.send(protocol.encode(protocol.logout(id=LOGOUT_ID)))

    def come_back(self) -> None:
        self.close()
        self.is_present = self.reconnects = True
        self.connect()

    def watch(self) -> None:
        self.send(protocol.encode(protocol.watch(rooms=self.watched, id=WATCH_ID)))

    # What happens

    def on_connected(self) -> None:
        frame = protocol.encode(protocol.login(self.uid, id=LOGIN_ID, rooms=sorted(self.rooms)))
        self.visitors.note_steps(self, "login", joined=self.rooms)
        self.send(frame)

    def on_packet(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        if kind == Kind.ROOMS:
            for row in payload["rooms"]:
                self._learn(row, now)
        elif kind == Kind.OK and id == WATCH_ID:
            for row in payload["rooms"]:
                self._learn(row, None)
        elif kind == Kind.ERROR:
            self.visitors.broken[f"refused: {payload['reason']}"] += 1

    def _learn(self, row: Sequence[Any], now: float | None) -> None:
        """Take a row in, and log what it changes; `now` is None for what was there before."""
        room, count, *lists = row
        if room == LOBBY and count is not None:
            self.views[room] = count
            if now is not None:
                self.visitors.log.counts.append(CountSeen(self.uid, count, now))
            return
        known = self.views.get(room, set())
        assert isinstance(known, set)
        members = (known | {*lists[0]}) - {*lists[1]} if len(lists) == 2 else {*(lists or [()])[0]}
        if len(members) != count:
            self.visitors.broken["rows whose count is not that of the members"] += 1
        self.views[room] = members
        if now is not None:
            changed = [(each, True) for each in members - known] + [(each, False) for each in known - members]
            self.visitors.log.seen += (Seen(self.uid, user, room, there, now) for user, there in changed)

    def on_disconnect(self, payload: Mapping[str, Any] | None, now: float) -> None:
        if self.is_present:
            self.visitors.broken[f"connections lost: {payload['reason'] if payload else 'closed'}"] += 1


class VisitorLoop(ClientLoop):
    """The clients of one process; the methods below `Orders` are these.

    Args:
        numbers: of these clients.
        clients: of all processes.
        seed: of what they do.

    Attributes:
        lobby_grows: whether clients enter the lobby, and none leaves it, or the other way round.
        broken: promises, by their text.
    """

    def __init__(
        self,
        address: tuple[str, int],
        numbers: Iterable[int],
        clients: int,
        sources: Sequence[str | None],
        seed: int,
    ) -> None:
        super().__init__(address, slot_s=0.005, sources=sources)
        self.log = VisitorLog()
        self.lobby_grows = True
        self.broken: Counter[str] = Counter()
        self._all_clients = clients
        self._random = random.Random(seed)
        self._changes_per_s = 0.0
        self._gone: deque[RoomVisitor] = deque()  # in the order of their logouts
        self.clients = [RoomVisitor(self, number, clients) for number in numbers]

    def note_steps(
        self, client: RoomVisitor, cause: str, *, joined: Iterable[str] = (), left: Iterable[str] = ()
    ) -> None:
        now = time.monotonic()
        for rooms, is_member in ((joined, True), (left, False)):
            self.log.steps += (Step(client.uid, room, is_member, now, cause) for room in rooms)

    # Orders

    def log_in_all(self, per_second: float, keepalive_s: float) -> None:
        self.start_keepalives(keepalive_s)
        for client in self.clients:
            client.is_present = True
        self.connect_all(self.clients, per_second)

    def watch_all(self, per_second: float) -> None:
        now = time.monotonic()
        for number, client in enumerate(client for client in self.clients if client.watched):
            self.call_at(now + number / per_second, client.watch)

    def start_changes(self, per_second: float, *, lobby_grows: bool) -> None:
        self._changes_per_s, self.lobby_grows = per_second, lobby_grows
        self._change(time.monotonic())

    def stop_changes(self) -> None:
        """Let all stay as they are; those who are gone, too."""
        self._changes_per_s = 0.0

    def begin_phase(self) -> None:
        self.log, self.late_max_s = VisitorLog(), 0.0

    def take_log(self) -> VisitorLog:
        return self.log

    def report_status(self) -> VisitorStatus:
        return VisitorStatus(
            sum(client.is_present and not client.is_logged_in for client in self.clients),
            sum(len(client.views) == len(client.watched) > 0 for client in self.clients),
            time.process_time(),
            self.late_max_s,
            self.broken,
        )

    def watchers(self) -> Counter[str]:
        """Return how many clients watch each room."""
        return Counter(room for client in self.clients for room in client.watched)

    def present_members(self) -> dict[str, set[str]]:
        """Return who is in which room, as far as clients have told the server."""
        found: dict[str, set[str]] = {}
        for client in self.clients:
            for room in client.rooms if client.is_present else ():
                found.setdefault(room, set()).add(client.uid)
        return found

    def wrong_views(self, truth: Mapping[str, set[str]]) -> list[str]:
        """Return the watched rooms that differ from these members, in words."""
        found = []
        for client in self.clients:
            for room in client.watched:
                view, true = client.views.get(room), truth.get(room, set())
                if view != (len(true) if room == LOBBY else true):
                    found.append(f"{client.uid} sees {view} in {room}, not {len(true)} members")
        return found

    # What clients do

    def _change(self, due: float) -> None:
        if not self._changes_per_s:
            return
        self._begin(self._random.choices([*MIX], [*MIX.values()])[0])
        due += self._random.expovariate(self._changes_per_s)
        self.call_at(due, partial(self._change, due))

    def _begin(self, what: str) -> None:
        now = time.monotonic()
        if what == "session" and self._gone and self._gone[0].free_at <= now:
            client = self._gone.popleft()
            client.free_at = now + REST_S
            client.come_back()
            return
        for _ in range(CHOICE_ATTEMPTS):
            client = self._random.choice(self.clients)
            if client.is_logged_in and client.free_at <= now and self._may(client, what):
                break
        else:
            return
        if what == "move":
            (game,) = client.rooms - {LOBBY}
            other = game_name(self._random.randrange(self._all_clients), self._all_clients)
            if other == game:
                return
            client.change_rooms(what, join=other, leave=game)
        elif what == "lobby":
            client.change_rooms(what, **{"join" if self.lobby_grows else "leave": LOBBY})
        else:
            client.log_out()
            self._gone.append(client)
        client.free_at = now + REST_S

    def _may(self, client: RoomVisitor, what: str) -> bool:
        is_in_lobby = LOBBY in client.rooms
        if what == "lobby":
            return is_in_lobby is not self.lobby_grows
        return what == "move" or not (client.watched or (is_in_lobby and self.lobby_grows))
