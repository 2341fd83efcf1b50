"""The comparison of the members of rooms with the records of users, which runs all the time.

Records are compared with members by `source_shard`, page by page. Members are compared with records here: a
member whose record lacks the room is removed, if nothing has changed it meanwhile.

A member that only has not left *yet* is no difference. With the record the last entry of its shard is read;
once the rooms have all events up to there, a value that is still the same was wrong. So the order is: value,
record and last entry, position, removal if the value is the same. A rebuild skips events, and finds its
members with the values of before: so a record of before its epoch says nothing any more.

A walk over members begins again on another connection, to which its cursors mean nothing.

Tests: `tests/rooms/test_projector.py`, `tests/rooms/test_comparison.py`.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final
from zlib import crc32

from presence.common.loop_calls import Pacer
from presence.rooms.counters import RoomCounters
from presence.rooms.script_calls import (
    ANY_POSITION,
    MAX_RECORDS_PER_CALL,
    REMOVALS,
    in_calls,
    records_call,
    unpacked,
)
from presence.store.keys import Keys
from presence.store.records import online_state
from presence.store.script_runner import Call, Scripting

COMPARISON: Final = b"comparison"  # the reason of entries
ROOMS_PER_STEP: Final = 10
MEMBERS_PER_SCAN: Final = 50  # of a room, roughly; one of some hundred members comes as a whole
WANTED_FACTOR: Final = 10  # of both, in a walk that is wanted
MAX_SUSPECTS: Final = 10_000  # others are found again by the next walk
PATIENCE_S: Final = 15.0  # with suspects: above two checkpoints; then the last entry may be lost itself
_ROOMS: Final = re.compile(rb'"rooms":"([^"\\]*)"')
_LETTERS: Final = {"online": b"-", "away": b"a", "busy": b"b", "dnd": b"d"}

_Member = tuple[bytes, bytes, bytes]  # room, uid, value
_Suspect = tuple[int, bytes, _Member]  # source, and the position there that has all that the record has


def order(entry_id: bytes) -> tuple[int, int]:
    """Return the sort key of an entry id, or of a position."""
    ms, _, n = entry_id.partition(b" ")[0].partition(b"-")
    return int(ms), int(n)


def rooms_in(record: bytes) -> tuple[bytes, list[bytes]]:
    """Return the letter of a user's status and the rooms of all sessions, by the record; none if damaged."""
    state = online_state(record)
    if state is None:
        return b"-", []
    letter = b"i" if "invisible" in state else _LETTERS[state["status"]]
    return letter, [room.encode() for room in state.get("rooms", ())]


def is_in(record: bytes, room: bytes) -> bool:
    """Whether a session is in the room, by the record.

    Most users are, and it is seen in the text: no other text of a record has these quotes without backslashes
    before them. Parsing it takes ten times as long.
    """
    return any(room in text.split() for text in _ROOMS.findall(record)) or room in rooms_in(record)[1]


