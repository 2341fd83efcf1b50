"""One source shard as its projector sees it: what was read of it, and what each room shard has of it.

Pure: it is given the answers and the time, and returns the calls to make.

Each room shard keeps a *position* per source, "<id> <epoch>", in the same hash slot as its rooms. A call with
changes names the position that it continues and the one that it leaves, so it is applied once, no matter who
sends it, or how often. The projector reads again from the lowest position, and each room shard gets what is
after its own. All that is unexpected has one answer: forget everything, and begin as a new projector does,
from what Redis has. So safety does not rest on the lease.

- A position other than expected: another projector, or a late call, was ahead. `forget`.
- A room shard without a position of this epoch, or with one before the checkpoint, has lost data: rebuild.
- The entry of the cursor, or of the highest position, is missing: the source has lost data, or entries were
  trimmed: rebuild.
- A room shard that does not answer gets nothing more; the others go on. When it answers again, reading goes
  back to its position. Checkpoints and pages of the comparison wait for it.

A *rebuild* begins a new epoch at the last entry, lets all room shards continue there, reads the records of
all users, and has the members of all rooms compared with the records. The records are read page by page, all
on one connection: the cursor of a page means nothing to another server, or after a restart.

Tests: `tests/rooms/test_projector.py`.
"""

import random
from collections import deque
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from zlib import crc32

from presence.common.backoff import backoff_s, jittered
from presence.rooms.comparison import COMPARISON, order, rooms_in
from presence.rooms.counters import RoomCounters
from presence.rooms.script_calls import (
    BEGIN,
    EVENTS,
    ITEM,
    PAGE_USERS,
    REBUILD_PAGE_USERS,
    RECORDS,
    RESET,
    in_calls,
)
from presence.store.shard_job import RETRY_FIRST_S, RETRY_MAX_S

POLL_FIRST_S: Final = 0.02  # after events: those that come meanwhile share a read
POLL_LIMIT_S: Final = 0.1  # between two reads of an idle shard
CHECKPOINT_INTERVAL_S: Final = 5.0
EVENTS_PER_CHECKPOINT: Final = 5000  # are read again at most, by another projector
PAGE_INTERVAL_S: Final = 1.0  # of the comparison of records with members
BUSY_JITTER_S: Final = 0.3  # spreads the projectors that wait for one that died
UNKNOWN: Final = b"?"  # never a position: a call that continues it learns the position


class SourceRead(NamedTuple):
    """An answer of read.lua."""

    cursor: bytes
    n_events: int
    is_end: bool
    is_gap: bool
    users_have_rooms: bool
    rebuild: bytes
    walk: bytes
    rooms: int
    members: int
    now_ms: bytes
    first_id: bytes
    groups: list[Any]
    next_page: bytes
    page: list[bytes]


@dataclass(slots=True)
class _Chunk:
    """Rooms of one shard with their items, as project.lua takes them; it has all events up to `to` then."""

    to: bytes
    groups: list[Any] = field(default_factory=list)
    kind: str = EVENTS
    walk: bytes = b""


@dataclass(slots=True)
class _RoomShard:
    """What a source knows of one room shard."""

    position: bytes | None = None  # the text, as the shard said last; None: to be asked for
    highest: bytes = b""  # id of the highest position in this epoch; "": none yet
    retry_at: float = 0.0
    failures: int = 0
    chunks: deque[_Chunk] = field(default_factory=deque)


@dataclass(slots=True)
class Outgoing:
    """A call of project.lua to make: for a room shard, from a position to another."""

    place: int
    position: bytes
    to: bytes
    groups: list[Any] = field(default_factory=list)
    kind: str = EVENTS
    walk: bytes = b""


