"""The watch over one shard: what of it is to be subscribed to, read, recovered and compared next.

It has no task and no connection of its own: `presence.watching.server_watch` asks it for one step after the
other, over a channel that the shards of a server share. In turn it recovers what was missed after a loss,
reads the records of newly watched users, and compares the known states of `MAX_USERS_PER_COMPARISON` users
per second with their records, each user at most every `COMPARE_CYCLE_S`: a safety net below published events,
which are delivered at most once.

Tests: `tests/watching/test_watch_service.py`, `tests/watching/test_shard_placement.py`.
"""

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from presence.common.faults import Faults
from presence.watching.channel import ChannelMessage, ServerChannel, Subscribed, Unsubscribed
from presence.watching.shard_view import ShardView, ViewPhase
from presence.watching.user_states import EntryId, ShardSnapshot, UserEvent

MAX_USERS_PER_SNAPSHOT: Final = 500  # in one transaction: a millisecond of Redis
COMPARE_INTERVAL_S: Final = 1.0
MAX_USERS_PER_COMPARISON: Final = 500  # per second; a full cycle takes at least
COMPARE_CYCLE_S: Final = 30.0
LINGER_S: Final = 30.0  # after its last user a shard stays subscribed to
MAX_REPLAY_ENTRIES: Final = 20_000  # beyond, reading the users' records is cheaper


@dataclass(slots=True)
class ShardStatistics:
    """Counters since the start."""

    connections: int = 0  # made, or joined
    losses: int = 0  # of a connection, or of the server of the shard
    looks: int = 0  # reads of newly watched users
    replays: int = 0  # losses recovered from the stream
    rereads: int = 0  # losses recovered from all records, because the stream did not reach back
    walked: int = 0  # users compared


@dataclass(slots=True)
class _Recovery:
    """A recovery under way: of the stream, and if that is impossible of the records."""

    known: frozenset[str]
    entries: int = 0  # replayed
    unread: deque[str] | None = None  # users to reread; None: the stream is being replayed
    positions: list[EntryId] = field(default_factory=list)  # of the records read