class MemberWalk:
    """A walk over the members of all rooms of a shard, in steps.

    Args:
        shard: of the rooms.
        project: returns a call of project.lua, as `project_call` does for some keys.
        counters: of the projector.

    Attributes:
        token: the walk that is wanted; b"": it is one of those that run all the time.
        removed: members, since it began, and by the wanted ones that it interrupted.
    """

    def __init__(self, keys: Keys, shard: int, project: Callable[..., Call], counters: RoomCounters) -> None:
        self._keys = keys
        self._shard = shard
        self._sizes = keys.room_sizes(shard)
        self._project = project
        self._counters = counters
        self._suspects: list[_Suspect] = []
        self._restart(b"")

    def _restart(self, token: bytes, removed: int = 0) -> None:
        self.token = token
        self._cursor: bytes | None = b"0"  # of the index of rooms; None: all were read
        self._connection: int | None = None  # whose cursors these are; None: there are none yet
        self._rooms: deque[tuple[bytes, bytes]] = deque()  # with the cursor in each
        self._waits_from: float | None = None  # only for positions
        self.removed = removed

    def begin(self, token: bytes) -> None:
        """Begin the walk that is wanted, unless it has begun."""
        if self.token != token or self._is_complete:
            self._restart(token, self.removed if self.token and not self._is_complete else 0)

    @property
    def has_more(self) -> bool:
        """Whether there are members to be compared; if not, it waits for positions, if for anything."""
        return bool(self._rooms) or self._cursor is not None

    def step(self, scripting: Scripting, now: float) -> bool:
        """Compare some members; return whether the walk is complete. A failed step may be repeated.

        After the last step another walk begins, which is not one that is wanted. So does the same walk, if
        suspects wait for too long.

        Raises:
            StoreUnavailable, StoreError: Redis does not answer, or refuses.
        """
        if self._is_complete:
            self._restart(b"")
        if not self.has_more:
            self._waits_from = now if self._waits_from is None else self._waits_from
            if now - self._waits_from > PATIENCE_S:
                self._suspects.clear()
                self._restart(self.token)
        factor = WANTED_FACTOR if self.token else 1
        if not self._rooms and self._cursor is not None:
            scan = ("ZSCAN", self._sizes, self._cursor, "COUNT", ROOMS_PER_STEP * factor)
            ((cursor, found),) = scripting.commands(self._sizes, [scan])
            if self._begins_again(scripting):
                return False
            self._rooms.extend((room, b"0") for room in found[::2])
            self._cursor = None if cursor == b"0" else cursor
        if self._rooms:
            self._compare(scripting, ROOMS_PER_STEP * factor, MEMBERS_PER_SCAN * factor)
        if self._suspects:
            self._remove(scripting)
        return self._is_complete

    @property
    def _is_complete(self) -> bool:
        return not self.has_more and not self._suspects

    def _compare(self, scripting: Scripting, rooms: int, members: int) -> None:
        """Look for members whose records lack the room."""
        some = [self._rooms[i] for i in range(min(rooms, len(self._rooms)))]
        prefix = self._keys.room_prefix(self._shard).encode()
        answers = scripting.commands(
            self._sizes, [("HSCAN", prefix + room, cursor, "COUNT", members) for room, cursor in some]
        )
        if self._begins_again(scripting):
            return
        by_source: dict[int, list[_Member]] = {}
        for (room, _), (_, fields) in zip(some, answers, strict=True):
            for uid, value in zip(fields[::2], fields[1::2], strict=True):
                if uid[:1] != b" ":
                    by_source.setdefault(crc32(uid) % self._keys.shards, []).append((room, uid, value))
        self._suspects += self._missing(scripting, by_source)
        for (room, _), (cursor, _) in zip(some, answers, strict=True):
            self._rooms.popleft()
            if cursor != b"0":
                self._rooms.append((room, cursor))

    def _begins_again(self, scripting: Scripting) -> bool:
        """Begin again if the cursors come from another connection than the last answers; return whether."""
        connection = scripting.connection_number(self._sizes)
        if connection is not None and self._connection in {None, connection}:
            self._connection = connection
            return False
        self._restart(self.token, self.removed)
        return True

    def _missing(self, scripting: Scripting, by_source: dict[int, list[_Member]]) -> list[_Suspect]:
        parts = [
            (source, some[first : first + MAX_RECORDS_PER_CALL])
            for source, some in by_source.items()
            for first in range(0, len(some), MAX_RECORDS_PER_CALL)
        ]
        calls = [records_call(self._keys, source, [uid for _, uid, _ in some]) for source, some in parts]
        suspects: list[_Suspect] = []
        pacer = Pacer()
        for (source, some), (last, *records) in zip(parts, _answers(scripting, calls), strict=True):
            for member, record in zip(some, records, strict=True):
                pacer.note(len(record))
                if not record or not is_in(record, member[0]):
                    suspects.append((source, last, member))
        return suspects[: MAX_SUSPECTS - len(self._suspects)]

    def _remove(self, scripting: Scripting) -> None:
        """Remove the suspects whose rooms have all events that their records have; keep the others."""
        sources = self._keys.room_sources(self._shard)
        names = sorted({source for source, *_ in self._suspects})
        (positions,) = scripting.commands(sources, [("HMGET", sources, *names)])
        known: dict[int, bytes] = dict(zip(names, positions, strict=True))
        ready: dict[tuple[int, bytes], dict[bytes, list[bytes]]] = {}  # by source and position
        early: list[_Suspect] = []
        for suspect in self._suspects:
            source, wanted, (room, uid, value) = suspect
            last, _, epoch = wanted.partition(b" ")
            found = known.get(source)
            if not found or order(found) < order(last):
                early.append(suspect)
            else:
                items = ready.setdefault((source, ANY_POSITION + b" " + epoch), {}).setdefault(room, [])
                items += (uid, value, last, COMPARISON)
        calls = [
            self._project(self._shard, source, position=position, to=position, groups=groups, kind=REMOVALS)
            for (source, position), items in ready.items()
            for groups in in_calls(items)
        ]
        for status, *numbers in _answers(scripting, calls):
            if status != b"ok":  # a rebuild has begun; the next walk sees what has become of them
                continue
            self._counters.add(numbers)
            self.removed += numbers[4]
            self._counters.differences += 0 if self.token else numbers[4]
        self._suspects = early


def _answers(scripting: Scripting, calls: Iterable[Call]) -> list[Any]:
    """Return the answers of scripts; raise the first failure."""
    answers = scripting.evaluate([*calls])
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return [unpacked(answer) for answer in answers]
