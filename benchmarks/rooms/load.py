"""Users in rooms, written to Redis in batches as the outbox of a node does, without connections."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from loadtest.room_members import INVISIBLE, LETTERS, Members
from presence.core.changes import Change, Op
from presence.core.profiles import Profile
from presence.outbox.replies import ReplyStatus
from presence.outbox.steps import Batch, Counter, Item, Opening
from presence.protocol import Code
from presence.protocol.constants import Status
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape

NODE: Final = "bench"
IDLE_TIMEOUT_MS: Final = 30_000
STREAM_MAXLEN: Final = 10_000_000  # nothing is trimmed while it is counted
SEEN_RETENTION_MS: Final = 7 * 86_400_000
MARKS: Final[tuple[Status, ...]] = ("online", "away", "busy", "dnd")

Shown = tuple[Status, tuple[str, ...]]


class RoomLoad:
    """The sessions of one node, one a user; each change is what the outbox would send.

    Args:
        url: of a Redis without these keys.

    Attributes:
        shown: of each user who is online, the status and the rooms.
        changes: a projector has to apply so far: an event counts once for each of its rooms.
    """

    def __init__(self, url: str, keys: Keys) -> None:
        self.keys = keys
        self.shown: dict[str, Shown] = {}
        self.changes = 0
        self._sessions: dict[str, str] = {}
        self._next_session = 0
        self._waiting: list[list[Change]] = [[] for _ in range(keys.shards)]
        self._n = [0] * keys.shards
        self._replication_ids = [""] * keys.shards
        self._store = RedisStore(url, Shape(keys, STREAM_MAXLEN, SEEN_RETENTION_MS))
        self._store.check_meta()
        self._send([(shard, ()) for shard in range(keys.shards)])
        self._mark: Status = MARKS[0]
        self._markers = [
            (
                _name_of("marker", shard, keys),
                tuple(_name_of(f"marks-{shard}-", place, keys) for place in range(keys.shards)),
            )
            for shard in range(keys.shards)
        ]

    def close(self) -> None:
        self._store.close()

    def show(self, uid: str, rooms: Sequence[str], status: Status = "online") -> None:
        """Have a user in these rooms, and online if they were not; `write` writes it."""
        before, after = self.shown.get(uid), (status, tuple(sorted(rooms)))
        if before == after:
            return
        self.shown[uid] = after
        self.changes += len({*after[1], *(before[1] if before else ())})
        profile = Profile(status, rooms=" ".join(after[1]))
        if before is None:
            self._next_session += 1
            self._sessions[uid] = f"{self._next_session:016x}"
            self._add(Op.LOGIN, uid, Code.LOGIN, profile)
        else:
            self._add(Op.UPDATE, uid, Code.UPDATED, profile)

    def end(self, uid: str) -> None:
        """Have a user log out; `write` writes it."""
        self.changes += len(self.shown.pop(uid)[1])
        self._add(Op.END, uid, Code.LOGOUT, Profile())

    def _add(self, op: Op, uid: str, code: Code, profile: Profile) -> None:
        now_ms = time.time_ns() // 1_000_000
        session = self._sessions[uid] if op is not Op.END else self._sessions.pop(uid)
        change = Change(
            op, uid, "", session, code, time.monotonic(), now_ms, now_ms, IDLE_TIMEOUT_MS, profile
        )
        self._waiting[self.keys.shard(uid)].append(change)

    def write(self, batch: int) -> None:
        """Write what waits, in batches of that many changes to each shard."""
        while any(self._waiting):
            self._send([(shard, changes[:batch]) for shard, changes in enumerate(self._waiting) if changes])
            self._waiting = [changes[batch:] for changes in self._waiting]

    def _send(self, batches: Iterable[tuple[int, Sequence[Change]]]) -> None:
        steps = []
        for shard, changes in batches:
            self._n[shard] += 1
            opening = Opening(NODE) if self._n[shard] == 1 else None
            items = tuple(map(Item, changes))
            counter = Counter(NODE, 1, self._n[shard])
            steps.append(
                Batch(shard, counter, self._replication_ids[shard], items, time.monotonic(), opening=opening)
            )
        for step, reply in zip(steps, self._store.apply(steps), strict=True):
            if isinstance(reply, Exception):
                raise reply
            if reply.status is not ReplyStatus.OK:
                raise RuntimeError(f"a batch was refused: {reply.status}")
            self._replication_ids[step.shard] = reply.replication_id

    def mark(self) -> None:
        """Write a change that projectors have applied when they have applied all before it."""
        self._mark = MARKS[(MARKS.index(self._mark) + 1) % len(MARKS)]
        for uid, rooms in self._markers:
            self.show(uid, rooms, self._mark)
        self.write(1)

    def is_caught_up(self, client: Any) -> bool:
        """Whether rooms have the last mark, and so all before it."""
        pipe = client.pipeline(transaction=False)
        for uid, rooms in self._markers:
            for room in rooms:
                pipe.hget(self.keys.room(room), uid)
        letter = LETTERS[self._mark].encode()
        return all(value and value.endswith(letter) for value in pipe.execute())

    def expected(self) -> Members:
        """Return who is in which room."""
        found: Members = {}
        for uid, (status, rooms) in self.shown.items():
            for room in rooms:
                found.setdefault(room, {})[uid] = LETTERS.get(status, INVISIBLE)
        return found


def _name_of(prefix: str, shard: int, keys: Keys) -> str:
    """Return a name that belongs to a shard."""
    number = 0
    while keys.shard(f"{prefix}{number}") != shard:
        number += 1
    return f"{prefix}{number}"
