"""Shards as servers and projectors leave them, over a faulty network: users join and leave rooms by hand."""

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import redis

from presence.rooms.projector import RoomProjector
from presence.store.keys import Keys
from tests.simulation.fake.client import Answers, FakeClient, Packed
from tests.simulation.fake.server import FakeRedis
from tests.simulation.fake.values import Hash, ReplyError, Sorted, Stream, Value

START_S: Final = 1_700_000_000.0
LETTERS: Final = {"online": "-", "away": "a", "busy": "b", "invisible": "i"}
MEMBER_TYPES: Final = frozenset({"joined", "left"})

Members = dict[str, dict[str, str]]  # room to its members: uid to letter
Shown = tuple[str, tuple[str, ...]]  # status, and rooms


class Wire:
    """The network between projectors and shards, each of which is a server of its own.

    Attributes:
        fates: what happens to the next commands, one after the other; then all goes well.
        late: commands that were not carried out when they were sent, or are carried out again.
        meanwhile: called once, after the next command with the fate ``pause``, before its caller goes on.
    """

    def __init__(self, server: FakeRedis) -> None:
        self.server = server
        self.fates: list[str] = []
        self.late: list[list[bytes]] = []
        self.meanwhile: Callable[[], None] | None = None

    def exchange(self, commands: Packed, perform: Callable[[list[bytes]], Any]) -> Answers:
        answers: Answers = []
        is_broken = pauses = False
        for words in commands:
            fate, answer = (self.fates.pop(0) if self.fates else ""), None
            if fate in {"", "twice", "pause", "unanswered"}:
                answer = perform(words)
            if fate in {"twice", "late"}:
                self.late.append(words)
            is_broken = is_broken or fate in {"late", "lost", "unanswered"}
            pauses = pauses or fate == "pause"
            if fate == "refused":
                answer = redis.ResponseError("CLUSTERDOWN Hash slot not served")
            answers.append(redis.TimeoutError("Timeout reading from socket") if is_broken else answer)
        if pauses and self.meanwhile:
            act, self.meanwhile = self.meanwhile, None
            act()
        return answers

    def deliver_late(self, place: int) -> None:
        """Carry out one of the late commands."""
        if self.late:
            with suppress(ReplyError):
                self.server.execute(*self.late.pop(place % len(self.late)))


class _Client(FakeClient):
    def __init__(self, wire: Wire) -> None:
        super().__init__(wire.server)
        self._wire = wire

    def exchange(self, commands: Packed) -> Answers:
        return self._wire.exchange(commands, self._answer)


