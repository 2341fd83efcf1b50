"""Rosters that sessions follow: the first answer, changes, bounds, and what is lost; in virtual time."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from presence.common.errors import StoreUnavailable
from presence.core.authenticator import NamePatterns
from presence.core.quiet_sessions import QuietSessions
from presence.core.registry import ClientFeatures, Session
from presence.core.service_requests import UnwatchRequest, WatchRequest
from presence.core.visibility import Visibility
from presence.protocol import UIDS_MAX, Code, Kind, Packet
from presence.watching import roster_changes, rosters
from presence.watching.roster_changes import MAX_ROSTER_CHANGES_PER_TURN
from presence.watching.rosters import MAX_ROSTERS_PER_READ, MAX_UNCOMPARED, REREADS_PER_S, RETRY_S
from presence.watching.watch_service import WATCH_TIMEOUT_S
from tests.auth.gates import WordAuthenticator
from tests.watching.fakes import Line, session
from tests.watching.test_watch_service import Node, names, running

SOON_S = 0.2


class Lists:
    """The rosters in Redis."""

    def __init__(self) -> None:
        self.of: dict[str, Sequence[str] | None] = {}
        self.reads: list[list[str]] = []
        self.is_up = True

    def read(self, uids: Sequence[str]) -> Mapping[str, Sequence[str] | None]:
        self.reads.append([*uids])
        if not self.is_up:
            raise StoreUnavailable("away")
        return {uid: self.of.get(uid) for uid in uids}


class Desk:
    """A node whose clients follow rosters."""

    def __init__(self, visibility: Visibility | None = None) -> None:
        self.lists = Lists()
        self.quiet = QuietSessions()
        self.claims: dict[Session, str] = {}
        self.node = Node(visibility, rosters=self.lists, quiet=self.quiet, claimed_rosters=self.claims)
        self.watching = self.node.watching

    async def follow(self, watcher: Session, line: Line, *named: str, id: int = 1) -> Packet:
        """Follow the roster; return the answer."""
        self.watching.take(watcher, WatchRequest(id, [*named], roster=True))
        await trio.sleep(SOON_S)
        (answer,) = line.packets()
        assert answer.id == id
        return answer

    async def following(self, *roster: str, named: Sequence[str] = ()) -> tuple[Session, Line]:
        self.lists.of["watcher"] = roster
        watcher, line = session()
        answer = await self.follow(watcher, line, *named)
        assert answer.payload["roster"] == len(roster)
        return watcher, line

    async def put(self, *roster: str) -> None:
        """Change the roster, and tell the node."""
        self.lists.of["watcher"] = roster
        self.watching.rosters_changed(["watcher"])
        await trio.sleep(SOON_S)

    def figure(self, name: str) -> int:
        return int(self.watching.report()["rosters"][name])


@asynccontextmanager
async def desk(visibility: Visibility | None = None) -> AsyncIterator[Desk]:
    desk = Desk(visibility)
    async with running(desk.node):
        yield desk


def told(line: Line) -> list[tuple[str, str, str]]:
    """Return what the client was pushed: users, their statuses, reasons."""
    packets = line.packets()
    assert {packet.kind for packet in packets} <= {Kind.PRESENCE}
    return [(each.payload["uid"], each.payload["status"], each.payload["reason"]) for each in packets]


def added(*uids: str) -> list[tuple[str, str, str]]:
    return [(uid, "offline", "watched") for uid in uids]


def removed(*uids: str) -> list[tuple[str, str, str]]:
    return [(uid, "removed", "removed") for uid in uids]


# The first answer


async def test_the_answer_has_the_users_of_the_roster_and_their_changes_follow(
    autojump_clock: MockClock,
) -> None:
    async with desk() as at:
        at.lists.of["watcher"] = ["ann", "bob"]
        at.node.shard.write("ann", "online")
        watcher, line = session()
        answer = await at.follow(watcher, line, "cy")
        shown = {uid: state["status"] for uid, state in answer.payload["presence"].items()}
        assert (shown, answer.payload["roster"]) == ({"ann": "online", "bob": "offline", "cy": "offline"}, 2)
        at.node.shard.write("bob", "online")
        await trio.sleep(SOON_S)
        assert told(line) == [("bob", "online", "login")]


@pytest.mark.parametrize("roster", [None, ()])
async def test_without_a_roster_the_answer_is_empty_and_the_first_one_arrives(
    autojump_clock: MockClock, roster: Sequence[str] | None
) -> None:
    async with desk() as at:
        at.lists.of["watcher"] = roster
        watcher, line = session()
        answer = await at.follow(watcher, line)
        assert answer.payload == {"roster": 0, "presence": {}}
        await at.put("ann")
        assert told(line) == added("ann")


async def test_the_claim_of_the_token_and_the_stored_list_are_one_roster(autojump_clock: MockClock) -> None:
    async with desk() as at:
        at.lists.of["watcher"] = ["ann", "bob"]
        watcher, line = session()
        at.claims[watcher] = "bob eve"
        answer = await at.follow(watcher, line)
        assert (sorted(answer.payload["presence"]), answer.payload["roster"]) == (["ann", "bob", "eve"], 3)
        at.claims[watcher] = "bob fay"
        at.watching.sight_changed(watcher)
        await trio.sleep(SOON_S)
        assert sorted(told(line)) == sorted([*removed("eve"), *added("fay")])


async def test_a_roster_has_500_users_with_those_of_the_claim_first(autojump_clock: MockClock) -> None:
    async with desk() as at:
        at.watching._quota.limit_bytes = 10**9
        at.lists.of["watcher"] = names(UIDS_MAX)
        watcher, line = session()
        at.claims[watcher] = "ann"
        answer = await at.follow(watcher, line)
        assert answer.payload["roster"] == UIDS_MAX
        assert set(answer.payload["presence"]) == {"ann", *names(UIDS_MAX - 1)}


async def test_named_users_and_a_roster_of_more_than_500_are_refused_and_nothing_is_followed(
    autojump_clock: MockClock,
) -> None:
    async with desk() as at:
        at.lists.of["watcher"] = names(UIDS_MAX)
        watcher, line = session()
        answer = await at.follow(watcher, line, "ann")
        assert answer.payload["code"] == Code.TOO_LARGE
        assert (at.figure("followed"), at.watching.watches(watcher)) == (0, 0)


async def test_operators_see_whether_a_session_follows_its_roster(autojump_clock: MockClock) -> None:
    async with desk() as at:
        watcher, _ = session()
        assert at.watching.roster_watch(watcher) is None
        at.watching.take(watcher, WatchRequest(1, [], roster=True))
        assert at.watching.roster_watch(watcher) == "requested"
        await trio.sleep(SOON_S)
        assert at.watching.roster_watch(watcher) == "followed"
        at.watching.take(watcher, UnwatchRequest(2, [], roster=True))
        assert at.watching.roster_watch(watcher) is None


async def test_many_logins_are_read_together_and_a_roster_of_two_devices_once(
    autojump_clock: MockClock,
) -> None:
    async with desk() as at:
        await trio.sleep(SOON_S)
        lines = []
        for number in range(2 * MAX_ROSTERS_PER_READ):
            watcher, line = session(f"user-{number // 2}")
            lines.append(line)
            if number == MAX_ROSTERS_PER_READ:
                await trio.sleep(0.001)
            at.watching.take(watcher, WatchRequest(1, [], roster=True))
        await trio.sleep(SOON_S)
        assert [len(each) for each in at.lists.reads] == [MAX_ROSTERS_PER_READ]
        assert all(line.packets()[0].kind == Kind.OK for line in lines)


async def test_while_redis_is_away_a_watch_is_refused_and_follows_nothing(autojump_clock: MockClock) -> None:
    async with desk() as at:
        at.lists.is_up = False
        watcher, line = session()
        answer = await at.follow(watcher, line, "ann")
        assert answer.payload["code"] == Code.BUSY
        assert answer.payload["retry_after"] > 0
        assert (at.figure("followed"), at.watching.watches(watcher)) == (0, 0)


async def test_a_second_watch_of_the_roster_waits_for_the_first(autojump_clock: MockClock) -> None:
    async with desk() as at:
        watcher, line = session()
        for id in (1, 2):
            at.watching.take(watcher, WatchRequest(id, [], roster=True))
        await trio.sleep(SOON_S)
        assert {packet.id: packet.payload.get("code") for packet in line.packets()} == {1: None, 2: Code.BUSY}


async def test_a_client_that_left_before_its_roster_was_read_follows_nothing(
    autojump_clock: MockClock,
) -> None:
    async with desk() as at:
        at.lists.of["watcher"] = ["ann"]
        watcher, line = session()
        at.watching.take(watcher, WatchRequest(1, [], roster=True))
        watcher.transport = None
        at.watching.left(watcher)
        await trio.sleep(SOON_S)
        assert (line.packets(), at.figure("followed"), at.watching.report()["users"]) == ([], 0, 0)


# Changes


async def test_added_users_come_as_changes_and_removed_ones_leave_with_a_last_one(
    autojump_clock: MockClock,
) -> None:
    async with desk() as at:
        watcher, line = await at.following("ann", "bob")
        await at.put("bob", "cy", "dee")
        assert sorted(told(line)) == sorted([*removed("ann"), *added("cy", "dee")])
        for uid in ("ann", "cy"):
            at.node.shard.write(uid, "online")
        await trio.sleep(SOON_S)
        assert told(line) == [("cy", "online", "login")]
        assert at.watching.watches(watcher) == 3


async def test_each_session_of_the_user_follows_and_no_other(autojump_clock: MockClock) -> None:
    async with desk() as at:
        _, phone = await at.following("ann")
        _, tablet = await at.following("ann")
        other, elsewhere = session("other")
        await at.follow(other, elsewhere)
        await at.put("bob")
        expected = [*removed("ann"), *added("bob")]
        assert (told(phone), told(tablet), told(elsewhere)) == (expected, expected, [])


async def test_a_change_during_a_read_is_read_again(autojump_clock: MockClock) -> None:
    async with desk() as at:
        _, line = await at.following("ann")
        read = at.lists.read

        def change_after(uids: Sequence[str]) -> Mapping[str, Sequence[str] | None]:
            found = read(uids)
            at.lists.read = read  # type: ignore[method-assign]
            at.lists.of["watcher"] = ["bob"]
            at.watching.rosters_changed(["watcher"])
            return found

        at.lists.read = change_after  # type: ignore[method-assign]
        await at.put("ann", "cy")
        assert sorted(told(line)) == sorted([*added("cy", "bob"), *removed("ann", "cy")])


async def test_a_change_while_the_first_watch_waits_follows_its_answer(autojump_clock: MockClock) -> None:
    async with desk() as at:
        at.node.channel.is_up = False
        at.lists.of["watcher"] = ["ann"]
        watcher, line = session()
        at.watching.take(watcher, WatchRequest(1, [], roster=True))
        await trio.sleep(SOON_S)
        await at.put("bob")
        assert line.packets() == []
        at.node.channel.is_up = True
        await trio.sleep(3)
        answer, *rest = line.packets()
        assert sorted(answer.payload["presence"]) == ["ann"]
        assert [(each.payload["uid"], each.payload["reason"]) for each in rest] == [
            ("ann", "removed"),
            ("bob", "watched"),
        ]


async def test_a_large_change_goes_out_in_parts(autojump_clock: MockClock) -> None:
    async with desk() as at:
        at.watching._quota.limit_bytes = 10**9
        watcher, line = await at.following("ann")
        many = names(2 * MAX_ROSTER_CHANGES_PER_TURN + 5)
        await at.put(*many)
        assert sorted(told(line)) == sorted([*removed("ann"), *added(*many)])
        await at.put("bob")
        assert sorted(told(line)) == sorted([*removed(*many), *added("bob")])
        assert at.watching.watches(watcher) == 1


async def test_a_roster_that_redis_has_lost_removes_nobody(autojump_clock: MockClock) -> None:
    async with desk() as at:
        watcher, line = await at.following("ann", "bob")
        at.lists.of.clear()
        at.watching.rosters_changed(None)
        await trio.sleep(1)
        assert (told(line), at.watching.watches(watcher)) == ([], 2)
        await at.put("bob")
        assert told(line) == removed("ann")


# Named users


async def test_a_named_user_stays_watched_when_the_roster_loses_them(autojump_clock: MockClock) -> None:
    async with desk() as at:
        watcher, line = await at.following("ann", "bob", named=["ann"])
        at.watching.take(watcher, WatchRequest(2, ["bob"]))
        await trio.sleep(SOON_S)
        line.packets()
        await at.put()
        assert (told(line), at.watching.watches(watcher)) == ([], 2)


async def test_users_watched_before_the_roster_are_named_ones(autojump_clock: MockClock) -> None:
    async with desk() as at:
        at.lists.of["watcher"] = ["ann", "bob"]
        watcher, line = await at.node.watched("ann")
        await at.follow(watcher, line)
        await at.put()
        assert told(line) == removed("bob")


async def test_a_user_unwatched_by_name_is_not_watched_again_until_asked_for(
    autojump_clock: MockClock,
) -> None:
    async with desk() as at:
        watcher, line = await at.following("ann", "bob")
        at.watching.take(watcher, UnwatchRequest(2, ["ann", "stranger"]))
        line.packets()
        await at.put("ann", "bob", "cy")
        assert told(line) == added("cy")
        answer = await at.follow(watcher, line, id=3)
        assert sorted(answer.payload["presence"]) == ["ann", "bob", "cy"]
        await at.put()
        assert sorted(told(line)) == sorted(removed("ann", "bob", "cy"))


async def test_a_user_who_was_unwatched_and_then_left_the_roster_can_be_added_anew(
    autojump_clock: MockClock,
) -> None:
    async with desk() as at:
        watcher, line = await at.following("ann", "bob")
        at.watching.take(watcher, UnwatchRequest(2, ["ann"]))
        line.packets()
        await at.put("bob")
        await at.put("bob", "ann")
        assert told(line) == added("ann")


async def test_names_that_were_unwatched_are_dropped_if_they_are_not_in_the_roster(
    autojump_clock: MockClock,
) -> None:
    async with desk() as at:
        watcher, line = await at.following("ann")
        before = at.watching._rosters.bytes
        for number in range(2 * MAX_UNCOMPARED):
            at.watching.take(watcher, WatchRequest(2, [f"friend-{number}"]))
            await trio.sleep(SOON_S)
            at.watching.take(watcher, UnwatchRequest(3, [f"friend-{number}"]))
        line.packets()
        await trio.sleep(SOON_S)
        assert at.watching._rosters.bytes <= before + MAX_UNCOMPARED * rosters.NAME_BYTES


@pytest.mark.parametrize("uids", [None, []])
async def test_an_unwatch_of_the_roster_ends_it(autojump_clock: MockClock, uids: list[str] | None) -> None:
    async with desk() as at:
        watcher, line = await at.following("ann", "bob", named=["bob", "cy"])
        at.watching.take(watcher, UnwatchRequest(2, uids, roster=uids is not None))
        (answer,) = line.packets()
        assert (answer.kind, answer.id) == (Kind.OK, 2)
        await at.put("dee")
        assert (told(line), at.figure("followed")) == ([], 0)
        assert at.watching.watches(watcher) == (0 if uids is None else 2)


@pytest.mark.parametrize("with_roster", [False, True])
async def test_a_user_named_by_a_watch_that_waits_stays_watched_when_the_roster_is_not_followed_any_more(
    autojump_clock: MockClock, *, with_roster: bool
) -> None:
    async with desk() as at:
        watcher, line = await at.following("ann", "bob")
        at.watching.take(watcher, WatchRequest(2, ["bob"], roster=with_roster))
        at.watching.take(watcher, UnwatchRequest(3, [], roster=True))
        await trio.sleep(SOON_S)
        answers = {packet.id: packet.payload for packet in line.packets()}
        assert (answers[3], sorted(answers[2]["presence"])) == ({}, ["bob"])
        at.node.shard.write("ann", "online")
        at.node.shard.write("bob", "online")
        await trio.sleep(SOON_S)
        assert (told(line), at.watching.watches(watcher)) == ([("bob", "online", "login")], 1)


async def test_a_user_named_while_the_roster_adds_them_stays_watched_without_it(
    autojump_clock: MockClock,
) -> None:
    async with desk() as at:
        watcher, line = await at.following("ann")
        at.node.channel.is_up = False
        await at.put("ann", "bob")
        at.watching.take(watcher, WatchRequest(2, ["bob"]))
        at.watching.take(watcher, UnwatchRequest(3, [], roster=True))
        at.node.channel.is_up = True
        await trio.sleep(3)
        answers = {packet.id: packet.payload for packet in line.packets()}
        assert (answers[3], sorted(answers[2]["presence"])) == ({}, ["bob"])
        assert at.watching.watches(watcher) == 1


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("uids", [None, []])
async def test_an_unwatch_before_the_answer_leaves_nothing_of_the_roster(
    autojump_clock: MockClock, uids: list[str] | None, *, is_read: bool
) -> None:
    async with desk() as at:
        at.node.channel.is_up = False
        at.lists.of["watcher"] = ["ann"]
        watcher, line = session()
        at.watching.take(watcher, WatchRequest(1, ["bob"], roster=True))
        if is_read:
            await trio.sleep(SOON_S)
        at.watching.take(watcher, UnwatchRequest(2, uids, roster=uids is not None))
        at.node.channel.is_up = True
        await trio.sleep(3)
        answers = {packet.id: packet.payload for packet in line.packets()}
        assert (answers[2], answers[1]["roster"]) == ({}, int(is_read))
        assert at.watching.watches(watcher) == (0 if uids is None else 1)
        await at.put("dee")
        assert (told(line), at.figure("followed")) == ([], 0)


# Visibility


async def test_users_of_the_roster_who_may_not_be_seen_are_not_watched(autojump_clock: MockClock) -> None:
    visibility = Visibility(WordAuthenticator(), trio.current_time)
    async with desk(visibility) as at:
        at.lists.of["watcher"] = ["ann", "bob"]
        watcher, line = session()
        visibility.set_sight(watcher, NamePatterns(frozenset({"ann"})))
        answer = await at.follow(watcher, line)
        assert {uid: state["status"] for uid, state in answer.payload["presence"].items()} == {
            "ann": "offline",
            "bob": "not_allowed",
        }
        await at.put("ann", "bob", "cy")
        assert told(line) == [("cy", "not_allowed", "not_allowed")]
        await at.put("ann", "bob", "cy")
        assert (told(line), at.watching.watches(watcher)) == ([], 1), "it is said once"
        visibility.set_sight(watcher, NamePatterns(frozenset({"bob"})))
        at.watching.sight_changed(watcher)
        await trio.sleep(SOON_S)
        assert told(line) == [("ann", "not_allowed", "not_allowed")]
        answer = await at.follow(watcher, line, id=2)
        assert answer.payload["presence"]["bob"]["status"] == "offline"


# Quiet sessions and slow readers


async def test_a_quiet_session_gets_its_roster_with_its_next_packet(autojump_clock: MockClock) -> None:
    async with desk() as at:
        watcher, line = await at.following("ann", "bob")
        at.quiet.sessions.add(watcher)
        await at.put("ann", "cy")
        assert watcher in at.quiet.holding
        at.node.shard.write("ann", "online")
        await at.put("ann", "dee")
        at.watching.take(watcher, UnwatchRequest(2, ["ann"]))
        assert [packet.id for packet in line.packets()] == [2]
        assert watcher in at.quiet.holding
        at.quiet.sessions.discard(watcher)
        at.watching.release_held(watcher)
        await trio.sleep(SOON_S)
        assert sorted(told(line)) == sorted([*removed("bob"), *added("dee")])


async def test_a_slow_reader_gets_its_roster_when_it_has_taken_the_rest(autojump_clock: MockClock) -> None:
    async with desk() as at:
        watcher, line = await at.following("ann", "bob")
        line.slow = True
        await at.put("bob", "cy")
        await at.put("dee")
        assert (line.packets(), at.watching.watches(watcher)) == ([], 2)
        line.slow = False
        at.watching.all_sent(watcher)
        await trio.sleep(SOON_S)
        assert sorted(told(line)) == sorted([*removed("ann", "bob"), *added("dee")])


# Bounds


async def test_added_users_beyond_the_limit_of_a_connection_wait_for_room(autojump_clock: MockClock) -> None:
    async with desk() as at:
        at.watching._quota.limit_bytes = 10**9
        at.watching._max_watches = 3
        watcher, line = await at.following("ann", named=["bob"])
        await at.put("ann", "cy", "dee")
        assert (len(told(line)), at.watching.watches(watcher)) == (1, 3)
        await trio.sleep(2 * RETRY_S)
        reads = len(at.lists.reads)
        at.watching.take(watcher, UnwatchRequest(2, ["bob"]))
        line.packets()
        await trio.sleep(RETRY_S + 1)
        assert len(told(line)) == 1
        assert len(at.lists.reads) <= reads + 3, "it is not tried all the time"


async def test_added_users_wait_for_memory(autojump_clock: MockClock) -> None:
    async with desk() as at:
        quota = at.watching._quota
        quota.limit_bytes = 10**9
        _, line = await at.following(*names(11))
        quota.limit_bytes = 0
        await at.put(*names(13))
        assert (told(line), at.figure("no_room")) == ([], 1)
        quota.limit_bytes = 10**9
        await trio.sleep(RETRY_S + 1)
        assert told(line) == added("user-11", "user-12")


async def test_skipped_users_count_against_the_limit(autojump_clock: MockClock) -> None:
    async with desk() as at:
        at.watching._max_watches = 3
        watcher, line = await at.following("ann", "bob")
        at.watching.take(watcher, UnwatchRequest(2, ["ann", "bob"]))
        line.packets()
        at.watching.take(watcher, WatchRequest(3, ["cy", "dee"]))
        (refusal,) = line.packets()
        assert refusal.payload["code"] == Code.TOO_LARGE


async def test_waiting_watches_are_bounded_by_memory(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster_changes, "MAX_PENDING_BYTES", 10_000)
    async with desk() as at:
        watcher, line = session()
        answer = await at.follow(watcher, line, *names(20))
        assert answer.payload["code"] == Code.BUSY
        assert at.figure("followed") == 0


async def test_the_users_of_a_roster_cost_their_user_s_share(autojump_clock: MockClock) -> None:
    async with desk() as at:
        at.watching._quota.limit_bytes = 10**9
        at.lists.of["watcher"] = names(UIDS_MAX)
        watcher, line = session()
        codes = []
        for id in range(12):
            at.watching.take(watcher, WatchRequest(id, [], roster=True))
            await trio.sleep(SOON_S)
            codes += [packet.payload.get("code") for packet in line.packets()]
        assert codes[0] is None
        assert Code.RATE_LIMITED in codes


# Losses


async def test_after_a_loss_of_the_channel_all_rosters_are_read_again_at_a_pace(
    autojump_clock: MockClock,
) -> None:
    async with desk() as at:
        lines = []
        for number in range(REREADS_PER_S):
            watcher, line = session(f"user-{number}")
            at.watching.take(watcher, WatchRequest(1, [], roster=True))
            lines.append(line)
        await trio.sleep(1)
        for line in lines:
            line.packets()
        at.lists.of = {f"user-{number}": ["ann"] for number in range(REREADS_PER_S)}
        at.lists.reads.clear()
        at.watching.rosters_changed(None)
        await trio.sleep(0.5)
        half = sum(map(len, at.lists.reads))
        assert 0.3 * REREADS_PER_S < half < 0.7 * REREADS_PER_S
        await trio.sleep(1)
        assert sum(map(len, at.lists.reads)) == REREADS_PER_S
        assert all(told(line) == added("ann") for line in lines)


async def test_a_failed_read_is_repeated(autojump_clock: MockClock) -> None:
    async with desk() as at:
        _, line = await at.following("ann")
        at.lists.is_up = False
        await at.put("bob")
        at.lists.is_up = True
        assert told(line) == []
        await trio.sleep(RETRY_S + 1)
        assert sorted(told(line)) == sorted([*removed("ann"), *added("bob")])


async def test_added_users_whose_states_do_not_come_are_tried_again(autojump_clock: MockClock) -> None:
    async with desk() as at:
        _, line = await at.following("ann")
        at.node.channel.is_up = False
        await at.put("ann", "bob")
        await trio.sleep(WATCH_TIMEOUT_S + 1)
        assert told(line) == []
        at.node.channel.is_up = True
        await trio.sleep(RETRY_S + 1)
        assert told(line) == added("bob")


async def test_an_error_in_one_comparison_ends_that_connection_and_no_other(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk() as at:
        watcher, _ = await at.following("ann")
        other, line = session("other")
        await at.follow(other, line)
        at.claims[watcher] = 5  # type: ignore[assignment]
        at.lists.of = {"watcher": ["bob"], "other": ["bob"]}
        at.watching.rosters_changed(["watcher", "other"])
        await trio.sleep(SOON_S)
        assert (at.node.ended, told(line)) == ([watcher], added("bob"))


async def test_a_client_that_takes_rows_gets_rows(autojump_clock: MockClock) -> None:
    async with desk() as at:
        at.lists.of["watcher"] = ["ann"]
        watcher, line = session()
        watcher.features = ClientFeatures(batch=True)
        answer = await at.follow(watcher, line)
        assert answer.payload == {"roster": 1, "states": ["ann"]}
        await at.put("bob", "cy")
        assert [(each.kind, each.payload) for each in line.packets()] == [
            (Kind.CHANGES, {"changes": [["ann", "removed", Code.REMOVED]]}),
            (Kind.CHANGES, {"changes": [[uid, None, Code.WATCHED] for uid in ("bob", "cy")]}),
        ]
