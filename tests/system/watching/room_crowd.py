"""Clients of real servers that go from room to room, and clients that watch the rooms."""

from contextlib import suppress
from random import Random
from typing import Any

import trio

from presence.client import Client, PresenceError, RoomState, connect

ROOMS = [f"room-{number}" for number in range(6)]


class Crowd:
    """Clients that are in rooms, and clients that watch these; all return by themselves."""

    def __init__(self, address: tuple[str, int], seed: int) -> None:
        self._address = address
        self._random = Random(seed)
        self.members: list[Client] = []
        self.watchers: list[Client] = []

    async def enter(self, members: int, watchers: int, nursery: trio.Nursery) -> None:
        async def stay(uid: str, into: list[Client], *, task_status: Any) -> None:
            async with connect(*self._address, uid=uid) as client:
                into.append(client)
                task_status.started()
                await trio.sleep_forever()

        for number in range(members):
            await nursery.start(lambda **k: stay(f"member-{number}", self.members, **k))  # noqa: B023
        for number in range(watchers):
            await nursery.start(lambda **k: stay(f"watcher-{number}", self.watchers, **k))  # noqa: B023
        for each in self.watchers:
            await each.watch_rooms(ROOMS)

    async def move(self, seconds: float) -> None:
        """Let members come and go for some time."""
        with trio.move_on_after(seconds):
            while True:
                with suppress(PresenceError):
                    await self._move(self._random.choice(self.members))
                await trio.sleep(0.01)

    async def settle(self) -> None:
        """Let all members move once more, with an answer."""
        for each in self.members:
            while True:
                try:
                    await self._move(each)
                    break
                except PresenceError:
                    await trio.sleep(0.1)

    async def _move(self, client: Client) -> None:
        await client.update(rooms=self._random.sample(ROOMS, self._random.randint(0, 3)))

    def expected(self) -> dict[str, RoomState]:
        found: dict[str, set[str]] = {room: set() for room in ROOMS}
        for number, client in enumerate(self.members):
            for room in client.joined or ():
                found[room].add(f"member-{number}")
        return {room: RoomState(len(uids), frozenset(uids)) for room, uids in found.items()}

    def wrong(self) -> list[dict[str, RoomState]]:
        expected = self.expected()
        return [each.watched_rooms for each in self.watchers if each.watched_rooms != expected]
