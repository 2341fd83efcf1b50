"""Requests about rooms, from the request to the answer, in virtual time."""

import pytest
import trio
from trio.testing import MockClock

from presence.common.errors import StoreError, StoreUnavailable
from presence.core.authenticator import NamePatterns, RoomClaim
from presence.core.service_requests import (
    RoomQueryRequest,
    RoomUnwatchRequest,
    RoomWatchRequest,
    UnwatchRequest,
    WatchRequest,
)
from presence.core.visibility import Visibility
from presence.protocol import WATCHED_ROOMS_MAX, Code, Kind
from presence.watching import room_pushes, room_watch_service
from presence.watching.room_watch_service import MAX_ROOMS_PER_READ, REQUEST_TIMEOUT_S
from presence.watching.watch_service import OWN_WATCHES
from tests.auth.gates import WordAuthenticator
from tests.watching.fakes import session
from tests.watching.room_node import PLENTY_BYTES, SOON_S, pushed, room_node, users

# Answers


async def test_a_watch_is_answered_with_the_rooms_and_changes_follow(autojump_clock: MockClock) -> None:
    async with room_node() as at:
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
    async with room_node() as at:
        at.rooms.of["lobby"] = {"ann"}
        asker, line = session()
        answer = await at.ask(asker, line, "lobby", is_query=True)
        assert answer.payload == {"rooms": [["lobby", 1, ["ann"]]]}
        await at.put_and_wait("lobby", "ann", "bob")
        assert pushed(line) == []
        assert (at.figure("rooms"), at.figure("sessions")) == (0, 0)


async def test_without_members_clients_get_counts(autojump_clock: MockClock) -> None:
    async with room_node(0) as at:
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
    async with room_node(2) as at:
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
    async with room_node(mode="none") as at:
        watcher, line = session()
        for is_query in (False, True):
            assert (await at.ask(watcher, line, "lobby", is_query=is_query)).payload == {}
        at.watching.take(watcher, RoomUnwatchRequest(2, ["lobby"]))
        at.watching.rooms_changed(["lobby"])
        assert [each.kind for each in line.packets()] == [Kind.OK]
        assert at.rooms.reads == []


async def test_no_rooms_are_answered_immediately(autojump_clock: MockClock) -> None:
    async with room_node() as at:
        watcher, line = session()
        assert (await at.ask(watcher, line)).payload == {"rooms": []}


async def test_requests_are_read_together_and_each_room_once(autojump_clock: MockClock) -> None:
    async with room_node() as at:
        await trio.sleep(SOON_S)
        lines = []
        for number in range(300):
            watcher, line = session(f"user{number}")
            lines.append(line)
            at.watching.take(watcher, RoomWatchRequest(1, ["lobby", f"room{number % 3}"]))
        await trio.sleep(SOON_S)
        assert [len(each) for each in at.rooms.reads] == [4]
        assert all(line.packets()[0].kind == Kind.OK for line in lines)


async def test_many_rooms_are_read_in_parts_while_hinted_ones_are_read(
    autojump_clock: MockClock,
) -> None:
    async with room_node() as at:
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
    async with room_node() as at:
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
        assert {*answer.payload["later"]} == {*names} - complete
        later = [row for packet in pushes for row in packet.payload["rooms"]]
        assert 0 < len(complete) < 9
        assert {row[0] for row in later} == {*names} - complete
        assert all(len(row[2]) == 100 for row in later)
        assert len(pushes) > 2
        await at.put_and_wait("room0", *users(99))
        await at.put_and_wait("room8", *users(99))
        assert pushed(line) == [["room0", 99, [], ["u99"]], ["room8", 99, [], ["u99"]]]


async def test_a_query_that_does_not_fit_is_refused(autojump_clock: MockClock) -> None:
    async with room_node() as at:
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
    async with room_node(0) as at:
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
    async with room_node(mode="claimed") as at:
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
    async with room_node() as at:
        at.rooms.failure = failure
        watcher, line = session()
        for is_query in (False, True):
            answer = await at.ask(watcher, line, "lobby", is_query=is_query)
            assert answer.payload["code"] == Code.BUSY
            assert answer.payload["retry_after"] > 0
        assert (at.figure("rooms"), at.figure("failures")) == (0, 2)