class Deployment:
    """A deployment whose servers are a test.

    Attributes:
        shown: of each user who is online, the status and the rooms, by the records.
    """

    def __init__(self, shards: int) -> None:
        self.keys = Keys(shards=shards)
        self.now = 0.0
        self.server = FakeRedis(lambda: START_S + self.now)
        self.wire = Wire(self.server)
        self.shown: dict[str, Shown] = {}
        self._names = 0
        self._event_ms = 0

    def projector(self) -> RoomProjector:
        """Return another projector."""
        self._names += 1
        return RoomProjector(
            "redis://fake",
            shards=self.keys.shards,
            events="all",
            connect=lambda _url: _Client(self.wire),  # type: ignore[arg-type,return-value] # as much of it as is used
            clock=lambda: self.now,
            name=f"projector{self._names}",
        )

    def show(self, uid: str, status: str, rooms: Iterable[str]) -> None:
        """Let a user be online in rooms with a status, or offline: with their event, if anything changed."""
        before = self.shown.get(uid)
        after: Shown | None = None if status == "offline" else (status, tuple(sorted(rooms)))
        if before == after:
            return
        self.now += 0.002  # a ms of its own
        shard = self.keys.shard(uid)
        fields = {"type": "update", "uid": uid, "at_ms": "0", "reason": "rooms"}
        if before is None:
            fields |= {"type": "online", "reason": "login"}
        if after is None:
            fields |= {"type": "offline", "reason": "logout", "rooms": " ".join(before[1] if before else ())}
            self.shown.pop(uid)
            self._run("HDEL", self.keys.online(shard), uid)
        else:
            fields["rooms"] = " ".join(after[1])
            if before and (left := sorted({*before[1]} - {*after[1]})):
                fields["rooms_left"] = " ".join(left)
            fields |= {"status": status} if status != "invisible" else {"invisible": "1"}
            self.shown[uid] = after
            self._write_record(shard, uid, *after)
            if after[1]:
                self._run("HSET", self.keys.shard_meta(shard), "rooms", "1")
        texts = [text for pair in fields.items() if pair[1] for text in pair]
        self._run("XADD", self.keys.events(shard), "*", *texts)

    def _write_record(self, shard: int, uid: str, status: str, rooms: tuple[str, ...]) -> None:
        session: dict[str, Any] = {"session": "s", "node": "n", "login_ms": 1}
        session |= {"away": True} if status == "away" else {} if status == "online" else {"status": status}
        session |= {"rooms": " ".join(rooms)} if rooms else {}
        record = {"id": "1-1", "since_ms": 1, "sessions": {"": session}}
        self._run("HSET", self.keys.online(shard), uid, json.dumps(record, separators=(",", ":")))

    def _run(self, *words: str) -> None:
        self.server.execute(*(word.encode() for word in words))

    # What may happen to a shard

    def keep(self, shard: int) -> tuple[dict[bytes, Value], dict[str, Shown]]:
        """Return what `lose` needs to take a shard back to this moment."""
        tag = b"{%d}" % shard
        data = {key: value.copy() for key, value in self.server.data.items() if tag in key}
        return data, {uid: each for uid, each in self.shown.items() if self.keys.shard(uid) == shard}

    def lose(self, shard: int, kept: tuple[dict[bytes, Value], dict[str, Shown]] = ({}, {})) -> None:
        """Take a shard back to a former moment; without one: to nothing."""
        tag, (data, shown) = b"{%d}" % shard, kept
        self.server.data = {key: value for key, value in self.server.data.items() if tag not in key}
        self.server.data |= {key: value.copy() for key, value in data.items()}
        self.shown = {uid: each for uid, each in self.shown.items() if self.keys.shard(uid) != shard} | shown
        self.now += 1.0  # a failover takes longer than clocks differ

    def trim(self, shard: int) -> None:
        """Trim the stream of users' events down to nothing."""
        stream = self.server.data.get(self.keys.events(shard).encode())
        if isinstance(stream, Stream):
            stream.ids.clear()
            stream.entries.clear()

    # What there is

    def expected(self) -> Members:
        """Return the members that the records say."""
        members: Members = {}
        for uid, (status, rooms) in self.shown.items():
            for room in rooms:
                members.setdefault(room, {})[uid] = LETTERS[status]
        return members

    def members(self) -> Members:
        """Return the members that the rooms have; counts, index and streams must agree with them."""
        rooms: Members = {}
        for shard in range(self.keys.shards):
            prefix, in_shard = self.keys.room_prefix(shard).encode(), {}
            told = self._told(shard)
            for key, value in self.server.data.items():
                if key.startswith(prefix):
                    assert isinstance(value, Hash)
                    in_shard[key.removeprefix(prefix).decode()] = value
            sizes = self.server.data.get(self.keys.room_sizes(shard).encode(), Sorted())
            assert isinstance(sizes, Sorted)
            assert {name.decode(): score for name, score in sizes.scores.items()} == {
                room: sum(not uid.startswith(b" ") for uid in value) for room, value in in_shard.items()
            }
            for room, value in in_shard.items():
                letters = {
                    uid.decode(): found[-1:].decode()
                    for uid, found in value.items()
                    if not uid.startswith(b" ")
                }
                assert letters  # an empty room leaves nothing
                assert int(value.get(b" i", b"0")) == sum(letter == "i" for letter in letters.values())
                assert value[b" o"].decode() == told[room][0]
                assert told.pop(room)[1] == letters.keys()
                rooms[room] = letters
            assert not any(uids for _, uids in told.values())
        return rooms

    def _told(self, shard: int) -> dict[str, tuple[str, set[str]]]:
        """Return, by the stream of rooms, the id of each room's last `occupied`, and its members."""
        stream = self.server.data.get(self.keys.room_events(shard).encode(), Stream())
        assert isinstance(stream, Stream)
        told: dict[str, tuple[str, set[str]]] = {}
        for (ms, n), words in zip(stream.ids, stream.entries, strict=True):
            texts = [word.decode() for word in words]
            entry = dict(zip(texts[::2], texts[1::2], strict=True))
            room, uid, kind = entry["room"], entry["uid"], entry["type"]
            since, uids = told.get(room, ("", set()))
            if kind == "occupied":
                assert not since, "occupied twice"
                assert entry["count"] == "1"
                told[room] = f"{ms}-{n}", uids
            elif kind == "vacated":
                assert since, "vacated twice"
                assert not uids
                assert entry["count"] == "0"
                told[room] = "", uids
            else:
                assert since or kind == "left"
                assert (uid in uids) == (kind == "left"), f"{kind} twice"
                uids ^= {uid}
                assert entry["count"] == str(len(uids))
                told.setdefault(room, (since, uids))
        return told

    def told_of(self, uid: str) -> list[tuple[str, str]]:
        """Return type and room of the entries of a user who joined or left, sorted by room, else in order."""
        found = []
        for shard in range(self.keys.shards):
            stream = self.server.data.get(self.keys.room_events(shard).encode(), Stream())
            assert isinstance(stream, Stream)
            for words in stream.entries:
                texts = [word.decode() for word in words]
                entry = dict(zip(texts[::2], texts[1::2], strict=True))
                if entry["uid"] == uid and entry["type"] in MEMBER_TYPES:
                    found.append((entry["type"], entry["room"]))
        return sorted(found, key=lambda each: each[1])
