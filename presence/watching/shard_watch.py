"""The watch over one shard: a subscription while any of its users is watched, and the reads beside it.

Two tasks with a thread each. One receives what the server publishes. The other, in turn, reads the records of
newly watched users, recovers what was missed after a loss, and otherwise

* every `CHECK_INTERVAL_S` seconds checks that the server is reachable, answers on the subscription, and still
  has the shard: it may have become a replica, on which nothing is published;
* compares the known states of `MAX_USERS_PER_COMPARISON` users per second with their records, each user at
  most every `COMPARE_CYCLE_S`: a safety net below published events, which are delivered at most once.

When no user has been watched for `LINGER_S`, the connection is closed, and nothing wakes up any more.
"""

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from presence.common.backoff import backoff_s, jittered
from presence.common.circuit_breaker import BACKOFF_FIRST_S, BACKOFF_LIMIT_S
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.faults import Faults
from presence.common.runtime import Runtime
from presence.watching.channel import ChannelMessage, Pong, ShardChannel, Subscribed, Unsubscribed
from presence.watching.user_states import EntryId, ShardSnapshot, UserEvent
from presence.watching.view import ShardView, ViewPhase

GATHER_S: Final = 0.002  # users watched at about the same time are read together
MAX_USERS_PER_SNAPSHOT: Final = 500  # in one transaction: a millisecond of Redis
MAX_CHANNELS_PER_COMMAND: Final = 1_000  # channels in one command
MAX_EVENTS_PER_TURN: Final = 500  # without a turn for other tasks: some milliseconds
CHECK_INTERVAL_S: Final = 3.0
COMPARE_INTERVAL_S: Final = 1.0
MAX_USERS_PER_COMPARISON: Final = 500  # per second; a full cycle takes at least
COMPARE_CYCLE_S: Final = 30.0
LINGER_S: Final = 30.0
MAX_REPLAY_ENTRIES: Final = 20_000  # beyond, reading the users' records is cheaper

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class ShardStatistics:
    """Counters since the start."""

    connections: int = 0  # made
    losses: int = 0  # of a connection, or of the server of the shard
    looks: int = 0  # reads of newly watched users
    replays: int = 0  # losses recovered from the stream
    rereads: int = 0  # losses recovered from all records, because the stream did not reach back
    walked: int = 0  # users compared


