"""Shards as servers leave them: users are in rooms, and a projector runs when a test says so."""

import json
from collections.abc import Iterator
from typing import Any
from zlib import crc32

from presence.common.errors import StoreUnavailable
from presence.rooms.projector import RoomProjector
from presence.store.keys import Keys
from presence.store.redis_client import Redis
from presence.store.script_runner import Call

STEP_S = 0.1
LETTERS = {"online": "-", "away": "a", "busy": "b", "dnd": "d", "invisible": "i"}


class World:
    """Users and rooms, written by hand in the format of the server's scripts; time passes as tests say.

    Args:
        client: of an empty Redis.
        url: of the same.
        shards: of both.

    Attributes:
        rooms: of each user who is online.
    """

    def __init__(self, client: Redis, url: str, shards: int) -> None:
        self.client: Any = client
        self.url = url
        self.keys = Keys(shards=shards)
        self.now = 1000.0
        self.rooms: dict[str, tuple[str, ...]] = {}
        self.status: dict[str, str] = {}
        self.projectors: list[RoomProjector] = []

    def put(self, uid: str, *rooms: str, status: str = "online", has_event: bool = True) -> str:
        """Let a user be in these rooms only, online if they were not; return the id of the event."""
        before = self.rooms.get(uid)
        self.rooms[uid], self.status[uid] = rooms, status
        session: dict[str, Any] = {"session": "s", "node": "n", "login_ms": 1}
        if rooms:
            session["rooms"] = " ".join(sorted(rooms))
        if status == "away":
            session["away"] = True
        elif status != "online":
            session["status"] = status
        shard = self.keys.shard(uid)
        record = {"id": "1-0", "since_ms": 1, "sessions": {"d": session}}
        self.client.hset(self.keys.online(shard), uid, json.dumps(record, separators=(",", ":")))
        if rooms:
            self.client.hset(self.keys.shard_meta(shard), "rooms", "1")
        fields = {"type": "online" if before is None else "rooms", "reason": "login"}
        if rooms:
            fields["rooms"] = " ".join(sorted(rooms))
        if gone := set(before or ()) - set(rooms):
            fields["rooms_left"] = " ".join(sorted(gone))
        if status == "invisible":
            fields["invisible"] = "1"
        elif status != "online":
            fields["status"] = status
        return self._event(uid, fields) if has_event else ""

    def end(self, uid: str, *, has_event: bool = True) -> str:
        """Let a user go offline; return the id of the event."""
        before = self.rooms.pop(uid)
        self.client.hdel(self.keys.online(self.keys.shard(uid)), uid)
        fields = {"type": "offline", "reason": "logout", "rooms": " ".join(sorted(before))}
        return self._event(uid, fields) if has_event else ""

    def _event(self, uid: str, fields: dict[str, str]) -> str:
        what: Any = {"v": "1", "uid": uid, "at_ms": "1", **fields}
        entry_id: Any = self.client.xadd(self.keys.events(self.keys.shard(uid)), what)
        return str(entry_id.decode())

    def projector(self, **options: Any) -> RoomProjector:
        """Return another projector, closed at the end of the test."""
        projector = RoomProjector(
            self.url, shards=self.keys.shards, clock=lambda: self.now, **{"events": "all", **options}
        )
        self.projectors.append(projector)
        return projector

    def run(self, projector: RoomProjector, seconds: float = 0.5) -> None:
        """Run a projector for some time of its clock."""
        until = self.now + seconds
        while self.now < until:
            self.now += min(max(projector.run_once(), 0.001), STEP_S)

    def release(self) -> None:
        """End the leases, as time would."""
        for shard in range(self.keys.shards):
            self.client.hset(self.keys.rooms_state(shard), "until_ms", 0)

    def members(self, room: str) -> dict[str, str]:
        """Return the members of a room with their letters."""
        found: Any = self.client.hgetall(self.keys.room(room))
        return {k.decode(): v.decode()[-1] for k, v in found.items() if not k.startswith(b" ")}

    def entries(self, room: str) -> list[str]:
        """Return what the stream of rooms says of a room: type, user, count."""
        rows: Any = self.client.xrange(self.keys.room_events(self.keys.shard(room)))
        return [
            f"{fields[b'type'].decode()} {fields[b'uid'].decode()} {fields[b'count'].decode()}"
            for _, fields in rows
            if fields[b"room"].decode() == room
        ]

    def wanted(self) -> dict[str, dict[str, str]]:
        """Return the members of each room as the records say."""
        found: dict[str, dict[str, str]] = {}
        for uid, rooms in self.rooms.items():
            for room in rooms:
                found.setdefault(room, {})[uid] = LETTERS[self.status[uid]]
        return found

    def check(self) -> None:
        """Assert that Redis has the members, sizes and counts that the records imply, and nothing else."""
        wanted = self.wanted()
        assert {room: self.members(room) for room in self._stored_rooms()} == wanted
        for room, members in wanted.items():
            shard = self.keys.shard(room)
            assert self.client.zscore(self.keys.room_sizes(shard), room) == len(members)
            invisible = sum(letter == "i" for letter in members.values())
            assert int(self.client.hget(self.keys.room(room), " i") or 0) == invisible
            assert self.client.hexists(self.keys.room(room), " o")
        for shard in range(self.keys.shards):
            rooms = {room for room in wanted if self.keys.shard(room) == shard}
            assert self.client.zcard(self.keys.room_sizes(shard)) == len(rooms)
            members = self.client.hget(self.keys.room_sources(shard), "members")
            assert int(members or 0) == sum(len(wanted[room]) for room in rooms)
        self.check_entries()

    def check_entries(self) -> None:
        """Assert that rooms became occupied and vacated in turn, and that each count is that of the entry."""
        for shard in range(self.keys.shards):
            inside: dict[bytes, set[bytes]] = {}
            is_open: dict[bytes, bool] = {}
            rows: Any = self.client.xrange(self.keys.room_events(shard))
            for _, fields in rows:
                room, uid, type = fields[b"room"], fields[b"uid"], fields[b"type"]
                users = inside.setdefault(room, set())
                if type == b"joined":
                    assert uid not in users
                    users.add(uid)
                elif type == b"left":
                    users.remove(uid)
                else:
                    assert is_open.get(room, False) == (type == b"vacated")
                    is_open[room] = type == b"occupied"
                assert int(fields[b"count"]) == len(users) or type == b"occupied"

    def _stored_rooms(self) -> Iterator[str]:
        for key in sorted(self.client.keys("presence:{*}:room:*")):
            yield key.decode().partition("}:room:")[2]

    def uid_of(self, shard: int, prefix: str = "u") -> str:
        """Return a uid, or a room, of a shard."""
        return next(
            name for n in range(1000) if crc32((name := f"{prefix}{n}").encode()) % self.keys.shards == shard
        )


class Failing:
    """Fails calls of a projector, before or after they are carried out.

    Args:
        projector: whose calls.
        fails: whether a call fails; "after": it was carried out, "before": it was not, "": it does not fail.
    """

    def __init__(self, projector: RoomProjector, fails: Any) -> None:
        self._scripting = projector._scripting
        self._real = self._scripting.evaluate
        self.fails = fails
        self._scripting.evaluate = self.evaluate  # type: ignore[method-assign]

    def evaluate(self, calls: Any) -> list[Any]:
        """As that of `Scripting`."""
        when = [self.fails(call) for call in calls]
        sent: list[Call] = [call for call, how in zip(calls, when, strict=True) if how != "before"]
        answers = iter(self._real(sent) if sent else [])
        found = [None if how == "before" else next(answers) for how in when]
        return [StoreUnavailable("gone") if how else each for each, how in zip(found, when, strict=True)]
