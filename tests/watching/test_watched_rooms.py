"""Rooms that sessions watch and query, from the request to the packet, in virtual time."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from presence.common.errors import StoreError, StoreUnavailable
from presence.core.authenticator import NamePatterns, RoomClaim
from presence.core.quiet_sessions import QuietSessions
from presence.core.registry import Session
from presence.core.service_requests import (
    RoomQueryRequest,
    RoomUnwatchRequest,
    RoomWatchRequest,
    UnwatchRequest,
    WatchRequest,
)
from presence.core.visibility import Visibility
from presence.protocol import WATCHED_ROOMS_MAX, Code, Kind, Packet
from presence.protocol.prepacked import pack_room_row
from presence.protocol.rows import RoomRow
from presence.watching import room_pushes, room_watch_service
from presence.watching.room_turns import LARGE_ROOM, REREAD_S, REREADS_PER_S, RETRY_S
from presence.watching.room_views import RoomOccupancy
from presence.watching.room_watch_service import MAX_ROOMS_PER_READ, REQUEST_TIMEOUT_S, RoomSource
from presence.watching.watch_service import OWN_WATCHES
from tests.auth.gates import WordAuthenticator
from tests.watching.fakes import Line, session
from tests.watching.test_watch_service import Node, running

SOON_S = 0.3
PLENTY_BYTES = 10**9


class Rooms:
    """The rooms in Redis; names of members by room."""

    def __init__(self) -> None:
        self.of: dict[str, set[str]] = {}
        self.reads: list[list[str]] = []
        self.failure: Exception | None = None
        self.broken: set[str] = set()  # rooms whose reads raise what no read should

    def read(
        self, rooms: Sequence[str], most_members: int
    ) -> Mapping[str, RoomOccupancy | StoreUnavailable | StoreError]:
        self.reads.append([*rooms])
        if self.failure:
            raise self.failure
        if not self.broken.isdisjoint(rooms):
            raise LookupError("a mistake")
        occupancies = {}
        for room in rooms:
            members = frozenset(self.of.get(room, ()))
            occupancies[room] = RoomOccupancy(
                len(members), members if 0 < most_members >= len(members) else None
            )
        return occupancies


class Hall:
    """A node whose clients watch rooms.

    Args:
        most_members: that are shown.
        mode: the setting `rooms`.
    """

    def __init__(
        self, most_members: int = 200, mode: str = "open", visibility: Visibility | None = None
    ) -> None:
        self.rooms = Rooms()
        self.quiet = QuietSessions()
        self.claims: dict[Session, RoomClaim] = {}
        source = RoomSource(self.rooms, most_members, mode, self.claims) if mode != "none" else None
        self.node = Node(visibility, rooms=source, quiet=self.quiet)
        self.watching = self.node.watching
        self.watching._quota.limit_bytes = PLENTY_BYTES

    async def ask(self, watcher: Session, line: Line, *rooms: str, is_query: bool = False) -> Packet:
        """Watch or query rooms; return the answer."""
        request = RoomQueryRequest(1, [*rooms]) if is_query else RoomWatchRequest(1, [*rooms])
        self.watching.take(watcher, request)
        await trio.sleep(SOON_S)
        (answer,) = line.packets()
        assert answer.id == 1
        return answer

    async def watcher(self, *rooms: str, uid: str = "watcher") -> tuple[Session, Line]:
        """Return a session that watches rooms."""
        watcher, line = session(uid)
        answer = await self.ask(watcher, line, *rooms)
        assert answer.kind == Kind.OK
        return watcher, line

    def put(self, room: str, *members: str) -> None:
        """Let a room have these members, and hint at it."""
        self.rooms.of[room] = {*members}
        self.watching.rooms_changed([room])

    async def put_and_wait(self, room: str, *members: str) -> None:
        self.put(room, *members)
        await trio.sleep(SOON_S)

    def figure(self, name: str) -> int:
        return int(self.watching.report()["rooms"][name])


@asynccontextmanager
async def hall(*args: Any, **options: Any) -> AsyncIterator[Hall]:
    hall = Hall(*args, **options)
    async with running(hall.node):
        yield hall


def pushed(line: Line) -> list[list[Any]]:
    """Return the rows that were pushed to a client."""
    packets = line.packets()
    assert {packet.kind for packet in packets} <= {Kind.ROOMS}
    return [row for packet in packets for row in packet.payload["rooms"]]


def users(count: int, prefix: str = "u") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


# Answers


async def test_a_watch_is_answered_with_the_rooms_and_changes_follow(autojump_clock: MockClock) -> None:
    async with hall() as at:
        at.rooms.of["lobby"] = {"bob", "ann"}
        watcher, line = session()
        answer = await at.ask(watcher, line, "lobby", "empty", "lobby")
        assert answer.payload == {"rooms": [["lobby", 2, ["ann", "bob"]], ["empty", 0, []]]}
        await at.put_and_wait("lobby", "bob", "cy")
        await at.put_and_wait("empty", "dee")
        await at.put_and_wait("other", "eve")
        assert pushed(line) == [["lobby", 2, ["cy"], ["ann"]], ["empty", 1, ["dee"], []]]
        assert at.figure("rooms") == 2


async def test_a_query_is_answered_once(autojump_clock: MockClock) -> None:
    async with hall() as at:
        at.rooms.of["lobby"] = {"ann"}
        asker, line = session()
        answer = await at.ask(asker, line, "lobby", is_query=True)
        assert answer.payload == {"rooms": [["lobby", 1, ["ann"]]]}
        await at.put_and_wait("lobby", "ann", "bob")
        assert pushed(line) == []
        assert (at.figure("rooms"), at.figure("sessions")) == (0, 0)


async def test_without_members_clients_get_counts(autojump_clock: MockClock) -> None:
    async with hall(0) as at:
        at.rooms.of["lobby"] = {"ann"}
        watcher, line = session()
        assert (await at.ask(watcher, line, "lobby")).payload == {"rooms": [["lobby", 1]]}
        await at.put_and_wait("lobby", "bob")
        assert pushed(line) == [], "the count is the same"
        await at.put_and_wait("lobby", "bob", "cy")
        assert pushed(line) == [["lobby", 2]]


async def test_a_room_over_the_limit_has_a_count_and_its_members_again_when_it_shrinks(
    autojump_clock: MockClock,
) -> None:
    async with hall(2) as at:
        _, line = await at.watcher("lobby")
        for members in (["ann", "bob"], ["ann", "bob", "cy"], ["ann", "bob", "cy", "dee"], ["ann", "dee"]):
            await at.put_and_wait("lobby", *members)
        assert pushed(line) == [
            ["lobby", 2, ["ann", "bob"], []],
            ["lobby", 3],
            ["lobby", 4],
            ["lobby", 2, ["ann", "dee"]],
        ]


async def test_a_server_without_rooms_answers_without_them(autojump_clock: MockClock) -> None:
    async with hall(mode="none") as at:
        watcher, line = session()
        for is_query in (False, True):
            assert (await at.ask(watcher, line, "lobby", is_query=is_query)).payload == {}
        at.watching.take(watcher, RoomUnwatchRequest(2, ["lobby"]))
        at.watching.rooms_changed(["lobby"])
        assert [each.kind for each in line.packets()] == [Kind.OK]
        assert at.rooms.reads == []


async def test_no_rooms_are_answered_immediately(autojump_clock: MockClock) -> None:
    async with hall() as at:
        watcher, line = session()
        assert (await at.ask(watcher, line)).payload == {"rooms": []}


async def test_requests_are_read_together_and_each_room_once(autojump_clock: MockClock) -> None:
    async with hall() as at:
        await trio.sleep(SOON_S)
        lines = []
        for number in range(300):
            watcher, line = session(f"user{number}")
            lines.append(line)
            at.watching.take(watcher, RoomWatchRequest(1, ["lobby", f"room{number % 3}"]))
        await trio.sleep(SOON_S)
        assert [len(each) for each in at.rooms.reads] == [4]
        assert all(line.packets()[0].kind == Kind.OK for line in lines)


async def test_many_rooms_are_read_in_parts_while_hinted_ones_have_their_turn(
    autojump_clock: MockClock,
) -> None:
    async with hall() as at:
        _, line = await at.watcher("lobby")
        at.rooms.reads.clear()
        for number in range(10):
            watcher, _ = session(f"user{number}")
            at.watching.take(watcher, RoomWatchRequest(1, users(60, f"room{number}-")))
        at.put("lobby", "ann")
        await trio.sleep(SOON_S)
        assert max(map(len, at.rooms.reads)) <= MAX_ROOMS_PER_READ
        assert "lobby" in at.rooms.reads[0]
        assert pushed(line) == [["lobby", 1, ["ann"], []]]


async def test_an_answer_that_is_too_long_is_completed_by_pushes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room_watch_service, "MAX_ANSWER_BYTES", 1_000)
    monkeypatch.setattr(room_pushes, "MAX_PACKET_BYTES", 1_000)
    monkeypatch.setattr(room_pushes, "MAX_ROWS_PER_SESSION", 2)
    async with hall() as at:
        names = users(9, "room")
        for name in names:
            at.rooms.of[name] = {*users(100)}
        watcher, line = session()
        at.watching.take(watcher, RoomWatchRequest(1, names))
        await trio.sleep(SOON_S)
        answer, *pushes = line.packets()
        rows = answer.payload["rooms"]
        assert [row[:2] for row in rows] == [[name, 100] for name in names]
        complete = {row[0] for row in rows if len(row) == 3}
        later = [row for packet in pushes for row in packet.payload["rooms"]]
        assert 0 < len(complete) < 9
        assert {row[0] for row in later} == {*names} - complete
        assert all(len(row[2]) == 100 for row in later)
        assert len(pushes) > 2
        await at.put_and_wait("room0", *users(99))
        await at.put_and_wait("room8", *users(99))
        assert pushed(line) == [["room0", 99, [], ["u99"]], ["room8", 99, [], ["u99"]]]


async def test_a_query_that_does_not_fit_is_refused(autojump_clock: MockClock) -> None:
    async with hall() as at:
        names = users(64, "room")
        for name in names:
            at.rooms.of[name] = {f"{number:0>100}" for number in range(200)}
        asker, line = session()
        answer = await at.ask(asker, line, *names, is_query=True)
        assert answer.payload["code"] == Code.TOO_LARGE
        await trio.sleep(10)
        assert (await at.ask(asker, line, *names[:3], is_query=True)).kind == Kind.OK


# Refusals and bounds


async def test_a_connection_watches_64_rooms(autojump_clock: MockClock) -> None:
    async with hall(0) as at:
        names = users(WATCHED_ROOMS_MAX, "room")
        watcher, line = await at.watcher(*names[:-2])
        at.watching.take(watcher, RoomWatchRequest(2, names[-2:-1]))
        at.watching.take(watcher, RoomWatchRequest(3, [*names[:3], names[-1], "more"]))
        (refusal,) = line.packets()
        assert (refusal.id, refusal.payload["code"]) == (3, Code.TOO_LARGE)
        at.watching.take(watcher, RoomWatchRequest(4, [*names[:3], names[-1]]))
        await trio.sleep(SOON_S)
        assert [(each.id, each.kind) for each in line.packets()] == [(2, Kind.OK), (4, Kind.OK)]
        assert at.figure("watches") == WATCHED_ROOMS_MAX


async def test_rooms_that_may_not_be_watched_are_refused_as_a_whole(autojump_clock: MockClock) -> None:
    async with hall(mode="claimed") as at:
        watcher, line = session()
        answer = await at.ask(watcher, line, "lobby")
        assert answer.payload["code"] == Code.NOT_ALLOWED
        at.claims[watcher] = RoomClaim(
            "home", NamePatterns(prefixes=("game:",)), NamePatterns(frozenset({"lobby"}))
        )
        answer = await at.ask(watcher, line, "lobby", "home", "game:1")
        assert answer.payload == {"rooms": [["lobby", 0], ["home", 0], ["game:1", 0]]}
        for is_query in (False, True):
            answer = await at.ask(watcher, line, "lobby", "street", is_query=is_query)
            assert answer.payload["code"] == Code.NOT_ALLOWED
        assert at.figure("watches") == 3


@pytest.mark.parametrize("failure", [StoreUnavailable("away"), StoreError("loading"), LookupError("odd")])
async def test_what_cannot_be_read_is_refused_and_not_watched(
    autojump_clock: MockClock, failure: Exception
) -> None:
    async with hall() as at:
        at.rooms.failure = failure
        watcher, line = session()
        for is_query in (False, True):
            answer = await at.ask(watcher, line, "lobby", is_query=is_query)
            assert answer.payload["code"] == Code.BUSY
            assert answer.payload["retry_after"] > 0
        assert (at.figure("rooms"), at.figure("failures")) == (0, 2)


async def test_a_room_whose_read_breaks_spoils_no_other(autojump_clock: MockClock) -> None:
    async with hall() as at:
        at.rooms.broken = {"odd"}
        answers = []
        for room in ("odd", "lobby"):
            watcher, line = session(room)
            at.watching.take(watcher, RoomWatchRequest(1, [room]))
            answers.append(line)
        await trio.sleep(SOON_S)
        assert [line.packets()[0].kind for line in answers] == [Kind.ERROR, Kind.OK]
        assert at.node.faults.counts == {"watch": 1}


async def test_a_read_that_hangs_is_refused_in_time(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hall() as at:

        async def hang(_: object) -> None:
            await trio.sleep(60)
            raise StoreUnavailable("away")

        monkeypatch.setattr(at.watching._rooms._redis, "call", hang)
        watcher, line = session()
        at.watching.take(watcher, RoomWatchRequest(1, ["lobby"]))
        await trio.sleep(REQUEST_TIMEOUT_S + 0.1)
        (refusal,) = line.packets()
        assert refusal.payload["code"] == Code.BUSY
        await trio.sleep(120)
        assert (line.packets(), at.figure("rooms")) == ([], 0)


async def test_requests_that_wait_are_bounded(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room_watch_service, "MAX_PENDING_ROOMS", 5)
    async with hall() as at:
        lines = []
        for number in range(3):
            watcher, line = session(f"user{number}")
            lines.append(line)
            at.watching.take(watcher, RoomQueryRequest(1, ["a", "b"]))
        await trio.sleep(SOON_S)
        codes = [line.packets()[0].payload.get("code") for line in lines]
        assert codes == [None, None, Code.BUSY]


async def test_requests_about_rooms_cost_their_user_s_share(autojump_clock: MockClock) -> None:
    async with hall() as at:
        watcher, line = session()
        codes = []
        for id in range(9):
            at.watching.take(watcher, RoomQueryRequest(id, users(64)))
            await trio.sleep(SOON_S)
            codes += [packet.payload.get("code") for packet in line.packets()]
        assert codes[:2] == [None, None]
        assert Code.RATE_LIMITED in codes


async def test_without_memory_only_a_few_rooms_are_watched_and_members_are_not_kept(
    autojump_clock: MockClock,
) -> None:
    async with hall() as at:
        at.rooms.of = {"lobby": {"ann"}, "game": {"bob"}}
        watcher, line = await at.watcher("lobby")
        at.watching._quota.limit_bytes = 0
        answer = await at.ask(watcher, line, "game")
        assert answer.payload == {"rooms": [["game", 1]]}
        await at.put_and_wait("lobby", "ann", "cy")
        await at.put_and_wait("game", "bob", "cy")
        assert pushed(line) == [["lobby", 2, ["cy"], []], ["game", 2]]
        answer = await at.ask(watcher, line, *users(OWN_WATCHES - 1, "room"))
        assert answer.payload["code"] == Code.BUSY
        assert answer.payload["retry_after"] > 0
        assert (at.figure("full"), at.figure("unlisted")) == (1, 2)
        at.watching._quota.limit_bytes = PLENTY_BYTES
        await at.put_and_wait("game", "bob")
        assert pushed(line) == [["game", 1, ["bob"]]]


async def test_watches_of_rooms_count_for_those_of_users_and_all_is_given_back(
    autojump_clock: MockClock,
) -> None:
    async with hall() as at:
        empty = at.watching._memory_bytes()
        at.rooms.of["lobby"] = {*users(100)}
        watchers = [await at.watcher("lobby", f"room{number}", uid=f"user{number}") for number in range(5)]
        assert at.watching._memory_bytes() > empty + 5 * room_watch_service.ROOM_BYTES
        for watcher, _ in watchers:
            at.watching.left(watcher)
        assert at.watching._memory_bytes() == empty
        assert at.figure("watches") == at.figure("sessions") == at.figure("rooms") == 0


# The end of watches


async def test_an_unwatched_room_is_pushed_no_more(autojump_clock: MockClock) -> None:
    async with hall() as at:
        watcher, line = await at.watcher("a", "b", "c")
        at.watching.take(watcher, RoomUnwatchRequest(2, ["a", "none"]))
        assert [packet.payload for packet in line.packets()] == [{}]
        for room in "abc":
            await at.put_and_wait(room, "ann")
        assert [row[0] for row in pushed(line)] == ["b", "c"]
        at.watching.take(watcher, UnwatchRequest(3, ["b"]))
        at.watching.take(watcher, RoomUnwatchRequest(4, []))
        assert at.figure("watches") == 2
        at.watching.take(watcher, UnwatchRequest(5, None))
        assert at.figure("watches") == at.figure("rooms") == 0


async def test_an_unwatch_of_rooms_ends_no_watch_of_a_user(autojump_clock: MockClock) -> None:
    async with hall() as at:
        watcher, _ = await at.watcher("lobby")
        at.watching.take(watcher, WatchRequest(2, ["ann"]))
        await trio.sleep(SOON_S)
        at.watching.take(watcher, RoomUnwatchRequest(3, ["lobby"]))
        assert at.watching.watches(watcher) == 1


async def test_a_room_unwatched_before_the_answer_is_answered_and_not_watched(
    autojump_clock: MockClock,
) -> None:
    async with hall() as at:
        watcher, line = session()
        at.watching.take(watcher, RoomWatchRequest(1, ["a", "b"]))
        at.watching.take(watcher, RoomUnwatchRequest(2, ["a"]))
        await trio.sleep(SOON_S)
        unwatched, answer = line.packets()
        assert (unwatched.id, [row[0] for row in answer.payload["rooms"]]) == (2, ["a", "b"])
        assert at.watching._rooms.watched_by(watcher) == ["b"]
        assert at.figure("rooms") == 1


async def test_a_client_that_left_before_the_answer_watches_nothing(autojump_clock: MockClock) -> None:
    async with hall() as at:
        watcher, line = session()
        at.watching.take(watcher, RoomWatchRequest(1, ["lobby"]))
        watcher.transport = None
        at.watching.left(watcher)
        assert at.figure("rooms") == 0
        await trio.sleep(SOON_S)
        assert (line.packets(), at.figure("rooms"), at.figure("sessions")) == ([], 0, 0)


# Hints


async def test_a_change_during_the_first_read_is_not_missed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hall() as at:
        read = at.rooms.read

        def read_and_change(rooms: Sequence[str], most_members: int) -> Any:
            found = read(rooms, most_members)
            if len(at.rooms.reads) == 1:
                at.put("lobby", "ann")
            return found

        monkeypatch.setattr(at.rooms, "read", read_and_change)
        watcher, line = session()
        at.watching.take(watcher, RoomWatchRequest(1, ["lobby"]))
        await trio.sleep(SOON_S)
        answer, push = line.packets()
        assert answer.payload["rooms"] == [["lobby", 0, []]]
        assert push.payload["rooms"] == [["lobby", 1, ["ann"], []]]


async def test_a_hint_without_a_change_pushes_nothing(autojump_clock: MockClock) -> None:
    async with hall() as at:
        _, line = await at.watcher("lobby")
        at.watching.rooms_changed(["lobby", "lobby", "", "\ufffd"])
        await trio.sleep(SOON_S)
        assert (pushed(line), len(at.rooms.reads)) == ([], 2)


async def test_changes_of_a_small_room_are_gathered_shortly(autojump_clock: MockClock) -> None:
    async with hall() as at:
        _, line = await at.watcher("lobby")
        began = trio.current_time()
        for number in range(100):
            at.put("lobby", f"u{number}")
            await trio.sleep(0.01)
        await trio.sleep(SOON_S)
        rows = pushed(line)
        assert 8 <= len(rows) <= 12
        assert rows[0] == ["lobby", 1, ["u0"], []]
        assert rows[-1][2] == ["u99"]
        assert trio.current_time() - began < 2


async def test_a_large_room_is_pushed_once_a_second(autojump_clock: MockClock) -> None:
    async with hall() as at:
        _, line = await at.watcher("lobby")
        await at.put_and_wait("lobby", *users(LARGE_ROOM + 1))
        pushed(line)
        await trio.sleep(2)
        before = len(at.rooms.reads)
        for number in range(500):
            at.put("lobby", *users(LARGE_ROOM + 1), f"v{number}")
            await trio.sleep(0.01)
            if number % 10 == 0:  # answers do not hurry pushes
                asker, _ = session(f"asker{number}")
                at.watching.take(asker, RoomQueryRequest(1, ["lobby"]))
        await trio.sleep(1.5)
        rows = pushed(line)
        assert 5 <= len(rows) <= 7
        assert rows[-1][2] == ["v499"]
        assert len(at.rooms.reads) - before <= 50 + 7


async def test_a_room_that_has_grown_large_waits_from_then_on(autojump_clock: MockClock) -> None:
    async with hall() as at:
        _, line = await at.watcher("lobby")
        at.put("lobby", *users(LARGE_ROOM + 1))
        await trio.sleep(0.005)
        at.put("lobby", *users(LARGE_ROOM + 2))
        await trio.sleep(0.9)
        assert [row[1] for row in pushed(line)] == [LARGE_ROOM + 1]
        await trio.sleep(0.3)
        assert [row[1] for row in pushed(line)] == [LARGE_ROOM + 2]


async def test_without_hints_rooms_are_read_now_and_then(autojump_clock: MockClock) -> None:
    async with hall() as at:
        _, line = await at.watcher("lobby")
        at.rooms.of["lobby"] = {"ann"}
        await trio.sleep(REREAD_S - 2)
        assert pushed(line) == []
        await trio.sleep(4)
        assert pushed(line) == [["lobby", 1, ["ann"], []]]
        await trio.sleep(3 * REREAD_S)
        assert 4 <= at.figure("rereads") <= 5


async def test_after_a_loss_of_the_channel_all_rooms_are_read_at_a_pace(autojump_clock: MockClock) -> None:
    async with hall(0) as at:
        lines = []
        for number in range(40):
            names = users(50, f"room{number}-")
            lines.append((await at.watcher(*names, uid=f"user{number}"))[1])
        at.rooms.of = {f"room{number}-49": {"ann"} for number in range(40)}
        before = at.figure("rereads")
        at.watching.rooms_changed(None)
        await trio.sleep(1.0)
        assert REREADS_PER_S / 2 < at.figure("rereads") - before <= REREADS_PER_S
        await trio.sleep(2 * 2000 / REREADS_PER_S)
        assert at.figure("rereads") - before == 2000
        assert [pushed(line) for line in lines] == [[[f"room{number}-49", 1]] for number in range(40)]


async def test_a_room_that_could_not_be_read_is_read_again(autojump_clock: MockClock) -> None:
    async with hall() as at:
        _, line = await at.watcher("lobby")
        at.rooms.failure = StoreUnavailable("away")
        await at.put_and_wait("lobby", "ann")
        at.rooms.failure = None
        await trio.sleep(2 * RETRY_S)
        assert pushed(line) == [["lobby", 1, ["ann"], []]]


# Slow and quiet sessions


async def test_a_slow_client_gets_the_present_state_when_it_can_take_it(autojump_clock: MockClock) -> None:
    async with hall() as at:
        at.rooms.of["lobby"] = {"ann"}
        watcher, line = await at.watcher("lobby", "game")
        line.slow = True
        for members in (["bob"], ["cy"], ["cy", "dee"]):
            await at.put_and_wait("lobby", *members)
        assert line.offers == 1, "nothing more is offered"
        assert at.figure("behind") == 1
        line.slow = False
        at.watching.all_sent(watcher)
        await trio.sleep(SOON_S)
        assert pushed(line) == [["lobby", 2, ["cy", "dee"]]]
        await at.put_and_wait("lobby", "dee")
        assert pushed(line) == [["lobby", 1, [], ["cy"]]]
        assert (at.figure("behind"), at.figure("put_off")) == (0, 1)


async def test_a_client_that_stays_slow_is_behind_again(autojump_clock: MockClock) -> None:
    async with hall() as at:
        watcher, line = await at.watcher("lobby")
        line.slow = True
        await at.put_and_wait("lobby", "ann")
        at.watching.all_sent(watcher)
        await trio.sleep(SOON_S)
        assert (line.packets(), at.figure("behind")) == ([], 1)
        line.slow = False
        at.watching.all_sent(watcher)
        await trio.sleep(SOON_S)
        assert pushed(line) == [["lobby", 1, ["ann"]]]


async def test_a_slow_client_holds_up_no_other(autojump_clock: MockClock) -> None:
    async with hall() as at:
        _, slow = await at.watcher("lobby", uid="slow")
        _, fast = await at.watcher("lobby", uid="fast")
        slow.slow = True
        for number in range(3):
            await at.put_and_wait("lobby", f"u{number}")
        assert len(pushed(fast)) == 3


async def test_a_quiet_client_gets_the_present_state_with_its_next_packet(autojump_clock: MockClock) -> None:
    async with hall() as at:
        watcher, line = await at.watcher("lobby")
        at.quiet.set(watcher, is_quiet=True)
        for members in (["ann"], ["ann", "bob"]):
            await at.put_and_wait("lobby", *members)
        assert line.packets() == []
        assert watcher in at.quiet.holding
        at.watching.release_held(watcher)
        await trio.sleep(SOON_S)
        assert pushed(line) == [["lobby", 2, ["ann", "bob"]]]
        assert watcher not in at.quiet.holding


async def test_an_unwatch_of_users_leaves_what_is_held_of_rooms(autojump_clock: MockClock) -> None:
    async with hall() as at:
        watcher, line = await at.watcher("lobby")
        at.watching.take(watcher, WatchRequest(2, ["ann"]))
        await trio.sleep(SOON_S)
        line.packets()
        at.quiet.set(watcher, is_quiet=True)
        at.put("lobby", "ann")
        at.node.shard.write("ann", "online")
        await trio.sleep(SOON_S)
        at.watching.take(watcher, UnwatchRequest(3, ["ann"]))
        assert watcher in at.quiet.holding
        assert at.figure("held") == 1


# Who is shown


def seeing(*uids: str) -> NamePatterns:
    return NamePatterns(frozenset(uids))


async def test_a_client_is_shown_members_whom_it_may_see(autojump_clock: MockClock) -> None:
    visibility = Visibility(WordAuthenticator(), trio.current_time)
    async with hall(visibility=visibility) as at:
        at.rooms.of["lobby"] = {"ann", "bob", "watcher"}
        watcher, line = session()
        visibility.set_sight(watcher, seeing("ann", "cy"))
        answer = await at.ask(watcher, line, "lobby")
        assert answer.payload == {"rooms": [["lobby", 3, ["ann", "watcher"]]]}
        blind, other = await at.watcher("lobby", uid="blind")
        await at.put_and_wait("lobby", "cy", "dee", "ed", "watcher")
        assert pushed(line) == [["lobby", 4, ["cy"], ["ann"]]]
        assert pushed(other) == [["lobby", 4, [], []]]
        visibility.set_sight(watcher, seeing("dee"))
        at.watching.sight_changed(watcher)
        await trio.sleep(SOON_S)
        assert pushed(line) == [["lobby", 4, ["dee", "watcher"]]]
        visibility.set_sight(watcher, seeing("dee", "ed"))  # as the engine does with a pass
        at.watching.take(watcher, WatchRequest(2, [], visibility_pass="a pass"))
        await trio.sleep(SOON_S)
        answer, push = sorted(line.packets(), key=lambda packet: packet.kind)  # both were due
        assert (answer.id, push.payload["rooms"]) == (2, [["lobby", 4, ["dee", "ed", "watcher"]]])
        assert (blind in at.watching.askers, pushed(other)) == (True, [])


async def test_a_new_token_ends_watches_and_changes_what_is_shown(autojump_clock: MockClock) -> None:
    async with hall(mode="claimed") as at:
        at.rooms.of = {"lobby": {"ann"}, "game": {"bob"}}
        watcher, line = session()
        at.claims[watcher] = RoomClaim(watch=NamePatterns(frozenset({"lobby", "game"})))
        await at.ask(watcher, line, "lobby", "game")
        at.claims[watcher] = RoomClaim(watch=NamePatterns(frozenset({"lobby"})), members=True)
        at.watching.sight_changed(watcher)
        await trio.sleep(SOON_S)
        assert pushed(line) == [["game", None], ["lobby", 1, ["ann"]]]
        await at.put_and_wait("game", "cy")
        await at.put_and_wait("lobby", "cy")
        assert pushed(line) == [["lobby", 1, ["cy"], ["ann"]]]
        at.watching.sight_changed(watcher)
        await trio.sleep(SOON_S)
        assert pushed(line) == [], "nothing is new"
        at.claims[watcher] = RoomClaim(watch=NamePatterns(frozenset({"lobby"})))
        at.watching.sight_changed(watcher)
        await trio.sleep(SOON_S)
        assert pushed(line) == [["lobby", 1]]
        del at.claims[watcher]
        at.watching.sight_changed(watcher)
        assert pushed(line) == [["lobby", None]]
        assert at.figure("rooms") == at.figure("sessions") == 0


async def test_a_room_taken_away_before_the_answer_refuses_the_watch(autojump_clock: MockClock) -> None:
    async with hall(mode="claimed") as at:
        watcher, line = session()
        at.claims[watcher] = RoomClaim(watch=NamePatterns(prefixes=("",)))
        at.watching.take(watcher, RoomWatchRequest(1, ["lobby", "game"]))
        at.claims[watcher] = RoomClaim("lobby")
        at.watching.sight_changed(watcher)
        await trio.sleep(SOON_S)
        (refusal,) = line.packets()
        assert refusal.payload["code"] == Code.NOT_ALLOWED
        assert at.figure("rooms") == 0


async def test_a_quiet_client_learns_immediately_what_it_may_not_watch(autojump_clock: MockClock) -> None:
    async with hall(mode="claimed") as at:
        watcher, line = session()
        at.claims[watcher] = RoomClaim("lobby game")
        await at.ask(watcher, line, "lobby", "game")
        at.quiet.set(watcher, is_quiet=True)
        at.claims[watcher] = RoomClaim("game", members=True)
        at.watching.sight_changed(watcher)
        await trio.sleep(SOON_S)
        assert pushed(line) == [["lobby", None]]
        at.watching.release_held(watcher)
        await trio.sleep(SOON_S)
        assert pushed(line) == [["game", 0, []]]


# Many


async def test_what_many_are_shown_is_encoded_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hall() as at:
        at.rooms.of["lobby"] = {*users(50)}
        lines = []
        for number in range(600):
            watcher, line = session(f"user{number}")
            lines.append(line)
            at.watching.take(watcher, RoomWatchRequest(1, ["lobby"]))
        await trio.sleep(SOON_S)
        for line in lines:
            line.packets()
        packed: list[RoomRow] = []

        def pack(row: RoomRow) -> bytes:
            packed.append(row)
            return pack_room_row(row)

        monkeypatch.setattr(room_pushes, "pack_room_row", pack)
        await at.put_and_wait("lobby", *users(49))
        assert packed == [["lobby", 49, [], ["u49"]]]
        assert all(pushed(line) == packed for line in lines)


async def test_rooms_that_change_together_come_in_one_packet(autojump_clock: MockClock) -> None:
    async with hall() as at:
        names = users(20, "room")
        _, line = await at.watcher(*names)
        for name in names:
            at.put(name, "ann")
        await trio.sleep(SOON_S)
        (packet,) = line.packets()
        assert [row[0] for row in packet.payload["rooms"]] == names


async def test_a_session_that_watches_while_a_change_is_pushed_is_not_sent_it_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room_pushes, "MAX_PACKETS_PER_SLICE", 1)
    async with hall() as at:
        watchers = [await at.watcher("lobby", uid=f"user{number}") for number in range(5)]
        at.put("lobby", "ann")
        late, late_line = session("late")
        at.watching.take(late, RoomWatchRequest(1, ["lobby"]))
        at.watching.take(watchers[0][0], RoomWatchRequest(2, ["lobby"]))
        await trio.sleep(SOON_S)
        (answer,) = late_line.packets()
        assert answer.payload["rooms"] == [["lobby", 1, ["ann"]]]
        assert [packet.id for packet in watchers[0][1].packets()][-1] == 2
        await at.put_and_wait("lobby", "bob")
        for line in (late_line, watchers[0][1], watchers[4][1]):
            assert pushed(line)[-1] == ["lobby", 1, ["bob"], ["ann"]]