class ShardWatch:
    """Watches the users of one shard, over a channel that only this object uses.

    `push` is called with each change, `ready` with users whose states have become known. `absence_s`: see
    `ShardView`. Of errors, those in a message skip it, and all others count as a loss.
    """

    def __init__(
        self,
        shard: int,
        channel: ShardChannel,
        absence_s: float,
        push: Callable[[UserEvent], None],
        ready: Callable[[Iterable[str]], None],
        *,
        runtime: Runtime,
        faults: Faults,
    ) -> None:
        self._shard = shard
        self._faults = faults
        self._channel = channel
        self._push = push
        self._ready = ready
        self.view = ShardView(absence_s)
        self.statistics = ShardStatistics()
        self._bell = runtime.wake_event()
        self._receiver = runtime.thread_caller(channel.close)
        self._caller = runtime.thread_caller(channel.close)
        self._failures = 0  # in a row
        self._pinged: EntryId | None = None  # not answered yet
        self._to_compare: deque[str] = deque()  # users of this cycle
        self._check_due = self._compare_due = self._cycle_began = self._needed_at = 0.0

    def want(self, uids: Iterable[str]) -> None:
        """Subscribe to users."""
        for uid in uids:
            self.view.want(uid)
            if self.view.current(uid) is not None:  # it was about to be unsubscribed
                self._ready((uid,))
        self._bell.set()

    def drop(self, uids: Iterable[str]) -> None:
        """Unsubscribe from users."""
        for uid in uids:
            self.view.drop(uid)
        self._bell.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            if not len(self.view):
                await self._bell.wait(math.inf)
                continue
            try:
                await self._watch()
            except Exception as error:
                self.statistics.losses += 1
                if not isinstance(error, (StoreUnavailable, StoreError)):
                    self._faults.record("watch subscription", error)
                if self._failures == 1:  # the first may be just a restart
                    _log.warning("watch subscription lost", shard=self._shard, error=str(error))
                pause_s = jittered(backoff_s(self._failures, BACKOFF_FIRST_S, BACKOFF_LIMIT_S))
                self._failures += 1
                self.view.lost()
                await trio.sleep(pause_s)
            else:
                self.view.lost()

    async def _watch(self) -> None:
        """Watch until no user is wanted any more.

        Raises:
            StoreUnavailable, StoreError: the connection is lost.
        """
        failures: list[StoreUnavailable | StoreError] = []
        try:
            await self._receiver.call(self._channel.open)
            self._connected()
            async with trio.open_nursery() as nursery:

                async def run_until_one_ends(part: Callable[[], Awaitable[None]]) -> None:
                    try:
                        await part()
                    except (StoreUnavailable, StoreError) as error:
                        failures.append(error)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(run_until_one_ends, self._receive)
                nursery.start_soon(run_until_one_ends, self._serve)
        finally:
            self._channel.close()
        if failures:
            raise failures[0]

    def _connected(self) -> None:
        self.statistics.connections += 1
        self._pinged = None
        now = trio.current_time()
        self._check_due, self._compare_due, self._needed_at = now, now + COMPARE_CYCLE_S, now
        self._to_compare.clear()
        self.view.connected()

    # Messages

    async def _receive(self) -> None:
        while True:
            messages = await self._receiver.call(self._channel.receive)
            for first in range(0, len(messages), MAX_EVENTS_PER_TURN):
                for each in messages[first : first + MAX_EVENTS_PER_TURN]:
                    with self._faults.contained("watch event"):
                        self._handle(each)
                self._bell.set()
                await trio.lowlevel.checkpoint()

    def _handle(self, message: ChannelMessage) -> None:
        match message:
            case UserEvent():
                if (change := self.view.receive(message)) is not None:
                    self._push(change)
            case Subscribed():
                self.view.subscribed(message.uid)
            case Unsubscribed():
                self.view.unsubscribed(message.uid)
            case Pong():
                self._pinged = None
                self.view.caught_up(message.position)
                if self._failures > 1:
                    _log.info("watch subscription restored", shard=self._shard)
                self._failures = 0

    # Reads, one after the other

    async def _serve(self) -> None:
        while True:
            subscribe, unsubscribe = self.view.next_subscriptions(MAX_CHANNELS_PER_COMMAND)
            if subscribe or unsubscribe:
                self._channel.update_subscriptions(subscribe, unsubscribe)
            now = trio.current_time()
            if len(self.view):
                self._needed_at = now
            if self.view.phase is ViewPhase.RECOVERING:
                await self._recover()
            elif now >= self._check_due:
                await self._check()
            elif self.view.users_to_read(1):
                await self._read_new()
            elif now >= self._compare_due:
                await self._compare()
            elif now >= self._needed_at + LINGER_S:
                return
            elif not (subscribe or unsubscribe):
                await self._bell.wait(min(self._check_due, self._compare_due) - now)

    async def _read_new(self) -> None:
        """Read newly watched users, which makes them known."""
        await trio.sleep(GATHER_S)
        if uids := self.view.users_to_read(MAX_USERS_PER_SNAPSHOT):
            self.statistics.looks += len(uids)
            self._push_all(await self._read(uids))
            if self.view.phase is ViewPhase.LIVE:
                self._ready(uids)

    async def _check(self) -> None:
        if self._pinged is not None:
            raise StoreUnavailable("nothing comes on the subscription")
        self._pinged = await self._caller.call(self._channel.check)
        self._channel.ping(self._pinged)
        self._check_due = trio.current_time() + CHECK_INTERVAL_S

    async def _compare(self) -> None:
        """Compare some known states with the records."""
        now = trio.current_time()
        if not self._to_compare:
            self._to_compare.extend(self.view.known() if self.view.phase is ViewPhase.LIVE else ())
            self._cycle_began = now
        uids = [
            self._to_compare.popleft() for _ in range(min(MAX_USERS_PER_COMPARISON, len(self._to_compare)))
        ]
        if uids:
            self.statistics.walked += len(uids)
            self._push_all(await self._read(uids))
        self._compare_due = (
            now + COMPARE_INTERVAL_S
            if self._to_compare
            else max(now + COMPARE_INTERVAL_S, self._cycle_began + COMPARE_CYCLE_S)
        )

    async def _recover(self) -> None:
        """Recover what was missed: from the stream, or if that is impossible from the records."""
        uids, size = frozenset(self.view.known()), 0
        while size < MAX_REPLAY_ENTRIES:
            after = self.view.position
            part = await self._caller.call(lambda after=after: self._channel.replay(after, uids))  # type: ignore[misc]
            if part.is_broken:
                break
            size += part.size
            for first in range(0, len(part.entries), MAX_EVENTS_PER_TURN):
                entries = part.entries[first : first + MAX_EVENTS_PER_TURN]
                self._push_all(self.view.apply_replay(entries, entries[-1].id))
                await trio.lowlevel.checkpoint()
            self._push_all(self.view.apply_replay((), part.position))
            if part.is_end:
                self.statistics.replays += 1
                self._recovered(None)
                return
        self.statistics.rereads += 1
        known, positions = self.view.known(), []
        for first in range(0, len(known), MAX_USERS_PER_SNAPSHOT):
            snapshot = await self._snapshot(known[first : first + MAX_USERS_PER_SNAPSHOT])
            positions.append(snapshot.as_of)
            self._push_all(self.view.apply_snapshot(snapshot, trio.current_time()))
        self._recovered(min(positions, default=self.view.position))

    def _recovered(self, position: EntryId | None) -> None:
        self._push_all(self.view.finish_recovery(position))
        self._ready(self.view.known())

    async def _read(self, uids: Sequence[str]) -> list[UserEvent]:
        snapshot = await self._snapshot(uids)
        return self.view.apply_snapshot(snapshot, trio.current_time())

    async def _snapshot(self, uids: Sequence[str]) -> ShardSnapshot:
        self.view.begin_snapshot(uids)
        return await self._caller.call(lambda: self._channel.snapshot(uids))

    def _push_all(self, changes: Iterable[UserEvent]) -> None:
        for change in changes:
            with self._faults.contained("watch event"):
                self._push(change)
