"""What sessions are pushed of the rooms that they watch, in virtual time."""

import pytest
import trio
from trio.testing import MockClock

from presence.core.service_requests import (
    RoomWatchRequest,
    UnwatchRequest,
    WatchRequest,
)
from presence.protocol.prepacked import pack_room_row
from presence.protocol.rows import RoomRow
from presence.watching import room_pushes
from tests.watching.fakes import session
from tests.watching.room_node import SOON_S, pushed, room_node, users

# Slow and quiet sessions


async def test_a_slow_client_gets_the_present_state_when_it_can_take_it(autojump_clock: MockClock) -> None:
    async with room_node() as at:
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
    async with room_node() as at:
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
    async with room_node() as at:
        _, slow = await at.watcher("lobby", uid="slow")
        _, fast = await at.watcher("lobby", uid="fast")
        slow.slow = True
        for number in range(3):
            await at.put_and_wait("lobby", f"u{number}")
        assert len(pushed(fast)) == 3


async def test_a_quiet_client_gets_the_present_state_with_its_next_packet(autojump_clock: MockClock) -> None:
    async with room_node() as at:
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
    async with room_node() as at:
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


# Many


async def test_what_many_are_shown_is_encoded_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with room_node() as at:
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
    async with room_node() as at:
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
    async with room_node() as at:
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
