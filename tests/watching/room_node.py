"""A node whose clients watch rooms, in virtual time."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from presence.core.authenticator import RoomClaim
from presence.core.quiet_sessions import QuietSessions
from presence.core.registry import Session
from presence.core.service_requests import RoomQueryRequest, RoomWatchRequest
from presence.core.visibility import Visibility
from presence.protocol import Kind, Packet
from presence.watching.room_views import FoundRooms, RoomOccupancy
from presence.watching.room_watch_service import RoomSource
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

    def read(self, rooms: Sequence[str], most_members: int) -> FoundRooms:
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


class RoomNode:
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
async def room_node(*args: Any, **options: Any) -> AsyncIterator[RoomNode]:
    node = RoomNode(*args, **options)
    async with running(node.node):
        yield node


def pushed(line: Line) -> list[list[Any]]:
    """Return the rows that were pushed to a client."""
    packets = line.packets()
    assert {packet.kind for packet in packets} <= {Kind.ROOMS}
    return [row for packet in packets for row in packet.payload["rooms"]]


def users(count: int, prefix: str = "u") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]