async def test_a_room_whose_read_breaks_spoils_no_other(autojump_clock: MockClock) -> None:
    async with room_node() as at:
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
    async with room_node() as at:

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
    async with room_node() as at:
        lines = []
        for number in range(3):
            watcher, line = session(f"user{number}")
            lines.append(line)
            at.watching.take(watcher, RoomQueryRequest(1, ["a", "b"]))
        await trio.sleep(SOON_S)
        codes = [line.packets()[0].payload.get("code") for line in lines]
        assert codes == [None, None, Code.BUSY]


async def test_requests_about_rooms_cost_their_user_s_share(autojump_clock: MockClock) -> None:
    async with room_node() as at:
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
    async with room_node() as at:
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
    async with room_node() as at:
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
    async with room_node() as at:
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
    async with room_node() as at:
        watcher, _ = await at.watcher("lobby")
        at.watching.take(watcher, WatchRequest(2, ["ann"]))
        await trio.sleep(SOON_S)
        at.watching.take(watcher, RoomUnwatchRequest(3, ["lobby"]))
        assert at.watching.watches(watcher) == 1


async def test_a_room_unwatched_before_the_answer_is_answered_and_not_watched(
    autojump_clock: MockClock,
) -> None:
    async with room_node() as at:
        watcher, line = session()
        at.watching.take(watcher, RoomWatchRequest(1, ["a", "b"]))
        at.watching.take(watcher, RoomUnwatchRequest(2, ["a"]))
        await trio.sleep(SOON_S)
        unwatched, answer = line.packets()
        assert (unwatched.id, [row[0] for row in answer.payload["rooms"]]) == (2, ["a", "b"])
        assert at.watching._rooms.watched_by(watcher) == ["b"]
        assert at.figure("rooms") == 1


async def test_a_client_that_left_before_the_answer_watches_nothing(autojump_clock: MockClock) -> None:
    async with room_node() as at:
        watcher, line = session()
        at.watching.take(watcher, RoomWatchRequest(1, ["lobby"]))
        watcher.transport = None
        at.watching.left(watcher)
        assert at.figure("rooms") == 0
        await trio.sleep(SOON_S)
        assert (line.packets(), at.figure("rooms"), at.figure("sessions")) == ([], 0, 0)


# Who is shown


def seeing(*uids: str) -> NamePatterns:
    return NamePatterns(frozenset(uids))


async def test_a_client_is_shown_members_whom_it_may_see(autojump_clock: MockClock) -> None:
    visibility = Visibility(WordAuthenticator(), trio.current_time)
    async with room_node(visibility=visibility) as at:
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
    async with room_node(mode="claimed") as at:
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
    async with room_node(mode="claimed") as at:
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
    async with room_node(mode="claimed") as at:
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


# What operators learn


async def test_an_operator_learns_what_a_client_was_sent_of_each_room(autojump_clock: MockClock) -> None:
    async with room_node() as at:
        at.put("lobby", "ann")
        watcher, line = await at.watcher("lobby", "hall")

        def sent() -> dict[str, tuple[object, ...]]:
            names = "sent", "sent_version", "count", "version"
            rows = at.watching.rooms_sent(watcher, 64)
            return {str(row["room"]): tuple(row[name] for name in names) for row in rows}

        assert sent() == {"lobby": (1, 1, 1, 1), "hall": (0, 1, 0, 1)}
        assert at.watching.watched_rooms(watcher) == 2
        await at.put_and_wait("lobby", "ann", "bob")
        assert sent()["lobby"] == (2, 2, 2, 2)
        line.slow = True
        await at.put_and_wait("lobby", "ann", "bob", "cy")
        await at.put_and_wait("lobby")
        assert sent()["lobby"] == (None, 2, 0, 4), "a version that nobody else has"
        assert at.watching.is_behind_on_rooms(watcher)
        assert [row["room"] for row in at.watching.rooms_sent(watcher, 1)] == ["lobby"]
        assert at.watching.rooms_sent(watcher, 1)[0]["read_age_s"] == pytest.approx(SOON_S, abs=0.01)
        at.watching.left(watcher)
        assert sent() == {}
