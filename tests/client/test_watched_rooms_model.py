"""A client that watches rooms, on a network that is late and breaks at any time. Planted faults are noticed.

The server tells each connection differences from what it has told before, as `protocol/SPEC.md` says. Calls
time out and are cancelled, rooms may be forbidden, and some servers have none.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from presence import protocol
from presence.client import RoomChanged, RoomState, State
from presence.client.pending import RequestResult
from presence.client.watched_rooms import WatchedRooms
from presence.protocol import Code, Kind, Packet
from tests.client.machine_driver import Driven

ROOMS = ("lobby", "hall", "bar")
UIDS = ("ann", "bob", "eve")
MOST_SHOWN = 2  # members of a room

SOME_ROOMS = st.lists(st.sampled_from(ROOMS), min_size=1, unique=True)


class RoomServer:
    """The members of rooms, and what the present connection was told of those that it watches."""

    def __init__(self) -> None:
        self.members: dict[str, set[str]] = {room: set() for room in ROOMS}
        self.forbidden: set[str] = set()
        self.has_rooms = True
        self.told: dict[str, RoomState] = {}

    def state(self, room: str) -> RoomState:
        members = frozenset(self.members[room])
        return RoomState(len(members), members if len(members) <= MOST_SHOWN else None)

    def row(self, room: str, *, whole: bool) -> list[Any]:
        """Return what the connection is told of a room, if it can be a difference from before that."""
        before, state = self.told.get(room), self.state(room)
        self.told[room] = state
        if state.members is None:
            return [room, state.count]
        if whole or before is None or before.members is None:
            return [room, state.count, sorted(state.members)]
        return [room, state.count, sorted(state.members - before.members), [*before.members - state.members]]

    def answers(self, packet: Packet, *, busy: bool, cut: bool) -> list[Packet]:
        """Return the answer, and if it is cut, the members that follow."""
        found = self.answer(packet, busy=busy)
        if not cut:
            return [found]
        rows = found.payload.get("rooms", [])
        later = [row for row in rows if len(row) > 2]
        short = [row[:2] for row in rows]
        answer = protocol.ok(found.id, rooms=short, later=[row[0] for row in later])
        return [answer, protocol.rooms(later)] if later else [found]

    def answer(self, packet: Packet, *, busy: bool) -> Packet:
        rooms = packet.payload.get("rooms")
        if packet.kind == Kind.UNWATCH:
            for room in ROOMS if rooms is None else rooms:
                self.told.pop(room, None)
        elif packet.kind == Kind.WATCH and busy:
            return protocol.error(packet.id, Code.BUSY, "later", 1.0)
        elif packet.kind == Kind.WATCH and self.has_rooms:
            if self.forbidden.intersection(rooms or ()):
                return protocol.error(packet.id, Code.NOT_ALLOWED, "no")
            return protocol.ok(packet.id, rooms=[self.row(room, whole=True) for room in rooms or ()])
        return protocol.ok(packet.id)


class WatchingRooms(RuleBasedStateMachine):
    """What the program was told adds up to what the client knows, and in the end to the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.server = RoomServer()
        self.driven = Driven(chance=0.5)
        self.in_flight: deque[Packet] = deque()  # to the client
        self.read = 0  # packets that the server has read
        self.asked: dict[int, set[str]] = {}  # by id, rooms of calls that have not returned
        self.shown: dict[str, RoomState] = {}  # what the program knows of the rooms that it watches
        self.connect()

    def connect(self) -> None:
        self.server.told.clear()
        self.in_flight.clear()
        self.driven.log_in()
        self.read = len(self.driven.sent)
        self.read -= sum(each.id is not None and each.kind != Kind.LOGIN for each in self.driven.sent[-2:])

    @property
    def online(self) -> bool:
        return self.driven.machine.state is State.ONLINE

    @property
    def known(self) -> dict[str, RoomState]:
        return self.driven.machine.persistent_state.watched_rooms.states()

    # Program

    @precondition(lambda self: self.online)
    @rule(rooms=SOME_ROOMS, timeout_s=st.sampled_from([0.5, 5.0]))
    def program_watches(self, rooms: list[str], timeout_s: float) -> None:
        self.asked[self.driven.ask(protocol.watch(rooms=rooms), timeout_s)] = set(rooms)

    @precondition(lambda self: self.online and self.asked)
    @rule()
    def program_cancels(self) -> None:
        id = next(iter(self.asked))
        del self.asked[id]
        self.note(self.driven.machine.abandon_request(id))

    @rule(rooms=st.none() | SOME_ROOMS, everything=st.booleans())
    def program_unwatches(self, rooms: list[str] | None, everything: bool) -> None:
        if rooms is None and everything:
            self.driven.machine.unwatch(None, 5.0, self.driven.now)
        else:
            self.driven.machine.unwatch_rooms(rooms, 5.0, self.driven.now)
        self.note([])
        for room in ROOMS if rooms is None else rooms:
            self.shown.pop(room, None)
            for asked in self.asked.values():
                asked.discard(room)

    # Server and network

    @rule(room=st.sampled_from(ROOMS), uid=st.sampled_from(UIDS))
    def member_comes_or_goes(self, room: str, uid: str) -> None:
        self.server.members[room] ^= {uid}

    @rule(count=st.integers(1, 4), busy=st.booleans(), cut=st.booleans())
    def server_reads(self, count: int, busy: bool, cut: bool) -> None:
        for packet in self.driven.sent[self.read : self.read + count] if self.online else ():
            self.read += 1
            if packet.id is not None:
                self.in_flight.extend(self.server.answers(packet, busy=busy, cut=cut))

    @rule(rooms=SOME_ROOMS)
    def server_pushes(self, rooms: list[str]) -> None:
        told = self.server.told
        changed = [room for room in rooms if room in told and told[room] != self.server.state(room)]
        if changed and self.online:
            self.in_flight.append(protocol.rooms([self.server.row(room, whole=False) for room in changed]))

    @rule(room=st.sampled_from(ROOMS))
    def server_forbids_a_room_or_allows_it(self, room: str) -> None:
        self.server.forbidden ^= {room}
        if room in self.server.forbidden & self.server.told.keys():
            del self.server.told[room]
            self.in_flight.append(protocol.rooms([[room, None]]))

    @rule(count=st.integers(1, 4))
    def network_delivers(self, count: int) -> None:
        for _ in range(min(count, len(self.in_flight)) if self.online else 0):
            self.note(
                self.driven.machine.received(protocol.encode(self.in_flight.popleft()), self.driven.now)
            )

    @rule(seconds=st.sampled_from([0.1, 1.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        end = self.driven.now + seconds
        while self.driven.machine.deadline <= end and self.driven.machine.state is not State.CONNECTING:
            self.driven.now = max(self.driven.now, self.driven.machine.deadline)
            self.note(self.driven.machine.tick(self.driven.now))
        self.driven.now = end

    @rule(has_rooms=st.integers(0, 9))
    def connection_moves(self, has_rooms: int) -> None:
        """Reconnect, seldom to a server without rooms."""
        if self.online:
            self.note(self.driven.machine.disconnected("broken", self.driven.now))
        while self.driven.machine.state is not State.CONNECTING:
            self.time_passes(1.0)
        self.server.has_rooms = has_rooms > 0
        self.connect()

    # What the program is told

    def note(self, effects: Iterable[Any]) -> None:
        for each in effects:
            if isinstance(each, RoomChanged):
                self.note_change(each)
            elif isinstance(each, RequestResult):
                rooms = self.asked.pop(each.id, set())
                for room in () if isinstance(each.result, Exception) else rooms - self.shown.keys():
                    self.shown[room] = self.known[room]
        self.driven.note([])

    def note_change(self, change: RoomChanged) -> None:
        before, state = self.shown.pop(change.room), change.state
        if state is None:
            assert not change.joined | change.left
            return
        assert state != before, "a change"
        if before.members is None or state.members is None:
            assert not change.joined | change.left
        else:
            assert before.members - change.left | change.joined == state.members
            assert not change.joined & before.members
            assert change.left <= before.members
        self.shown[change.room] = state

    @invariant()
    def the_program_was_told_what_the_client_knows(self) -> None:
        assert self.known == self.shown

    def teardown(self) -> None:
        """When everything has been delivered, client and server agree, and what is known is the truth."""
        if not self.online:
            self.connection_moves(1)
        for _ in range(40):
            self.server_reads(100, busy=False, cut=False)
            self.network_delivers(100)
            self.time_passes(1.0)
        self.server_pushes([*ROOMS])
        self.network_delivers(100)
        assert self.online
        assert not self.asked
        assert self.server.told.keys() == self.shown.keys()
        assert self.shown == {room: self.server.state(room) for room in self.shown}


TestWatchingRooms = WatchingRooms.TestCase
TestWatchingRooms.settings = settings(
    max_examples=2 * settings().max_examples, stateful_step_count=40, deadline=None
)

Method = Callable[..., Any]


@pytest.mark.parametrize(
    ("method", "plant"),
    [
        ("request_abandoned", lambda _: lambda self, id: self._requested.pop(id, None) and None),  # no undo
        ("batches", lambda _: lambda _: iter(())),  # nothing is restored
        (None, None),
    ],
)
def test_a_planted_fault_is_noticed(
    monkeypatch: pytest.MonkeyPatch, method: str | None, plant: Callable[[Method], Method] | None
) -> None:
    """By one story that has what these faults need: chance takes long to find the second."""
    if method and plant:
        monkeypatch.setattr(WatchedRooms, method, plant(getattr(WatchedRooms, method)))
    with pytest.raises(AssertionError) if method else contextlib.nullcontext():
        model = WatchingRooms()
        model.program_watches([*ROOMS[:2]], 5.0)
        model.server_reads(1, busy=False, cut=False)
        model.network_delivers(1)
        model.connection_moves(1)
        model.member_comes_or_goes(ROOMS[0], UIDS[0])
        model.program_watches([*ROOMS[2:]], 5.0)
        model.program_cancels()
        model.teardown()
        model.the_program_was_told_what_the_client_knows()