class ShardWatch:
    """Watches the users of one shard.

    `push` is called with each change, `ready` with users whose states have become known. `absence_s`: see
    `ShardView`.

    Attributes:
        failures: losses in a row.
        retry_at: before this time the shard is not looked for again.
    """

    def __init__(
        self,
        number: int,
        absence_s: float,
        push: Callable[[UserEvent], None],
        ready: Callable[[Iterable[str]], None],
        *,
        faults: Faults,
    ) -> None:
        self.number = number
        self._faults = faults
        self._push = push
        self._ready = ready
        self.view = ShardView(absence_s)
        self.statistics = ShardStatistics()
        self.failures = 0
        self.retry_at = -math.inf
        self._recovery: _Recovery | None = None
        self._to_compare: deque[str] = deque()  # users of this cycle
        self._compare_due = self._cycle_began = 0.0
        self._empty_since: float | None = None  # when it was first found without users

    def want(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self.view.want(uid)
            if self.view.current(uid) is not None:  # it was about to be unsubscribed
                self._ready((uid,))

    def drop(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self.view.drop(uid)

    # The channel

    def joined(self, now: float) -> None:
        """Begin to use a channel, on which nothing of the shard is subscribed to yet."""
        self.statistics.connections += 1
        self._recovery = None
        self._compare_due, self._empty_since = now + COMPARE_CYCLE_S, None
        self._to_compare.clear()
        self.view.connected()

    def left(self) -> None:
        """Record that the channel is no longer used."""
        self._recovery = None
        self.view.lost()

    def handle(self, message: ChannelMessage) -> bool:
        """Apply a message about a user; return whether `step` may have something to do."""
        match message:
            case UserEvent():
                if (change := self.view.receive(message)) is not None:
                    self._push(change)
                return False
            case Subscribed():
                self.view.subscribed(message.uid)
            case Unsubscribed():
                self.view.unsubscribed(message.uid)
        return True

    @property
    def must_read(self) -> bool:
        """Whether `step` reads something now."""
        return self.view.phase is ViewPhase.RECOVERING or bool(self.view.users_to_read(1))

    def due_at(self, now: float) -> float:
        """Return when the shard next needs a comparison, or has lingered."""
        if len(self.view):
            self._empty_since = None
            return self._compare_due
        if self._empty_since is None:
            self._empty_since = now
        return self._empty_since + LINGER_S

    def has_lingered(self, now: float) -> bool:
        """Whether no user has been watched for `LINGER_S`."""
        return not len(self.view) and self._empty_since is not None and now >= self._empty_since + LINGER_S

    # Reads

    async def step(self, channel: ServerChannel, call: Callable[[Any], Awaitable[Any]]) -> None:
        """Do the next part of a recovery, or read newly watched users, which makes them known."""
        if self.view.phase is ViewPhase.RECOVERING:
            await self._recover(channel, call)
        elif uids := self.view.users_to_read(MAX_USERS_PER_SNAPSHOT):
            self.statistics.looks += len(uids)
            self._push_all(await self._read(channel, call, uids))
            if self.view.phase is ViewPhase.LIVE:
                self._ready(uids)

    async def compare(self, channel: ServerChannel, call: Callable[[Any], Awaitable[Any]]) -> None:
        """Compare some known states with the records, if it is time to."""
        now = trio.current_time()
        if now < self._compare_due or not len(self.view):
            return
        if not self._to_compare:
            self._to_compare.extend(self.view.known() if self.view.phase is ViewPhase.LIVE else ())
            self._cycle_began = now
        left = min(MAX_USERS_PER_COMPARISON, len(self._to_compare))
        while left > 0:
            uids = [self._to_compare.popleft() for _ in range(min(left, MAX_USERS_PER_SNAPSHOT))]
            left -= len(uids)
            self.statistics.walked += len(uids)
            self._push_all(await self._read(channel, call, uids))
        self._compare_due = (
            now + COMPARE_INTERVAL_S
            if self._to_compare
            else max(now + COMPARE_INTERVAL_S, self._cycle_began + COMPARE_CYCLE_S)
        )

    async def _recover(self, channel: ServerChannel, call: Callable[[Any], Awaitable[Any]]) -> None:
        """Recover a part of what was missed: from the stream, or if that is impossible from the records."""
        recovery = self._recovery
        if recovery is None:
            recovery = self._recovery = _Recovery(frozenset(self.view.known()))
        if recovery.unread is None:
            after = self.view.position
            part = await call(lambda: channel.replay(self.number, after, recovery.known))
            recovery.entries += part.size
            self._push_all(self.view.apply_replay(part.entries, part.position))
            if part.is_end:
                self.statistics.replays += 1
                self._recovered(None)
            elif part.is_broken or recovery.entries >= MAX_REPLAY_ENTRIES:
                self.statistics.rereads += 1
                recovery.unread = deque(self.view.known())
        elif unread := recovery.unread:
            uids = [unread.popleft() for _ in range(min(len(unread), MAX_USERS_PER_SNAPSHOT))]
            snapshot = await self._snapshot(channel, call, uids)
            recovery.positions.append(snapshot.as_of)
            self._push_all(self.view.apply_snapshot(snapshot, trio.current_time()))
        else:
            self._recovered(min(recovery.positions, default=self.view.position))

    def _recovered(self, position: EntryId | None) -> None:
        self._recovery = None
        self._push_all(self.view.finish_recovery(position))
        self._ready(self.view.known())

    async def _read(
        self, channel: ServerChannel, call: Callable[[Any], Awaitable[Any]], uids: Sequence[str]
    ) -> list[UserEvent]:
        snapshot = await self._snapshot(channel, call, uids)
        return self.view.apply_snapshot(snapshot, trio.current_time())

    async def _snapshot(
        self, channel: ServerChannel, call: Callable[[Any], Awaitable[Any]], uids: Sequence[str]
    ) -> ShardSnapshot:
        self.view.begin_snapshot(uids)
        snapshot: ShardSnapshot = await call(lambda: channel.snapshot(self.number, uids))
        return snapshot

    def _push_all(self, changes: Iterable[UserEvent]) -> None:
        for change in changes:
            with self._faults.contained("watch event"):
                self._push(change)