class SourceShard:
    """What the projector knows of a source shard, and does for it next.

    Args:
        shard: of the users.
        shards: number of shards.
        counters: of the projector.

    Attributes:
        due: when it is to be read next.
        walk: token of a comparison of members with records that is wanted in the rooms of this shard.
        is_active: whether this projector has its lease, as far as it knows.
        rooms, members: of the rooms of this shard.
        lag_s: how old the oldest event of the latest read was.
        passed_on_at: when every room shard had all that was read, last.
        news: of rebuilds, to be logged: whether one has ended, and fields.
    """

    def __init__(self, shard: int, shards: int, counters: RoomCounters) -> None:
        self.shard = shard
        self.due = 0.0
        self.rooms = self.members = 0
        self.lag_s = self.passed_on_at = 0.0
        self.news: list[tuple[bool, dict[str, Any]]] = []
        self.page_interval_s = PAGE_INTERVAL_S
        self._counters = counters
        self._room_shards = [_RoomShard() for _ in range(shards)]
        self._epoch = b""
        self._poll_s = POLL_LIMIT_S
        self.forget()

    def forget(self) -> None:
        """Forget what may be outdated; the next read begins anew."""
        self.is_active = False
        self.cursor = BEGIN
        self._resets = ""  # why a rebuild is to begin; "": none is
        self._rebuild = b""  # the token of the rebuild under way
        self._is_new_epoch = False  # begun by this projector
        self._has_begun = False
        self._start = b""  # all events after it can be read
        self._must_exist = b""
        self._users_have_rooms = False
        self._page: bytes = b"0"  # of the comparison,
        self._page_connection: int | None = None  # whose cursor this is
        self._page_at = self._checkpoint_at = 0.0
        self._since_checkpoint = 0
        self._walk_due = False
        self.walk = b""
        self._walked = b""  # the last `walk` that is complete
        self._sent: set[str] = set()  # what this run has sent to all room shards
        self._failed = False  # whether one did not get it
        self._stored: list[Any] = []
        self._finished = b""
        for each in self._room_shards:
            each.position, each.retry_at = None, 0.0
            each.chunks.clear()

    # Reading

    def read_arguments(self, now: float) -> dict[str, Any]:
        """Return the arguments of the next call of read.lua, from the cursor on."""
        if self._resets or self.cursor == BEGIN:
            cursor = RESET if self._resets else BEGIN
            return {"cursor": cursor, "epoch": b"%016x" % random.getrandbits(64)}
        is_page_due = self._users_have_rooms and now >= self._page_at
        has_page = self._is_ready() and (bool(self._rebuild) or is_page_due) and not self._walk_due
        return {
            "cursor": self.cursor,
            "epoch": self._epoch,
            "stored": self._stored,
            "finished": self._finished,
            "must_exist": self._must_exist,
            "page": self._page if has_page else b"",
            "page_users": REBUILD_PAGE_USERS if self._rebuild else PAGE_USERS,
        }

    def process(
        self, answer: list[Any], now: float, arguments: dict[str, Any], connection: int | None
    ) -> None:
        """Process an answer of read.lua; `connection`: see `Scripting.connection_number`."""
        status, *values = answer
        self.due = now
        if not self.is_active:
            self.passed_on_at = now
        self._failed = False
        if status == b"busy":
            self.forget()
            self._counters.busy += 1
            self.due = now + values[0] / 1000 + random.uniform(0, BUSY_JITTER_S)  # noqa: S311 - spreads load
        elif status == b"lost":
            self.forget()
        elif status == b"begun":
            self._begin(*values)
        elif status == b"reset":
            self._begin_rebuild(arguments["epoch"], *values, now=now)
        else:
            self._process_read(now, SourceRead(*values), connection)

    def _begin(self, cursor: bytes, epoch: bytes, begun: bytes, rebuild: bytes) -> None:
        self.forget()
        if epoch != self._epoch:
            self._enter_epoch(epoch)
        self.is_active = True
        self.cursor = self._start = cursor
        self._has_begun = begun == b"1"
        self._resets = "wanted" if rebuild else ""

    def _enter_epoch(self, epoch: bytes) -> None:
        self._epoch = epoch
        for each in self._room_shards:
            each.highest = b""

    def _begin_rebuild(self, epoch: bytes, cursor: bytes, rebuild: bytes, *, now: float) -> None:
        self._counters.rebuilds += 1
        self.news.append((False, {"shard": self.shard, "why": self._resets}))
        self.forget()
        self._enter_epoch(epoch)
        self.is_active = self._is_new_epoch = True
        self.cursor = self._start = cursor
        self._rebuild, self._rebuild_began = rebuild, now
        self._users = self._differences = 0

    def _process_read(self, now: float, read: SourceRead, connection: int | None) -> None:
        self.rooms, self.members = read.rooms, read.members
        if b"walked" not in self._stored and read.walk == self._walked:
            self._walked = b""  # Redis has lost that it is complete
        self.walk = read.walk if read.walk != self._walked else b""
        if read.is_gap or (self._users_have_rooms and not read.users_have_rooms):
            self._counters.gaps += 1
            self._resets = "gap"
            return
        self._stored, self._finished = [], b""
        if read.rebuild not in {b"", self._rebuild}:
            self._resets = "wanted"
            return
        if read.users_have_rooms and not self._users_have_rooms:
            self._checkpoint_at = now
        self._users_have_rooms, self._must_exist, self.cursor = read.users_have_rooms, b"", read.cursor
        self._counters.events += read.n_events
        self._since_checkpoint += read.n_events
        oldest_ms = order(read.first_id)[0] if read.first_id else 0
        self.lag_s = max(0.0, (int(read.now_ms) - oldest_ms) / 1000) if oldest_ms else 0.0
        self._queue_events(read.groups, read.first_id)
        if read.next_page and (self._page == b"0" or connection == self._page_connection is not None):
            self._page_connection = connection
            self._queue_page(read.page, read.next_page)
            self._page_at = now + self.page_interval_s
        elif read.next_page:  # from another connection than the cursor
            self._page, self._users = b"0", 0
        if self._is_ready():
            self._queue_for_all(now)
        if read.is_end and not (self._rebuild and self._is_ready()):
            self._poll_s = POLL_FIRST_S if read.n_events else min(POLL_LIMIT_S, 2 * self._poll_s)
            self.due = now + self._poll_s

    def _queue_events(self, groups: list[Any], first_id: bytes) -> None:
        """Queue what events mean for each room shard that answers, without what it has already."""
        shards = len(self._room_shards)
        queued: dict[int, list[Any]] = {}
        known: dict[int, tuple[int, int]] = {}  # positions, where they are not before all these events
        for place, each in enumerate(self._room_shards) if groups else ():
            if each.position and self._is_placed(each):
                queued[place] = []
                if order(each.position) >= order(first_id):
                    known[place] = order(each.position)
        first = 0
        while first < len(groups):
            room, size = groups[first : first + 2]
            place, last = crc32(room) % shards, first + 2 + size
            if place in known:
                items = _later(groups[first + 2 : last], known[place])
                queued[place] += (room, len(items), *items)
            elif place in queued:
                queued[place] += groups[first:last]
            first = last
        for place, some in queued.items():
            if some:
                self._room_shards[place].chunks.append(_Chunk(self.cursor, some))

    def _queue_page(self, page: list[bytes], next_page: bytes) -> None:
        """Queue what records say; they are the state after the cursor."""
        found: list[dict[bytes, list[bytes]]] = [{} for _ in self._room_shards]
        at_ms = self.cursor.partition(b"-")[0]
        for uid, record in zip(page[::2], page[1::2], strict=True):
            letter, rooms = rooms_in(record)
            for room in rooms:
                items = found[crc32(room) % len(found)].setdefault(room, [])
                items += (uid, self.cursor + b" " + letter, at_ms, COMPARISON)
        for each, some in zip(self._room_shards, found, strict=True):
            each.chunks += (_Chunk(self.cursor, groups, RECORDS) for groups in in_calls(some))
        self._next_page = next_page
        self._users = self._users + len(page) // 2 if self._rebuild else 0
        self._sent.add("page")

    def _queue_for_all(self, now: float) -> None:
        """Queue what every room shard gets if it is due: a checkpoint, or a token."""
        is_due = now >= self._checkpoint_at or self._since_checkpoint >= EVENTS_PER_CHECKPOINT
        if not (self._walk_due or (is_due and (self._users_have_rooms or self._rebuild))):
            return
        self._sent.add("checkpoint")
        self._checkpoint_at = now + jittered(CHECKPOINT_INTERVAL_S)
        if self._walk_due:
            self._sent.add("walk")
        # The epoch tells comparisons apart: several shards, or one that begins again, rebuild for one wish.
        walk = self._epoch if self._walk_due else b""
        for each in self._room_shards:
            each.chunks.append(_Chunk(self.cursor, walk=walk))

    def _is_ready(self) -> bool:
        """Whether every room shard answers and has its position."""
        return all(self._is_placed(each) for each in self._room_shards)

    @property
    def is_rebuilding(self) -> bool:
        """Whether a rebuild is under way, or is to begin."""
        return self.is_active and bool(self._rebuild or self._resets or self._finished)

    def _is_placed(self, each: _RoomShard) -> bool:
        return each.position is not None and each.position.endswith(b" " + self._epoch)

    # Sending

    def outgoing(self, now: float, away: Container[int]) -> Iterator[Outgoing]:
        """Yield the next call to each room shard that is not away, if there is one."""
        if self._resets or self.cursor == BEGIN:
            return
        for place, each in enumerate(self._room_shards):
            if each.retry_at > now or place in away:
                continue
            if each.position is None:
                yield Outgoing(place, UNKNOWN, UNKNOWN)
            elif not self._is_placed(each):
                yield Outgoing(place, each.position, self._position(self._start))
            elif each.chunks:
                chunk = each.chunks[0]
                to = max(chunk.to, each.position.partition(b" ")[0], key=order)
                yield Outgoing(place, each.position, self._position(to), chunk.groups, chunk.kind, chunk.walk)

    def _position(self, entry_id: bytes) -> bytes:
        return entry_id + b" " + self._epoch

    def lost(self, place: int) -> None:
        """Note that a room shard does not answer; it may have carried out a call."""
        each = self._room_shards[place]
        each.chunks.clear()
        each.position = None
        self._failed = True

    def refused(self, place: int, now: float) -> None:
        """Note that a room shard has refused a call; the next one waits."""
        self.lost(place)
        each = self._room_shards[place]
        each.retry_at = now + jittered(backoff_s(each.failures, RETRY_FIRST_S, RETRY_MAX_S))
        each.failures += 1

    def answered(self, call: Outgoing, answer: list[Any]) -> None:
        """Process an answer of project.lua."""
        if self.cursor == BEGIN:  # another answer of the same run has led to `forget`
            return
        each, (status, *values) = self._room_shards[call.place], answer
        each.retry_at, each.failures = 0.0, 0
        if status == b"ok":
            if self._is_placed(each):
                each.chunks.popleft()
                each.position, each.highest = call.to, call.to.partition(b" ")[0]
            else:
                self._go_on(each, call.to)
            self._counters.add(values)
            if self._rebuild:
                self._differences += values[4]
            else:
                self._counters.differences += values[4]
        elif call.position != UNKNOWN:
            self.forget()
            self.due = 0.0
        else:
            self._learn(each, values[0])

    def _learn(self, each: _RoomShard, position: bytes) -> None:
        """Process the position of a room shard that was asked for it."""
        each.position = position
        if self._is_placed(each):
            lowest = max(self._start, each.highest or self._start, key=order)
            if order(position) < order(lowest):
                self._want_reset("positions")
            else:
                self._go_on(each, position)
        elif each.highest or not (self._is_new_epoch or (position == b"" and not self._has_begun)):
            self._want_reset("positions")

    def _want_reset(self, why: str) -> None:
        self._resets, self.due = why, 0.0

    def _go_on(self, each: _RoomShard, position: bytes) -> None:
        """Go on with a room shard from its position, which is of this epoch."""
        each.position, each.highest = position, position.partition(b" ")[0]
        if order(each.highest) < order(self.cursor):
            self.cursor = each.highest
        elif order(each.highest) > order(max(self.cursor, self._must_exist or self.cursor, key=order)):
            self._must_exist = each.highest

    def settle(self, now: float) -> None:
        """Note what every room shard has now, after all calls of a run."""
        sent, self._sent = self._sent, set()
        if self._failed or self._resets or not self.is_active or not self._is_ready():
            return
        self.passed_on_at = now
        if "page" in sent:
            self._page = self._next_page
            self._walk_due = bool(self._rebuild) and self._page == b"0"
        if "checkpoint" in sent:
            self._has_begun, self._since_checkpoint = True, 0
            self._stored += [b"cursor", self.cursor, b"begun", b"1"]
        if "walk" in sent:
            self._finish_rebuild(now)

    def note_walked(self, token: bytes, removed: int) -> None:
        """Note that the members of the rooms of this shard were compared with records, as was wanted."""
        self._walked, self.walk = token, b""
        self._stored += [b"walked", token, b"dropped", str(removed).encode()]

    def _finish_rebuild(self, now: float) -> None:
        took_s = now - self._rebuild_began
        self._finished, self._rebuild, self._walk_due = self._rebuild, b"", False
        told = {"users": self._users, "differences": self._differences}
        for name, value in {**told, "ms": round(took_s * 1000)}.items():
            self._stored += [name.encode(), str(value).encode()]
        self.news.append((True, {"shard": self.shard, **told, "s": round(took_s, 2)}))


def _later(items: list[bytes], position: tuple[int, int]) -> list[bytes]:
    """Return the items of a room that are by later events."""
    return [
        value
        for first in range(0, len(items), ITEM)
        if order(items[first + 1]) > position
        for value in items[first : first + ITEM]
    ]
