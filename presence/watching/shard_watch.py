"""The watch over one shard: what of it is to be subscribed to, read, recovered and compared next.

It has no task and no connection of its own: `presence.watching.server_watch` asks it for one step after the
other, over a channel that the shards of a server share. In turn it recovers what was missed after a loss,
reads the records of newly watched users, and compares known states with their records, each user at most
every `COMPARE_CYCLE_S`: a safety net below published events, which are delivered at most once.

A shard is followed as a whole from `max_user_channels` watched users on, and by a channel for each user again
when it has had less than half of that for `LINGER_S`.

Reads of known users can be many at once: those of a million users take each Redis seconds, and so they are
spread over time, for all shards of a worker together, and where it matters for all workers (`ReadPaces`).

Tests: `tests/watching/test_watch_service.py`, `tests/watching/test_shard_placement.py`,
`tests/watching/test_whole_shards.py`.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import trio

from presence.common.faults import Faults
from presence.watching.channel import ServerChannel, ShardJoined, Subscribed, Unsubscribed
from presence.watching.known_states import KnownStates
from presence.watching.shard_view import ShardView, ViewPhase
from presence.watching.user_states import EntryId, ShardSnapshot, UserEvent, read_change

MAX_USERS_PER_SNAPSHOT: Final = 500  # in one transaction: 1.5 ms of Redis, and 6 of the worker
MAX_USERS_PER_COMPARISON: Final = 500  # of one shard, in one read
COMPARE_INTERVAL_S: Final = 1.0  # between two comparisons of one shard; a full cycle takes at least
COMPARE_CYCLE_S: Final = 30.0
# Users, by a worker: a million take half an hour, and 54 workers 80 ms of Redis a second.
MAX_COMPARED_PER_S: Final = 500
# Users, by a worker: a million take 200 s at the earliest, and 0.06 of a processor of the worker.
MAX_REREAD_PER_PACE: Final = 500
# Users, by all workers together, in about equal parts: 0.3 s of Redis each second, at 3 us per user. After it
# has lost data all workers read at the same time, and the rest is for transitions, which are more than usual.
ALL_REREAD_PER_PACE: Final = 10_000
MIN_REREAD_PER_PACE: Final = 50  # users, by a worker, however many workers there are
REREAD_PACE_S: Final = 0.1
LINGER_S: Final = 30.0  # after its last user a shard stays subscribed to
MAX_REPLAY_ENTRIES: Final = 20_000  # beyond, reading the users' records is cheaper
REPLAY_INTERVAL_S: Final = 0.2  # between replays of a shard for entries that its channel lacked
MAX_USERS_PER_TURN: Final = 500  # forgotten, or told to be known, without a turn for other tasks
MAX_DEFERRED_PER_TURN: Final = 100  # events applied after a recovery: a millisecond or two


class ReadPace:
    """Lets a worker read only so many users per period for one purpose.

    `users` returns how many; it is called in each period.
    """

    def __init__(self, users: Callable[[], int], seconds: float) -> None:
        self._users = users
        self._left = 1  # no period has begun
        self._seconds = seconds
        self._began = -math.inf  # the present period

    @property
    def free_at(self) -> float:
        """When some may be read again."""
        return -math.inf if self._left > 0 else self._began + self._seconds

    @property
    def most(self) -> int:
        """How many users may be read in one read."""
        return min(self._users(), MAX_USERS_PER_SNAPSHOT)

    def charge(self, users: int, now: float) -> None:
        """Record that users are read, `most` at most."""
        if now >= self._began + self._seconds:
            self._began, self._left = now, self._users() + min(self._left, 0)
        self._left -= users


class ReadPaces:
    """How fast a worker reads the records of known users, of all shards together.

    `live_nodes` returns how many workers share Redis, this one included, as far as it is known.
    """

    def __init__(self, live_nodes: Callable[[], int] = lambda: 1) -> None:
        self.compared = ReadPace(lambda: MAX_COMPARED_PER_S, 1.0)
        self.reread = ReadPace(lambda: reread_share(live_nodes()), REREAD_PACE_S)


def reread_share(nodes: int) -> int:
    """Return how many known users each of some workers may read again in `REREAD_PACE_S`."""
    return min(MAX_REREAD_PER_PACE, max(MIN_REREAD_PER_PACE, ALL_REREAD_PER_PACE // max(nodes, 1)))


@dataclass(slots=True)
class ShardStatistics:
    """Counters since the start."""

    connections: int = 0  # made, or joined
    losses: int = 0  # of a connection, or of the server of the shard
    switches: int = 0  # between following the whole shard and its users
    looks: int = 0  # reads of newly watched users
    replays: int = 0  # losses recovered from the stream
    rereads: int = 0  # losses recovered from all records, because the stream did not reach back
    walked: int = 0  # users compared


@dataclass(slots=True)
class _Recovery:
    """A recovery under way: of the stream, and if that is impossible of the records."""

    heard_from: EntryId  # what was received before it began starts after this entry, so the entry exists
    entries: int = 0  # replayed
    cursor: int = 0  # of the walk over the users
    position: EntryId | None = None  # the lowest of those of the records read


class ShardWatch:
    """Watches the users of one shard.

    `known` has no user yet. `push` is called with each change, `ready` with users whose states have become
    known. `absence_s`: see `ShardView`. With more than `max_user_channels` users the whole shard is followed.
    `paces`: of the worker.

    Attributes:
        failures: losses in a row.
        retry_at: before this time the shard is not looked for again.
        compare_due: when the next users of it are to be compared.
    """

    def __init__(
        self,
        number: int,
        known: KnownStates,
        absence_s: float,
        push: Callable[[UserEvent], None],
        ready: Callable[[Iterable[str]], None],
        *,
        max_user_channels: int,
        paces: ReadPaces,
        faults: Faults,
    ) -> None:
        self.number = number
        self._faults = faults
        self._push = push
        self._ready = ready
        self._max_user_channels = max_user_channels
        self._paces = paces
        self.view = ShardView(known, absence_s)
        self.statistics = ShardStatistics()
        self.failures = 0
        self.retry_at = -math.inf
        self._awaited: dict[str, None] = {}  # users that were not known when they were wanted
        self._recovery: _Recovery | None = None
        self._replay_due = -math.inf
        self._cursor = 0  # of the comparison
        self.compare_due = self._cycle_began = 0.0
        self._empty_since: float | None = None  # when it was first found without users
        self._few_since: float | None = None  # when it was found with few users, being followed whole
        self._absence_s = absence_s

    def want(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self.view.want(uid)
            if self.view.is_current(uid):  # it was about to be forgotten
                self._ready((uid,))
            else:
                self._awaited[uid] = None

    def drop(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._awaited.pop(uid, None)
            self.view.drop(uid)

    # The channel

    @property
    def is_whole(self) -> bool:
        """Whether the whole shard is followed, on the present channel."""
        return self.view.is_whole and self.view.phase is not ViewPhase.DOWN

    def joined(self, now: float) -> None:
        """Begin to use a channel, on which nothing of the shard is subscribed to yet."""
        self.statistics.connections += 1
        self._recovery, self._replay_due = None, -math.inf
        self._cursor = 0
        self.compare_due, self._empty_since = now + COMPARE_CYCLE_S, None
        users, self._few_since = len(self.view), None
        stays_whole = self.view.is_whole and users > self._max_user_channels // 2
        self.view.connected(whole=stays_whole or users > self._max_user_channels)

    def left(self) -> None:
        """Record that the channel is no longer used."""
        self._recovery = None
        self.view.lost()

    def must_switch(self, now: float) -> bool:
        """Whether the shard is to leave the channel and to join again, to be followed in the other way."""
        users = len(self.view)
        if not self.view.is_whole or users > self._max_user_channels // 2:
            self._few_since = None
            is_due = not self.view.is_whole and users > self._max_user_channels
        else:
            if self._few_since is None:
                self._few_since = now
            is_due = now >= self._few_since + LINGER_S
        return is_due and self.view.phase is ViewPhase.LIVE

    def handle(self, message: UserEvent | Subscribed | Unsubscribed | ShardJoined) -> bool:
        """Apply a message; return whether `step` may have something to do."""
        match message:
            case UserEvent():
                self._receive(message)
                return False
            case Subscribed():
                self.view.subscribed(message.uid)
            case Unsubscribed():
                self.view.unsubscribed(message.uid)
            case ShardJoined():
                self.view.shard_joined()
        return True

    def hear(self, uid: str, event: bytes) -> bool:
        """Apply an event of a message of the whole shard; return whether its user is watched."""
        if uid not in self.view:
            return False
        if (entry := read_change(uid, event)) is not None:
            self._receive(entry)
        return True

    def _receive(self, entry: UserEvent) -> None:
        with self._faults.contained("watch event"):
            if (change := self.view.receive(entry)) is not None:
                self._push(change)

    def must_read(self, now: float) -> bool:
        """Whether `step` reads something now."""
        if self.view.phase is ViewPhase.RECOVERING:
            return self._recovery_due <= now or self._reads_early
        return bool(self.view.users_to_read(1))

    @property
    def _reads_early(self) -> bool:
        """Whether users who are asked for are read first: the records of all may take a minute.

        Not in the other way of following, in which those few users may not be subscribed to yet.
        """
        return self.view.is_rereading and self.view.is_whole and bool(self._awaited)

    @property
    def _recovery_due(self) -> float:
        return self._paces.reread.free_at if self.view.is_rereading else self._replay_due

    def due_at(self, now: float) -> float:
        """Return when the shard next needs a recovery, a comparison or a switch, or has lingered."""
        if not len(self.view):
            if self._empty_since is None:
                self._empty_since = now
            return self._empty_since + LINGER_S
        self._empty_since = None
        if self.view.phase is ViewPhase.RECOVERING:
            return self._recovery_due
        due = max(self.compare_due, self._paces.compared.free_at)
        if self.view.phase is ViewPhase.LIVE:
            if self._few_since is not None:
                due = min(due, self._few_since + LINGER_S)
            if (since := self.view.absent_since()) is not None:
                due = min(due, max(since + self._absence_s, self._paces.reread.free_at))
        return due

    def has_lingered(self, now: float) -> bool:
        """Whether no user has been watched for `LINGER_S`."""
        return not len(self.view) and self._empty_since is not None and now >= self._empty_since + LINGER_S

    # Reads

    async def step(self, channel: ServerChannel, call: Callable[[Any], Awaitable[Any]]) -> None:
        """Do the next part of a recovery, or read newly watched users, which makes them known."""
        if self.view.phase is ViewPhase.RECOVERING:
            if self._reads_early:
                asked = [*islice(self._awaited, MAX_USERS_PER_SNAPSHOT)]
                self.statistics.looks += len(asked)
                await self._read(channel, call, asked, early=True)
                self._report_known(asked)
            if self._recovery_due <= trio.current_time():
                await self._recover(channel, call)
        elif uids := self.view.users_to_read(MAX_USERS_PER_SNAPSHOT):
            self.statistics.looks += len(uids)
            await self._read(channel, call, uids)
            if self.view.phase is ViewPhase.LIVE:
                self._report_known(uids)

    async def compare(self, channel: ServerChannel, call: Callable[[Any], Awaitable[Any]]) -> None:
        """Compare some known states with the records, if it is time to."""
        now = trio.current_time()
        if self.view.phase is not ViewPhase.LIVE:
            self.compare_due = max(self.compare_due, now + COMPARE_INTERVAL_S)
            return
        if self._paces.reread.free_at <= now and (
            absent := self.view.absent_users(now, self._paces.reread.most)
        ):
            self._paces.reread.charge(len(absent), now)
            await self._read(channel, call, absent)
        if now < max(self.compare_due, self._paces.compared.free_at) or not len(self.view):
            return
        if self._cursor == 0:
            self._cycle_began = now
        uids, self._cursor = self.view.known.walk(self._cursor, MAX_USERS_PER_COMPARISON)
        self.compare_due = now + COMPARE_INTERVAL_S
        if self._cursor == 0:
            self.compare_due = max(self.compare_due, self._cycle_began + COMPARE_CYCLE_S)
        if uids:
            self._paces.compared.charge(len(uids), now)
            self.statistics.walked += len(uids)
            await self._read(channel, call, uids)

    async def _recover(self, channel: ServerChannel, call: Callable[[Any], Awaitable[Any]]) -> None:
        """Recover a part of what was missed: from the stream, or if that is impossible from the records."""
        recovery = self._recovery
        if recovery is None:
            recovery = self._recovery = _Recovery(self.view.heard_from)
        if not self.view.is_rereading:
            after = self.view.position
            part = await call(lambda: channel.replay(self.number, after, self.view.known))
            recovery.entries += part.size
            self._push_all(self.view.apply_replay(part.entries, part.position))
            if part.is_end:
                self.statistics.replays += 1
                await self._recovered(max(part.position, recovery.heard_from))
            elif part.is_broken or recovery.entries >= MAX_REPLAY_ENTRIES:
                self.statistics.rereads += 1
                await self._begin_reread()
            return
        uids, recovery.cursor = self.view.known.walk(recovery.cursor, self._paces.reread.most)
        if uids:
            self._paces.reread.charge(len(uids), trio.current_time())
            as_of = (await self._read(channel, call, uids)).as_of
            recovery.position = min(as_of, recovery.position or as_of)
        if recovery.cursor == 0:
            await self._recovered(max(recovery.position or self.view.position, recovery.heard_from))

    async def _begin_reread(self) -> None:
        """Apply what was deferred: the events missed before will not come."""
        self.view.is_rereading = True
        while self.view.has_deferred:
            self._push_all(self.view.apply_deferred(MAX_DEFERRED_PER_TURN))
            await trio.lowlevel.checkpoint()

    async def _recovered(self, position: EntryId) -> None:
        """Finish a recovery up to this entry, unless there is another gap between it and what was heard."""
        self._recovery = None
        self._replay_due = trio.current_time() + REPLAY_INTERVAL_S
        self.view.position, self.view.is_rereading = position, False
        while self.view.phase is ViewPhase.RECOVERING and not self.view.has_gap:
            self._push_all(self.view.finish_recovery(MAX_DEFERRED_PER_TURN))
            if self.view.phase is ViewPhase.RECOVERING:
                await trio.lowlevel.checkpoint()
        while self._awaited and self.view.phase is ViewPhase.LIVE:
            self._report_known([*islice(self._awaited, MAX_USERS_PER_TURN)])
            await trio.lowlevel.checkpoint()

    def _report_known(self, uids: Sequence[str]) -> None:
        for uid in uids:
            self._awaited.pop(uid, None)
        self._ready(uids)

    async def _read(
        self,
        channel: ServerChannel,
        call: Callable[[Any], Awaitable[Any]],
        uids: Sequence[str],
        *,
        early: bool = False,
    ) -> ShardSnapshot:
        """Read some users, and push the changes found; `early`: see `ShardView.apply_snapshot`."""
        self.view.begin_snapshot(uids)
        snapshot: ShardSnapshot = await call(lambda: channel.snapshot(self.number, uids))
        self._push_all(self.view.apply_snapshot(snapshot, trio.current_time(), early=early))
        return snapshot

    def _push_all(self, changes: Iterable[UserEvent]) -> None:
        for change in changes:
            with self._faults.contained("watch event"):
                self._push(change)
