"""When watched rooms are read, in virtual time."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from presence.common.errors import StoreUnavailable
from presence.core.service_requests import (
    RoomQueryRequest,
    RoomWatchRequest,
)
from presence.watching.room_schedule import LARGE_ROOM, REREAD_S, REREADS_PER_S, RETRY_S
from tests.watching.fakes import session
from tests.watching.room_node import SOON_S, pushed, room_node, users


async def test_a_change_during_the_first_read_is_not_missed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with room_node() as at:
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
    async with room_node() as at:
        _, line = await at.watcher("lobby")
        at.watching.rooms_changed(["lobby", "lobby", "", "\ufffd"])
        await trio.sleep(SOON_S)
        assert (pushed(line), len(at.rooms.reads)) == ([], 2)


async def test_changes_of_a_small_room_are_gathered_shortly(autojump_clock: MockClock) -> None:
    async with room_node() as at:
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
    async with room_node() as at:
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
    async with room_node() as at:
        _, line = await at.watcher("lobby")
        at.put("lobby", *users(LARGE_ROOM + 1))
        await trio.sleep(0.005)
        at.put("lobby", *users(LARGE_ROOM + 2))
        await trio.sleep(0.9)
        assert [row[1] for row in pushed(line)] == [LARGE_ROOM + 1]
        await trio.sleep(0.3)
        assert [row[1] for row in pushed(line)] == [LARGE_ROOM + 2]


async def test_without_hints_rooms_are_read_now_and_then(autojump_clock: MockClock) -> None:
    async with room_node() as at:
        _, line = await at.watcher("lobby")
        at.rooms.of["lobby"] = {"ann"}
        await trio.sleep(REREAD_S - 2)
        assert pushed(line) == []
        await trio.sleep(4)
        assert pushed(line) == [["lobby", 1, ["ann"], []]]
        await trio.sleep(3 * REREAD_S)
        assert 4 <= at.figure("rereads") <= 5


async def test_after_a_loss_of_the_channel_all_rooms_are_read_at_a_pace(autojump_clock: MockClock) -> None:
    async with room_node(0) as at:
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
    async with room_node() as at:
        _, line = await at.watcher("lobby")
        at.rooms.failure = StoreUnavailable("away")
        await at.put_and_wait("lobby", "ann")
        at.rooms.failure = None
        await trio.sleep(2 * RETRY_S)
        assert pushed(line) == [["lobby", 1, ["ann"], []]]
